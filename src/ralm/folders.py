"""Folders that ralm writes and reads: an index, a run.

Knows how such a folder comes to be (under a temporary name, synced, renamed: never half of one under the final name)
and how it is checked when opened (its manifest), in part or whole. Knows nothing of what the files mean.
"""

import errno
import hashlib
import json
import os
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, Literal, TextIO, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, field_validator

from ralm.errors import (
    DamagedFolderError,
    FolderError,
    FolderExistsError,
    NewerFormatError,
    NotAFolderOfThisKindError,
    OlderFormatError,
    StorageError,
    UsageError,
)
from ralm.exchange import exchange
from ralm.version import __version__
from ralm.work import ENCODED, PARTIAL, UNFINISHED, at_work, is_work_folder, write_whole

MANIFEST: Final = "manifest.json"
_NEW: Final = "new"
_OLD: Final = "old"
_FINISHED: Final = "finished"
_BLOCK_BYTES: Final = 1 << 20
_BLOCKS_SAMPLED: Final = 64
_FILE_NAME: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*", re.ASCII)
_Opened = TypeVar("_Opened")


class FileEntry(BaseModel):
    """What the manifest knows of one file: its size, a hash of it or of samples (`file_checksum`), and SHA-256 of all
    of it; folders of earlier versions lack the last."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    checksum: str
    sha256: str | None = None


class Manifest(BaseModel):
    """What a folder is: its kind and format, the settings it was made with, what it counts, the files it holds.

    `checksum` is that of all the rest (`manifest_checksum`); folders of earlier versions lack it.
    """

    model_config = ConfigDict(frozen=True)

    program: Literal["ralm"] = "ralm"
    kind: str
    format_version: int
    ralm_version: str
    created: str
    settings: dict[str, JsonValue]
    counts: dict[str, int]
    files: dict[str, FileEntry]
    checksum: str | None = None

    @field_validator("files")
    @classmethod
    def _are_inside(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        if not all(_FILE_NAME.fullmatch(name) for name in files):
            raise ValueError("a file outside the folder")
        return files


@contextmanager
def new_folder(path: Path, *, kind: str, force: bool, also: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that takes its place when the block ends well.

    Where the block fails or is interrupted the temporary folder is removed and whatever stood at `path` stays. With
    `force` an older folder that ralm wrote is replaced, if it is of this `kind` and holds nothing but the files of its
    manifest and those of `also`; anything else at `path` is never touched. The two exchange their names in one step
    where the system can; where it cannot, one who is killed between two steps leaves both to `recover`. What a killed
    process left is removed first.

    Raises FolderExistsError and UsageError before any work is done (`check_output`), FolderExistsError where another
    process is at it, and StorageError where the disk is full. Where something came to be at `path` in the meantime that
    may not be replaced, it stays: FolderExistsError says under which name the new folder is.
    """
    path = output_path(path)
    with storage_errors(path):
        check_output(path, kind=kind, force=force, also=also)
        path.parent.mkdir(parents=True, exist_ok=True)
        with at_work(PARTIAL, path) as work:
            _recover(path, work)
            try:
                (work / _NEW).mkdir()
                yield work / _NEW
                _sync(work / _NEW)
                _take_place(path, work, kind=kind, force=force, also=also)
            finally:
                _recover(path, work)


def output_path(path: Path) -> Path:
    """Where an output comes to be, with links followed: what a link names is replaced, and the link goes on working.

    Raises UsageError where a folder at that place would be replaced from inside.
    """
    try:
        resolved = path.resolve()
    except RuntimeError:
        raise UsageError(f"{path} is a link that leads to itself; choose another output.") from None
    here = Path.cwd()
    if resolved == here or resolved in here.parents:
        raise UsageError(f"{str(path)!r} is the folder that you are in, or one above it; choose another output.")
    return resolved


def check_output(path: Path, *, kind: str, force: bool, also: Sequence[str] = ()) -> None:
    """Raise FolderExistsError where `path` is taken and `force` does not say to replace what ralm wrote there, or where
    another process is writing it; UsageError where it holds what `force` does not replace.

    `new_folder` checks this too; ask before hours of work that would end there. Removes what a killed process left.
    """
    path = output_path(path)
    recover(path)
    if not _stands(path):
        return
    if not force:
        raise FolderExistsError(
            f"{path} already exists and is kept; choose another output, or replace it with --force."
        )
    if reason := _kept_because(path, kind, also):
        raise UsageError(f"{path} is kept: {reason}.")


