"""Atomic files, file locks and synced folders: what outputs, work folders and checkpoints are written with."""

import errno
import fcntl
import os
import shutil
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from ralm.errors import StorageError

_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


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
