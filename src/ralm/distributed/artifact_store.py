"""Folders that the machines of a job make once, each under a name: on a disk that they share, or in an object store.

A folder under its name is complete, whichever process died while it was made, and need not be made again. Two machines
that make the same folder make equal files, so either may count.
"""

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ralm.storage.atomic import file_lock, storage_errors, sync, sync_one, try_file_lock
from ralm.storage.remote import RemoteFolder

_PARTIAL: Final = ".partial"
_COMPLETE: Final = "complete"
_OWN: Final = "ralm-"
_HELD: Final = "held"
_SECONDS_TO_HOLD: Final = 60.0


class ArtifactStore(Protocol):
    """Where things are kept; it is sent to machines."""

    def make(self, name: str, make: Callable[[Path], None]) -> None:
        """Have `make` fill a new folder, which is then kept under this name, unless it is there."""

    def read(self, name: str, file: str) -> bytes:
        """A file of what is kept."""

    def here(self, names: Sequence[str]) -> AbstractContextManager[list[Path]]:
        """Folders of this machine that hold what is kept under these names, while the block lasts."""

    def note(self, name: str) -> None:
        """Keep that something happened."""

    def noted(self, name: str) -> bool:
        """Whether it did."""


@dataclass(frozen=True, slots=True)
class DiskStore:
    """Kept in a folder of a disk that all machines share: made under a temporary name, synced, then renamed."""

    folder: Path

    def make(self, name: str, make: Callable[[Path], None]) -> None:
        """Have `make` fill a new folder, which is then kept under this name, unless it is there."""
        with storage_errors(self.folder / name):
            _make_once(self.folder / name, make)

    def read(self, name: str, file: str) -> bytes:
        """A file of what is kept."""
        return (self.folder / name / file).read_bytes()

    @contextmanager
    def here(self, names: Sequence[str]) -> Iterator[list[Path]]:
        """The folders themselves."""
        yield [self.folder / name for name in names]

    def note(self, name: str) -> None:
        """Keep that something happened."""
        (self.folder / name).touch()

    def noted(self, name: str) -> bool:
        """Whether it did."""
        return (self.folder / name).exists()


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Kept in a folder of an object store: made on the disk of a machine, copied, and then said to be complete.

    What is made, and copies, are in `place`; None is where a machine keeps temporary files.
    """

    folder: RemoteFolder
    place: Path | None = None

    def make(self, name: str, make: Callable[[Path], None]) -> None:
        """Have `make` fill a new folder, which is then kept under this name, unless it is there."""
        kept = self.folder.below(name)
        if kept.has(_COMPLETE):
            return
        with _own_folder(self.place) as folder:
            make(folder)
            kept.upload(folder)
        kept.write(_COMPLETE, b"")

    def read(self, name: str, file: str) -> bytes:
        """A file of what is kept."""
        return self.folder.below(name).read(file)

    @contextmanager
    def here(self, names: Sequence[str]) -> Iterator[list[Path]]:
        """Copies of them."""
        with _own_folder(self.place) as folder:
            copies = [folder / str(number) for number in range(len(names))]
            for name, copy in zip(names, copies, strict=True):
                copy.mkdir()
                self.folder.below(name).download(copy)
            yield copies

    def note(self, name: str) -> None:
        """Keep that something happened."""
        self.folder.write(name, b"")

    def noted(self, name: str) -> bool:
        """Whether it did."""
        return self.folder.has(name)


def remove_partial(parent: Path) -> None:
    """Remove what was being made in a folder by processes that were killed; call it while none is running."""
    for left in parent.glob(f"*{_PARTIAL}"):
        shutil.rmtree(left, ignore_errors=True)


def _make_once(folder: Path, make: Callable[[Path], None]) -> None:
    """Have `make` fill a folder, unless it is there. If two processes make the same one, the first counts."""
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


@contextmanager
def _own_folder(place: Path | None) -> Iterator[Path]:
    """A folder of this process alone, which goes at the end. Those of processes that were killed go first."""
    where = place or Path(tempfile.gettempdir())
    for left in where.glob(f"{_OWN}*{_PARTIAL}"):
        _remove_if_left(left)
    with storage_errors(where), tempfile.TemporaryDirectory(prefix=_OWN, suffix=_PARTIAL, dir=where) as folder:
        held = Path(folder, _HELD)
        with file_lock(held):
            content = Path(folder, "content")
            content.mkdir()
            yield content


def _remove_if_left(folder: Path) -> None:
    """Remove a folder that no process holds. One that was made just now may not be held yet."""
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime > _SECONDS_TO_HOLD:
            with try_file_lock(folder / _HELD) as free:
                if free:
                    shutil.rmtree(folder, ignore_errors=True)