def recover(path: Path) -> None:
    """Bring back or remove what a process left that was killed while it wrote `path`.

    Raises FolderExistsError where another process is writing it, UsageError where something else is in the way.
    """
    if PARTIAL.beside(path).exists():
        with at_work(PARTIAL, path) as work:
            _recover(path, work)


def check_output_file(path: Path, force: bool) -> None:
    """Raise FolderExistsError where a file is there and `force` does not say to replace it.

    Removes what a killed process left.
    """
    recover(path.resolve())
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file to write.")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is a device or the like; name a file to write.")
    if path.exists() and not force:
        raise FolderExistsError(f"{path} already exists and is kept; choose another name, or replace it with --force.")


@contextmanager
def replaced_file(path: Path) -> Iterator[TextIO]:
    """Yield a UTF-8 stream whose file takes the place of `path` when the block ends well, and is removed otherwise.

    Where `path` is a link, what it names is replaced. Raises FolderExistsError where another process is writing it.
    """
    path = path.resolve()
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with at_work(PARTIAL, path) as work:
            try:
                with (work / _NEW).open("w", encoding="utf-8") as stream:
                    yield stream
                    stream.flush()
                    os.fsync(stream.fileno())
                (work / _NEW).replace(path)
            finally:
                PARTIAL.clear(work)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into one sentence about `path`."""
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


def write_manifest(
    folder: Path,
    *,
    kind: str,
    format_version: int,
    settings: dict[str, JsonValue],
    counts: dict[str, int],
) -> Manifest:
    """Describe every file that lies in `folder` now; call it last."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    manifest = Manifest(
        kind=kind,
        format_version=format_version,
        ralm_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        settings=settings,
        counts=counts,
        files={file.relative_to(folder).as_posix(): _entry(file) for file in files},
    )
    checksum = manifest_checksum(json.loads(manifest.model_dump_json()))
    manifest = manifest.model_copy(update={"checksum": checksum})
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return manifest


def manifest_checksum(content: dict[str, JsonValue]) -> str:
    """SHA-256 of what a manifest says, as JSON in one fixed way of writing, but for the checksum itself."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path, *, kind: str, format_version: int, oldest: int = 1) -> Manifest:
    """The manifest of a folder whose files are as they were written, in a format from `oldest` to `format_version`.

    Raises NotAFolderOfThisKindError, OlderFormatError, NewerFormatError or DamagedFolderError, each with one sentence.
    """
    if not folder.exists():
        _bring_back(folder)
    manifest, content = _parsed(folder, kind)
    if manifest.kind != kind:
        raise NotAFolderOfThisKindError(f"{folder} is a ralm {manifest.kind}, not a ralm {kind}.")
    if manifest.format_version > format_version:
        raise NewerFormatError(
            f"{folder} has format {manifest.format_version}, written by ralm {manifest.ralm_version}; this is ralm "
            f"{__version__}, which reads up to format {format_version}. Upgrade ralm, or build the {kind} again."
        )
    if manifest.format_version < oldest:
        raise OlderFormatError(
            f"{folder} has format {manifest.format_version}, written by ralm {manifest.ralm_version}; this is ralm "
            f"{__version__}, which reads format {oldest} and later. Build the {kind} again."
        )
    _check_itself(folder, manifest, content)
    _check_files(folder, manifest)
    return manifest


def kind_of(folder: Path) -> str:
    """What kind of folder this is, by its manifest; the kinds are named by those who write them.

    Raises NotAFolderOfThisKindError or DamagedFolderError.
    """
    return _parsed(folder, "folder")[0].kind


def read_every_byte(folder: Path, kind: str) -> tuple[list[str], list[str]]:
    """What is damaged, a few words a file, and which files could be compared by samples alone: their manifest was
    written before it held checksums of whole files.

    Raises NotAFolderOfThisKindError, and DamagedFolderError where the manifest itself is damaged.
    """
    manifest, content = _parsed(folder, kind)
    _check_itself(folder, manifest, content)
    damaged = {name: _damage(folder / name, entry, whole=True) for name, entry in manifest.files.items()}
    sampled = [name for name, entry in manifest.files.items() if entry.sha256 is None and entry.bytes > _whole_bytes()]
    return [f"{name} {what}" for name, what in damaged.items() if what], sampled


def opened_at_once(folder: Path, open_all: Callable[[], _Opened]) -> _Opened:
    """What `open_all` makes of the files of a folder, all of one and the same: where another folder took its place in
    the meantime, that one is opened."""
    while True:
        before = _identity(folder)
        try:
            opened = open_all()
        except (FolderError, OSError):
            if _identity(folder) == before:
                raise
        else:
            if _identity(folder) == before:
                return opened


class HeldFile:
    """A file held open, so that it can be read by `path` later, and is the same then, whatever took its place.

    Raises FileNotFoundError.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        self.path = Path(f"/dev/fd/{descriptor}")
        """Names the open file, in this process and in those forked from it."""


