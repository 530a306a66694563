"""Work folders: what a process keeps beside an output until the output is complete.

A work folder has a marker file, which shows that ralm made the folder. A process locks the marker while it uses the
folder. The lock, not a process id, tells whether the process is still running or was killed. Files are only removed
from folders with such a marker.
"""

import errno
import fcntl
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ralm.errors import FolderExistsError, RalmError, StorageError, UsageError
from ralm.processes import HeldSignals

MARKER: Final = "lock"
_PROGRAM: Final = "ralm"
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_MARKER_BYTES: Final = 128
_TOKEN: Final = uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkKind:
    """A kind of work folder: a format for its name, given the output's name, and glob patterns of its files."""

    name: str
    holds: tuple[str, ...]

    def folder_of(self, out: Path) -> Path:
        """The work folder of an output."""
        return out.with_name(self.name.format(out.name))

    def clear(self, folder: Path) -> None:
        """Remove our files, and the folder if nothing else is in it."""
        self.empty(folder)
        _remove_if_bare(folder)

    def empty(self, folder: Path) -> None:
        """Remove our files."""
        for pattern in self.holds:
            for entry in folder.glob(pattern):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)


PARTIAL: Final = WorkKind(
    name=".{}.partial", holds=("new", "old", "finished", "finished.partial", "change", "change.partial")
)
"""The output being written, and what it replaces."""
UNFINISHED_RUN: Final = WorkKind(
    name="{}.unfinished",
    holds=(
        *("config.json", "config.json.partial", "*.sqlite*"),
        *("checkpoint-*.safetensors*", "held-out.npz*", "encoders", "encoding", "version-*"),
    ),
)
"""The scores of an unfinished run, or the checkpoints of an unfinished training."""
UNFINISHED_VECTORS: Final = WorkKind(name=".{}.vectors", holds=("*.npy", "*.npy.partial", "seen-*"))
"""The vectors encoded for an unfinished index."""
UNFINISHED_SIGNALS: Final = WorkKind(
    name="{}.unfinished", holds=("parts", "sampled.parquet*", "config.json", "config.json.partial", "finished", "turn")
)
"""The measured parts of unfinished signals. Results are removed before their settings, so that a process that is killed
meanwhile leaves no results without the settings that they were computed with."""
_SCRATCH: Final = WorkKind(name="ralm-{}", holds=("files",))
"""Files that nobody needs once their process ended, in the folder of the system for these."""


@contextmanager
def work_folder(kind: WorkKind, out: Path, *, shared: bool = False) -> Iterator[Path]:
    """Hold the work folder of an output, which is created if missing, and removed at the end if it is empty.

    With `shared`, other processes that share it too may hold it at the same time. Raises FolderExistsError if another
    process holds it, UsageError if ralm did not make it, StorageError if it exists on a disk without file locks.
    """
    folder = kind.folder_of(out)
    with HeldSignals() as signals:
        marker = _locked_marker(folder, out, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        try:
            signals.release()
            yield folder
            signals.hold()
        finally:
            signals.hold()
            _remove_if_bare(folder)
            os.close(marker)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty folder that is removed at the end; what killed processes left of such folders is removed, too."""
    place = Path(tempfile.gettempdir())
    for folder in place.glob("ralm-*"):
        with suppress(OSError, RalmError):
            if folder.lstat().st_uid == os.getuid() and is_work_folder(folder):
                with work_folder(_SCRATCH, place / folder.name.removeprefix("ralm-")):
                    _SCRATCH.empty(folder)
    with work_folder(_SCRATCH, place / uuid.uuid4().hex) as folder:
        (folder / "files").mkdir()
        try:
            yield folder / "files"
        finally:
            _SCRATCH.empty(folder)


def is_work_folder(folder: Path) -> bool:
    """Whether a folder has our marker."""
    return bool(_marker(folder))


def is_held_by_this_process(folder: Path) -> bool:
    """Whether this process holds a work folder."""
    return _marker(folder).get("process") == _process()


def _locked_marker(folder: Path, out: Path, how: int) -> int:
    """The marker of a folder, open and locked; the system ends the lock when the process ends or is killed."""
    while True:
        _make(folder, out)
        with suppress(FileNotFoundError):  # the process that held it has just removed it
            marker = os.open(folder / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                _lock(marker, folder, out, how)
                # another process may have removed the folder between opening and locking: then try again
                if os.path.samestat(os.fstat(marker), (folder / MARKER).stat()):
                    content = json.dumps({"program": _PROGRAM, "process": _process()}).ljust(_MARKER_BYTES)
                    os.pwrite(marker, content.encode(), 0)  # one write, since others may read it at any moment
                    os.fsync(marker)
                    return marker
            except BaseException:
                os.close(marker)
                raise
            os.close(marker)


def _make(folder: Path, out: Path) -> None:
    """Create the folder if it is missing. Raises UsageError if it exists and is neither empty nor ours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entries = [entry.name for entry in folder.iterdir()]
    except FileExistsError:
        entries = [folder.name]
    except FileNotFoundError:
        return
    marker = folder / MARKER
    only_begun = not entries or (entries == [MARKER] and not (marker.exists() and marker.stat().st_size))
    if not only_begun and not is_work_folder(folder) and folder.exists():
        raise UsageError(
            f"{folder} is in the way of {out}, and ralm did not make it: move it elsewhere, or choose another output."
        )


def _lock(marker: int, folder: Path, out: Path, how: int) -> None:
    try:
        fcntl.flock(marker, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderExistsError(f"another process is writing {out}; wait for it or choose another output.") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        if os.fstat(marker).st_size:
            raise StorageError(
                f"{folder} was left by another process, or is in use by one: its disk has no file locks. Remove "
                f"it if no process is writing {out}, or choose another output."
            ) from None


def _marker(folder: Path) -> dict[str, str]:
    """The content of the marker; empty if there is no marker of ours."""
    try:
        content = json.loads((folder / MARKER).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("program") == _PROGRAM else {}


def _process() -> str:
    """A name for this process that is unique even if process ids are reused."""
    return f"{os.getpid()}-{_TOKEN}"


def _remove_if_bare(folder: Path) -> None:
    """Remove a folder that holds only our marker."""
    with suppress(OSError):
        if [entry.name for entry in folder.iterdir()] == [MARKER]:
            (folder / MARKER).unlink()
            folder.rmdir()
