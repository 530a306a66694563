"""Changes an index in place, in one step, while others read it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ralm.folders.outputs import changed_folder
from ralm.retrieval.index import Index, open_index


@contextmanager
def changing(path: Path) -> Iterator[tuple[Index, Path]]:
    """The index, locked against changes by other processes, and the folder for what is added to it.

    The block must write a manifest there; it replaces that of the index when the block succeeds. If it fails, the index
    stays as it was. Raises FolderExistsError if another process is writing the index, and what `open_index` raises.
    """
    open_index(path)  # fails before anything is written beside a folder that is not an index
    with changed_folder(path) as folder:
        yield open_index(path), folder
