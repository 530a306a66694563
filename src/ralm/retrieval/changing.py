"""Changes an index in place, in one step, while others read it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ralm.errors import FolderExistsError
from ralm.retrieval.index import Index
from ralm.storage.manifest import is_current
from ralm.storage.outputs import changed_folder


@contextmanager
def changing(index: Index) -> Iterator[Path]:
    """Lock an open index against changes by other processes; the folder for what is added to it.

    The block must write a manifest there; it replaces that of the index when the block succeeds. If it fails, the index
    stays as it was. Raises FolderExistsError if another process is writing the index, or has changed it since it was
    opened. The path of the index must be resolved.
    """
    with changed_folder(index.path) as folder:
        if not is_current(index.path, index.manifest):
            raise FolderExistsError(f"another process has just changed {index.path}; run it again.")
        yield folder
