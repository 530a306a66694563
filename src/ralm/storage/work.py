"""What a process writes before an output is complete: synced files, locks, and work folders.

A work folder holds what a process keeps beside an output until the output is complete. It is ralm's alone, as a file in
it says, which the process that uses the folder locks: the lock, not a process id, tells whether that process still runs
or was killed.
"""

import errno
import fcntl
import os
import shutil
import signal
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import Final

from ralm.errors import FolderExistsError, RalmError, StorageError, UsageError

_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
LOCK: Final = "lock"
SETTINGS: Final = "config.json"
"""The settings of the work in a folder; without any work they are worth nothing."""
_CONTENT: Final = b'{"program": "ralm"}'
_SIGN: Final = b'"ralm"'
_ENDING: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
_folders: Final[set[Path]] = set()
"""The work folders that this process holds."""


def write_atomically(file: Path, content: str | bytes) -> None:
    """Write a file of a work folder atomically: synced under the name FILE.partial, then renamed."""
    partial = file.with_name(f"{file.name}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def lock_file(file: Path) -> int | None:
    """Lock a file, which is created if missing; return its descriptor, or None if another process holds the lock.

    Closing the descriptor ends the lock, as does the end of the process, even by a kill. Raises FileNotFoundError if
    the folder is gone, StorageError if the disk has no locks and another process has used the file.
    """
    while True:
        with ExitStack() as stack:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                if os.fstat(descriptor).st_size:
                    raise StorageError(
                        f"{file.parent} was left by another process, or is in use by one: its disk has no file locks. "
                        "Remove it if no process is writing there, or choose another output."
                    ) from None
            with suppress(FileNotFoundError):  # it was removed meanwhile
                if os.path.samestat(os.fstat(descriptor), file.stat()):
                    stack.pop_all()
                    return descriptor


def link_file(file: Path, to: Path) -> None:
    """Link a file to another name, or copy it if the disk has no links."""
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)


def sync(folder: Path) -> None:
    """Sync a folder and everything in it to disk."""
    for file in [*folder.rglob("*"), folder]:
        sync_one(file)


def sync_one(file: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HeldFile:
    """A file held open, so that `path` reads the same file later even if it was replaced."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        self.path = Path(f"/dev/fd/{descriptor}")
        """The path of the open file, valid in this process and its forks."""


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or missing permission to write into a StorageError about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"no space left on the disk while writing {path}; nothing was kept under that name. "
                "Free some space, or choose an output on another disk, and run it again."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StorageError(f"{path} cannot be written: {error.strerror}. Choose another output.") from error
        raise


class HeldSignals:
    """A block that delays the handlers of signals that end the program to its end, or to `release`, in the main thread.

    What is made and removed in such a block is never left half done by an exception of a handler. Blocking signals in
    this thread is not enough: another thread may receive them, and Python still calls the handler in the main thread.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._received: list[int] = []

    def __enter__(self) -> "HeldSignals":
        self.hold()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def hold(self) -> None:
        """Hold signals back (again)."""
        if current_thread() is main_thread():
            for number in _ENDING:
                handler = signal.getsignal(number)
                if callable(handler) and handler != self._note:
                    self._handlers[number] = handler
                    signal.signal(number, self._note)

    def release(self) -> None:
        """Call the handlers of signals that have arrived, and of those to come."""
        for number in [*self._handlers]:
            signal.signal(number, self._handlers[number])
            del self._handlers[number]
        while self._received:
            signal.raise_signal(self._received.pop())

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received.append(number)


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
    with HeldSignals() as signals, ExitStack() as stack:
        lock = _lock(folder, out)
        stack.callback(_unlock, folder, lock)
        _folders.add(folder)
        os.pwrite(lock, _CONTENT, 0)  # in one write, since others may read it at any moment
        os.fsync(lock)
        stack.callback(sweep, folder)
        sweep(folder)
        try:
            signals.release()
            yield folder
        finally:
            signals.hold()


def _unlock(folder: Path, lock: int) -> None:
    """Unlock a work folder, and remove it if no work is in it."""
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
