"""Work folders: what a process keeps beside an output while that is not complete.

A work folder has a marker, a file which says that ralm made it, and which is locked for as long as a process is at work
there. So what a killed process left is told from what a living one is about, whatever process ids say, and nothing is
ever removed from a folder that is not provably ours. Knows nothing of what the outputs are.
"""

import errno
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ralm.errors import FolderExistsError, StorageError, UsageError

MARKER: Final = "lock"
_PROGRAM: Final = "ralm"
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_MARKER_BYTES: Final = 128
_TOKEN: Final = uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkKind:
    """A kind of work folder: its name, made of that of the output, and patterns of what we put into it."""

    name: str
    holds: tuple[str, ...]

    def beside(self, out: Path) -> Path:
        """The work folder of an output."""
        return out.with_name(self.name.format(out.name))

    def clear(self, folder: Path) -> None:
        """Remove what we put there, and the folder if that was all."""
        self.empty(folder)
        _remove_if_bare(folder)

    def empty(self, folder: Path) -> None:
        """Remove what we put there."""
        for pattern in self.holds:
            for entry in folder.glob(pattern):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)

    def is_held_here(self, out: Path) -> bool:
        """Whether this process is at work there."""
        return _marker(self.beside(out)).get("process") == _process()


PARTIAL: Final = WorkKind(
    name=".{}.partial", holds=("new", "old", "finished", "finished.partial", "change", "change.partial")
)
"""What is being written, and what it replaces."""
UNFINISHED: Final = WorkKind(name="{}.unfinished", holds=("config.json", "config.json.partial", "*.journal"))
"""What a run has scored."""
ENCODED: Final = WorkKind(name=".{}.vectors", holds=("*.npy", "*.npy.partial"))
"""What was encoded for an index."""


@contextmanager
def at_work(kind: WorkKind, out: Path) -> Iterator[Path]:
    """Hold the work folder of an output, made where it is not there; it is removed at the end where nothing is in it.

    Raises FolderExistsError where another process holds it, UsageError where ralm did not make it, StorageError where
    the disk has no locks and it is there.
    """
    folder = kind.beside(out)
    marker = _locked_marker(folder, out)
    try:
        yield folder
    finally:
        _remove_if_bare(folder)
        os.close(marker)


def is_work_folder(folder: Path) -> bool:
    """Whether a folder has our marker."""
    return bool(_marker(folder))


def write_whole(file: Path, text: str) -> None:
    """Write a file of a work folder, whole or not at all."""
    partial = file.with_name(f"{file.name}.partial")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)


def _locked_marker(folder: Path, out: Path) -> int:
    """The marker of a folder, open and locked; it is closed, and so unlocked, when the process ends in any way."""
    while True:
        _make(folder, out)
        with suppress(FileNotFoundError):  # the process that held it has removed it in this moment
            marker = os.open(folder / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                _lock(marker, folder, out)
                if os.path.samestat(os.fstat(marker), (folder / MARKER).stat()):
                    content = json.dumps({"program": _PROGRAM, "process": _process()})
                    os.pwrite(marker, content.ljust(_MARKER_BYTES).encode(), 0)  # others may read it at any moment
                    os.fsync(marker)
                    return marker
            except BaseException:
                os.close(marker)
                raise
            os.close(marker)


def _make(folder: Path, out: Path) -> None:
    """Have a folder that is empty or ours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entries = [entry.name for entry in folder.iterdir()]
    except FileExistsError:
        entries = [folder.name]
    except FileNotFoundError:
        return
    only_begun = not entries or (entries == [MARKER] and _size(folder / MARKER) == 0)
    if not only_begun and not is_work_folder(folder) and folder.exists():
        raise UsageError(
            f"{folder} is in the way of {out}, and this version of ralm did not make it: move it elsewhere, or choose "
            "another output."
        )


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _lock(marker: int, folder: Path, out: Path) -> None:
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderExistsError(f"another process is writing {out}; wait for it or choose another output.") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        if os.fstat(marker).st_size:
            raise StorageError(
                f"{folder} was left by another process, or is in use by one: its disk has no locks to tell. Remove it "
                f"if no process is writing {out}, or choose another output."
            ) from None


def _marker(folder: Path) -> dict[str, str]:
    """What the marker says; nothing where there is none of ours."""
    try:
        content = json.loads((folder / MARKER).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("program") == _PROGRAM else {}


def _process() -> str:
    """This process and no other, also where ids of processes begin anew."""
    return f"{os.getpid()}-{_TOKEN}"


def _remove_if_bare(folder: Path) -> None:
    """Remove a folder in which nothing is but our marker, and which is no longer of use."""
    with suppress(OSError):
        if [entry.name for entry in folder.iterdir()] == [MARKER]:
            (folder / MARKER).unlink()
            folder.rmdir()