def file_checksum(file: Path) -> str:
    """SHA-256 of the whole file up to 64 MiB; of its size and 64 blocks of 1 MiB spread over it above that.

    Opening an index of many gigabytes must not read all of it; truncation and most damage still show.
    """
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        if size <= _whole_bytes():
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
        else:
            for i in range(_BLOCKS_SAMPLED):
                stream.seek(i * (size - _BLOCK_BYTES) // (_BLOCKS_SAMPLED - 1))
                digest.update(stream.read(_BLOCK_BYTES))
    return digest.hexdigest()


def whole_checksum(file: Path) -> str:
    """SHA-256 of every byte of a file, as `sha256sum` gives it."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _whole_bytes() -> int:
    return _BLOCK_BYTES * _BLOCKS_SAMPLED


def _entry(file: Path) -> FileEntry:
    return FileEntry(bytes=file.stat().st_size, checksum=file_checksum(file), sha256=whole_checksum(file))


def _parsed(folder: Path, kind: str) -> tuple[Manifest, dict[str, JsonValue]]:
    """The manifest of a folder, and the JSON that it was read from."""
    file = folder / MANIFEST
    if not file.is_file():
        what = "does not exist" if not folder.exists() else "is a file" if folder.is_file() else f"has no {MANIFEST}"
        raise NotAFolderOfThisKindError(f"{folder} is not a ralm {kind}: it {what}.")
    try:
        content = json.loads(file.read_bytes())
        return Manifest.model_validate(content), content
    except (ValueError, RecursionError) as error:  # ValidationError among them, and bytes that are no text
        errors = error.error_count() if isinstance(error, ValidationError) else 1
        raise DamagedFolderError(
            f"{file} is damaged or not a ralm manifest ({errors} errors); build the {kind} again."
        ) from error


def _check_itself(folder: Path, manifest: Manifest, content: dict[str, JsonValue]) -> None:
    """Check that a manifest says what it said when it was written, unless it is of a version that could not tell."""
    could_tell = manifest.checksum is not None or any(entry.sha256 is not None for entry in manifest.files.values())
    if could_tell and manifest.checksum != manifest_checksum(content):
        raise DamagedFolderError(
            f"{folder} is damaged: {MANIFEST} was altered since it was written; {_remedy(manifest)}"
        )


def _identity(folder: Path) -> tuple[int, ...] | None:
    """What tells a folder from another one that took its place: its manifest is another file."""
    try:
        found = (folder / MANIFEST).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _sync(folder: Path) -> None:
    for file in [*folder.rglob("*"), folder]:
        _sync_one(file)


def _sync_one(file: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stands(path: Path) -> bool:
    """Whether there is anything but an empty folder."""
    if path.is_dir():
        return any(path.iterdir())
    return path.exists() or path.is_symlink()


def _kept_because(path: Path, kind: str, also: Sequence[str]) -> str:
    """Why a folder is not replaced by one of this kind; empty where it is ours and nothing else is in it."""
    try:
        written = _Written.model_validate_json((path / MANIFEST).read_bytes())
    except (OSError, ValidationError):
        return f"it was not written by ralm, whose folders have a {MANIFEST} that says so"
    if written.kind != kind:
        return f"it is a ralm {written.kind}, and this is a ralm {kind}"
    known = {MANIFEST, *written.files, *also}
    strange = next((file for file in _files(path) if file not in known), None)
    return "" if strange is None else f"ralm did not write {strange}, which is in it; move that elsewhere first"


def _files(folder: Path) -> Iterator[str]:
    """Everything in a folder but folders, by its path there; not what a killed process left of a file."""
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() or not entry.is_dir():
            yield entry.name
        elif not is_work_folder(entry):
            yield from (f"{entry.name}/{inner}" for inner in _files(entry))


def _bring_back(path: Path) -> None:
    """Recover a folder that is out of sight, its writer having been killed, where that can be done."""
    work = PARTIAL.beside(path.resolve())
    if (work / _OLD).exists() and is_work_folder(work):
        with suppress(FolderExistsError, OSError):
            recover(path.resolve())


def _take_place(path: Path, work: Path, *, kind: str, force: bool, also: Sequence[str]) -> None:
    """Move a finished folder to its place, and remove what others kept beside it until then."""
    held = [other for other in (UNFINISHED, ENCODED) if other.is_held_here(path)]
    record = _Finished(manifest=_hash(work / _NEW), of_no_use=[other.name for other in held])
    write_whole(work / _FINISHED, record.model_dump_json())
    try:
        if _stands(path) and force and not _kept_because(path, kind, also):
            _replace(path, work)
        else:
            (work / _NEW).rename(path)  # takes a free name or that of an empty folder, and nothing else
    except OSError as error:
        elsewhere = _free_name(path)
        (work / _NEW).rename(elsewhere)
        raise FolderExistsError(
            f"{path} could not be replaced ({error.strerror}); what stands there now is kept, and what was made is in "
            f"{elsewhere}."
        ) from error
    _sync_one(path.parent)
    for other in held:
        other.clear(other.beside(path))


def _replace(path: Path, work: Path) -> None:
    """Put the finished folder in the place of an older one."""
    if exchange(work / _NEW, path):
        return
    path.rename(work / _OLD)
    try:
        (work / _NEW).rename(path)
    except BaseException:
        if not _stands(path):
            (work / _OLD).rename(path)
        raise


def _recover(path: Path, work: Path) -> None:
    """Leave what a killed process had finished at `path`, and nothing else of it."""
    if (work / _OLD).exists() and not _stands(path):
        (work / (_NEW if (work / _NEW).exists() else _OLD)).rename(path)
    try:
        finished = _Finished.model_validate_json((work / _FINISHED).read_bytes())
    except (OSError, ValidationError):
        finished = None
    if finished and finished.manifest == _hash(path):
        for kind in (UNFINISHED, ENCODED):
            if kind.name in finished.of_no_use and kind.beside(path).exists():
                with suppress(FolderExistsError, UsageError), at_work(kind, path) as other:
                    kind.clear(other)
    PARTIAL.empty(work)


class _Finished(BaseModel):
    """What is written down before a folder takes its place: what its manifest is, and which work ends with it."""

    manifest: str
    of_no_use: list[str]


class _Written(BaseModel):
    """What of a manifest says that ralm wrote it, whatever else a version of ralm says there or finds damaged."""

    program: Literal["ralm"] = "ralm"
    kind: str
    format_version: int
    ralm_version: str
    settings: dict[str, Any]
    counts: dict[str, Any]
    files: dict[str, Any]


def _hash(folder: Path) -> str:
    """A hash of a manifest; empty where there is none."""
    file = folder / MANIFEST
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.finished{suffix}") for suffix in chain([""], map("-{}".format, count(2))))
    return next(name for name in names if not name.exists() and not name.is_symlink())


def _check_files(folder: Path, manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        if what := _damage(folder / name, entry):
            raise DamagedFolderError(f"{folder} is damaged: {name} {what}; {_remedy(manifest)}")


def _damage(file: Path, entry: FileEntry, *, whole: bool = False) -> str:
    """What is wrong with a file, empty where nothing is; `whole`: every byte of it is compared."""
    if not file.is_file():
        return "is missing"
    size = file.stat().st_size
    if size != entry.bytes:
        return f"has {size:,} bytes where its manifest says {entry.bytes:,}"
    same = whole_checksum(file) == entry.sha256 if whole and entry.sha256 else file_checksum(file) == entry.checksum
    return "" if same else "was altered since it was written"


def _remedy(manifest: Manifest) -> str:
    return f"build the {manifest.kind} again or restore it from a copy."
