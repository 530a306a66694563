"""Atomic files, file locks and synced folders: what outputs, work folders and checkpoints are written with."""

import errno
import fcntl
import os
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ralm.errors import StorageError


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


@contextmanager
def file_lock(file: Path) -> Iterator[None]:
    """Wait until no other process holds this file, which is created if missing, and hold it. The system ends the lock
    when the process ends or is killed. Raises FileNotFoundError if the folder is gone."""
    with try_file_lock(file, wait=True):
        file.stat()
        yield


@contextmanager
def try_file_lock(file: Path, *, wait: bool = False) -> Iterator[bool]:
    """As `file_lock`, but without waiting unless told to; yields whether this process holds the file."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


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
    """A file held open, so that `path` reads the same file later even if it was replaced.

    Raises FileNotFoundError if it is missing.
    """

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
