"""Folders that the machines of a job make once, each under a name: on a disk that they share, or in an object store.

A folder under its name is complete, whichever process died while it was made, and need not be made again. Two machines
that make the same folder make equal files, so either may count.
"""

import hashlib
import json
import shutil
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pydantic import JsonValue

from ralm.distributed.cluster import Requirements
from ralm.errors import RalmWarning, StorageError, UsageError
from ralm.runs.resume import was_begun, write_config
from ralm.storage.atomic import file_lock, storage_errors, sync, sync_one, try_file_lock, write_atomically
from ralm.storage.remote import RemoteFolder, is_url
from ralm.storage.work import UNFINISHED_INDEX, work_folder

PARTS: Final = "parts"
SHARDS: Final = "shards"
_REMOTE: Final = "store"
"""The file of the work folder with the URL of the folder of an object store."""
_BEGUN: Final = "begun"
_PARTIAL: Final = ".partial"
_COMPLETE: Final = "complete"
_OWN: Final = "ralm-"
_HELD: Final = "held"
_SECONDS_TO_HOLD: Final = 60.0


@dataclass(frozen=True, slots=True)
class DiskStore:
    """Keeps folders on a disk that all machines share. They are made under temporary names, synced, then renamed."""

    folder: Path

    def make(self, name: str, make: Callable[[Path], None]) -> None:
        """Call `make` with a new folder, which is kept under this name, unless it exists already."""
        with storage_errors(self.folder / name):
            _make_once(self.folder / name, make)

    def read(self, name: str, file: str) -> bytes:
        """The content of a file of a kept folder."""
        return (self.folder / name / file).read_bytes()

    @contextmanager
    def folders(self, names: Sequence[str]) -> Iterator[list[Path]]:
        """The folders themselves."""
        yield [self.folder / name for name in names]

    def mark(self, name: str) -> None:
        """Keep a mark of this name."""
        (self.folder / name).touch()

    def is_marked(self, name: str) -> bool:
        """Whether the mark exists."""
        return (self.folder / name).exists()


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Keeps folders in an object store. They are made on a machine's disk and copied; a marker completes them.

    `place` is where copies are on this machine; None is its folder for temporary files.
    """

    folder: RemoteFolder
    place: Path | None = None

    def make(self, name: str, make: Callable[[Path], None]) -> None:
        """Call `make` with a new folder, which is kept under this name, unless it exists already."""
        kept = self.folder.below(name)
        if kept.has(_COMPLETE):
            return
        with _own_folder(self.place) as folder:
            make(folder)
            kept.upload(folder)
        kept.write(_COMPLETE, b"")

    def read(self, name: str, file: str) -> bytes:
        """The content of a file of a kept folder."""
        return self.folder.below(name).read(file)

    @contextmanager
    def folders(self, names: Sequence[str]) -> Iterator[list[Path]]:
        """Copies of the folders."""
        with _own_folder(self.place) as folder:
            copies = [folder / str(number) for number in range(len(names))]
            for name, copy in zip(names, copies, strict=True):
                copy.mkdir()
                self.folder.below(name).download(copy)
            yield copies

    def mark(self, name: str) -> None:
        """Keep a mark of this name."""
        self.folder.write(name, b"")

    def is_marked(self, name: str) -> bool:
        """Whether the mark exists."""
        return self.folder.has(name)


ArtifactStore: TypeAlias = DiskStore | ObjectStore
"""Keeps folders that machines make; it is sent to machines."""


@contextmanager
def open_store(
    work: Path, sources: Sequence[str], remote: RemoteFolder | None
) -> Iterator[tuple[ArtifactStore, Requirements]]:
    """The store of a job, and the requirements of its machines.

    It is the folder `work`, on a disk that all machines share, or else `remote`, which is removed if the block ends
    without an error. Raises StorageError if it cannot be written to.
    """
    read = [Path(source).absolute() for source in sources if not is_url(source)]
    if remote is None:
        with Requirements.writing(work, read) as requirements:
            yield DiskStore(work), requirements
        return
    write_atomically(work / _REMOTE, remote.url)
    remote.write(_BEGUN, b"")
    yield ObjectStore(remote), Requirements.reading(read)
    _remove_remote(remote)


@contextmanager
def job_folder(
    out: Path, settings: dict[str, JsonValue], remote: RemoteFolder | None, *, force: bool
) -> Iterator[Path]:
    """The folder beside the output that keeps parts and shards, or the URL of `remote`, locked for this process.

    A remote folder that is no longer used is removed. Raises UsageError if the job was begun with other settings,
    unless `force` is set.
    """
    with work_folder(UNFINISHED_INDEX, out) as work:
        begun = was_begun(work, settings, "an index", force=force)
        url = work / _REMOTE
        before = RemoteFolder(url.read_text(encoding="utf-8")) if url.exists() else None
        if before is not None and (before != remote or not begun):
            _remove_remote(before)
            url.unlink()
        if not begun:
            UNFINISHED_INDEX.empty(work)
            write_config(work, settings)
        for name in (PARTS, SHARDS):
            (work / name).mkdir(exist_ok=True)
            remove_partial(work / name)
        try:
            yield work
        finally:
            if not any((work / PARTS).glob("*")) and not url.exists():
                UNFINISHED_INDEX.clear(work)


def remote_folder(parts: str | None, settings: JsonValue, sources: Sequence[str]) -> RemoteFolder | None:
    """The folder of a job below the URL `parts`, if that is given; jobs with other sources or settings have others.

    Raises UsageError if `parts` is no URL.
    """
    if parts is None:
        return None
    if not is_url(parts):
        raise UsageError(
            f"`parts` is {parts}, but it must be the URL of a folder in an object store, such as s3://BUCKET/FOLDER: "
            "without it, a folder beside the output is used."
        )
    return RemoteFolder(f"{parts.rstrip('/')}/{short_hash([settings, *sources])}")


def _remove_remote(folder: RemoteFolder) -> None:
    """Remove a folder of an object store; a RalmWarning says if it stays."""
    try:
        folder.remove()
    except StorageError as error:
        warnings.warn(f"{error} Remove {folder.url} yourself.", RalmWarning, stacklevel=2)


def short_hash(content: JsonValue) -> str:
    """A hash of some JSON, as a name."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def remove_partial(parent: Path) -> None:
    """Remove unfinished folders of killed processes; call it while no other process writes."""
    for left in parent.glob(f"*{_PARTIAL}"):
        shutil.rmtree(left, ignore_errors=True)


def _make_once(folder: Path, make: Callable[[Path], None]) -> None:
    """Make a folder unless it exists. If two processes make the same one, the first counts."""
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
    """A folder of this process alone, which is removed at the end, after those of killed processes."""
    where = place or Path(tempfile.gettempdir())
    for left in where.glob(f"{_OWN}*{_PARTIAL}"):
        _remove_if_left(left)
    with storage_errors(where), tempfile.TemporaryDirectory(prefix=_OWN, suffix=_PARTIAL, dir=where) as folder:
        content = Path(folder, "content")
        with file_lock(Path(folder, _HELD)):
            content.mkdir()
            yield content


def _remove_if_left(folder: Path) -> None:
    """Remove a folder that no process has locked; a new one may not be locked yet."""
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime > _SECONDS_TO_HOLD:
            with try_file_lock(folder / _HELD) as free:
                if free:
                    shutil.rmtree(folder, ignore_errors=True)
