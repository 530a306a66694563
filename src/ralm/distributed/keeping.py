"""Folders that are made once: under a temporary name, synced, then renamed.

So a folder under its own name is complete, whoever died while it was made, and need not be made again. If two processes
make the same one, the first counts. Knows nothing of what the folders hold, and nothing of Ray.
"""

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ralm.folders.changes import sync, sync_one

_PARTIAL: Final = ".partial"


def make_once(folder: Path, make: Callable[[Path], None]) -> None:
    """Have `make` fill a folder, unless it is there."""
    if folder.exists():
        return
    partial = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}{_PARTIAL}")
    partial.mkdir()
    try:
        make(partial)
        sync(partial)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.exists():
                raise
        sync_one(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_partial(parent: Path) -> None:
    """Remove what was being made in a folder by processes that were killed; call it while none is running."""
    for left in parent.glob(f"*{_PARTIAL}"):
        shutil.rmtree(left, ignore_errors=True)
