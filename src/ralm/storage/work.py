"""Work folders: what a process keeps beside an output until the output is complete.

A work folder is ralm's alone, as a file in it says, which the process that uses the folder locks: the lock, not a
process id, tells whether that process still runs or was killed.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ralm.errors import FolderExistsError, RalmError, UsageError
from ralm.processes import HeldSignals
from ralm.storage.atomic import lock_file

LOCK: Final = "lock"
SETTINGS: Final = "config.json"
"""The settings of the work in a folder; without any work they are worth nothing."""
_CONTENT: Final = b'{"program": "ralm"}'
_SIGN: Final = b'"ralm"'
_folders: Final[set[Path]] = set()
"""The work folders that this process holds."""


def unfinished(out: Path) -> Path:
    """Return the folder for what belongs to an unfinished output: scores, checkpoints, vectors or signals."""
    return out.with_name(f"{out.name}.unfinished")


@contextmanager
def work_folder(folder: Path, out: Path, *, sweep: Callable[[Path], None] = lambda _: None) -> Iterator[Path]:
    """Hold the work folder of an output, which is created if missing, and removed at the end if no work is in it.

    `sweep` removes what is left in it, first what a killed process left; no interrupt ends it halfway. Raises
    FolderExistsError if another process holds it, UsageError if ralm did not make it, StorageError if it exists on a
    disk without file locks.
    """
    with HeldSignals() as signals, _locked(folder, out):
        try:
            sweep(folder)
            try:
                signals.release()
                yield folder
            finally:
                signals.hold()
        finally:
            sweep(folder)


@contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    """Lock a work folder, which is removed at the end if no work is in it."""
    lock = _lock(folder, out)
    _folders.add(folder)
    try:
        os.pwrite(lock, _CONTENT, 0)  # in one write, since others may read it at any moment
        os.fsync(lock)
        yield
    finally:
        _folders.discard(folder)
        with suppress(OSError):
            if {entry.name for entry in folder.iterdir()} <= {LOCK, SETTINGS}:
                remove(folder)
        os.close(lock)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder that is removed at the end, and remove what killed processes left of such folders."""
    place = Path(tempfile.gettempdir())
    for folder in place.glob("ralm-*"):
        with suppress(OSError, RalmError):
            if folder.lstat().st_uid == os.getuid() and is_work_folder(folder):
                with work_folder(folder, folder, sweep=empty):
                    pass
    folder = place / f"ralm-{uuid.uuid4().hex}"
    with work_folder(folder, folder, sweep=empty):
        yield folder


def is_work_folder(folder: Path) -> bool:
    """Return whether ralm made a folder as a work folder."""
    try:
        return _SIGN in (folder / LOCK).read_bytes()
    except OSError:
        return False


def is_held(folder: Path) -> bool:
    """Return whether this process holds a work folder."""
    return folder in _folders


def remove(folder: Path) -> None:
    """Remove a work folder that this process holds."""
    with suppress(OSError):
        empty(folder)
        (folder / LOCK).unlink()
        folder.rmdir()


def empty(folder: Path) -> None:
    """Remove everything in a work folder that this process holds."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != LOCK:
            entry.unlink(missing_ok=True)


def _lock(folder: Path, out: Path) -> int:
    """Lock a work folder, which is created if missing, and return the open lock."""
    while True:
        try:
            _make(folder, out)
            lock = lock_file(folder / LOCK)
        except FileNotFoundError:  # the process that held it has just removed it
            continue
        if lock is None:
            raise FolderExistsError(f"another process is writing {out}; wait for it or choose another output.")
        return lock


def _make(folder: Path, out: Path) -> None:
    """Create a folder if it is missing; UsageError if it exists and is neither empty nor a work folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        begun = {entry.name: entry.lstat().st_size for entry in folder.iterdir()} in ({}, {LOCK: 0})
    except FileExistsError:
        begun = False
    if not begun and not is_work_folder(folder) and os.path.lexists(folder):
        raise UsageError(
            f"{folder} is in the way of {out}, and ralm did not make it: move it elsewhere, or choose another output."
        )
