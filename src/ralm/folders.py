"""Folders that ralm writes and reads: an index, a run.

Knows how such a folder comes to be (under a temporary name, synced, renamed: never half of one under the final name)
and how it is checked when opened (its manifest). Knows nothing of what the files mean.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from ralm.errors import (
    DamagedFolderError,
    FolderExistsError,
    NewerFormatError,
    NotAFolderOfThisKindError,
    OlderFormatError,
    StorageError,
    UsageError,
)
from ralm.version import __version__

MANIFEST: Final = "manifest.json"
_BLOCK_BYTES: Final = 1 << 20
_BLOCKS_SAMPLED: Final = 64


class FileEntry(BaseModel):
    """What the manifest knows of one file: its size, and a hash of it (see `_checksum`)."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    checksum: str


class Manifest(BaseModel):
    """What a folder is: its kind and format, the settings it was made with, what it counts, the files it holds."""

    model_config = ConfigDict(frozen=True)

    kind: str
    format_version: int
    ralm_version: str
    created: str
    settings: dict[str, JsonValue]
    counts: dict[str, int]
    files: dict[str, FileEntry]


@contextmanager
def new_folder(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that takes its place when the block ends well.

    Where the block fails or is interrupted the temporary folder is removed and whatever stood at `path` stays. With
    `force` an older folder that ralm wrote is replaced; anything else at `path` is never touched. Leftovers of a
    killed process are swept away first.

    Raises FolderExistsError before any work is done, and StorageError where the disk is full.
    """
    check_output(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep_leftovers(path)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    with storage_errors(path):
        partial.mkdir()
        try:
            yield partial
            _sync(partial)
            _move_into_place(partial, path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def check_output(path: Path, force: bool) -> None:
    """Raise FolderExistsError where `path` is taken and `force` does not say to replace what ralm wrote there.

    `new_folder` checks this too; ask before hours of work that would end there.
    """
    if not path.exists() and not path.is_symlink():
        return
    if path.is_dir() and not any(path.iterdir()):
        return
    if not force:
        raise FolderExistsError(
            f"{path} already exists and is kept; choose another output, or replace it with --force."
        )
    if not (path / MANIFEST).is_file():
        raise UsageError(f"{path} was not written by ralm (no {MANIFEST} in it), so --force does not replace it.")


def check_output_file(path: Path, force: bool) -> None:
    """Raise FolderExistsError where a file is there and `force` does not say to replace it."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file to write.")
    if path.exists() and not force:
        raise FolderExistsError(f"{path} already exists and is kept; choose another name, or replace it with --force.")


@contextmanager
def replaced_file(path: Path) -> Iterator[TextIO]:
    """Yield a UTF-8 stream whose file takes the place of `path` when the block ends well, and is removed otherwise."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("w", encoding="utf-8") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


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
        files={
            file.relative_to(folder).as_posix(): FileEntry(bytes=file.stat().st_size, checksum=_checksum(file))
            for file in files
        },
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return manifest


def read_manifest(folder: Path, *, kind: str, format_version: int, oldest: int = 1) -> Manifest:
    """The manifest of a folder whose files are as they were written, in a format from `oldest` to `format_version`.

    Raises NotAFolderOfThisKindError, OlderFormatError, NewerFormatError or DamagedFolderError, each with one sentence.
    """
    file = folder / MANIFEST
    if not file.is_file():
        what = "does not exist" if not folder.exists() else "is a file" if folder.is_file() else f"has no {MANIFEST}"
        raise NotAFolderOfThisKindError(f"{folder} is not a ralm {kind}: it {what}.")
    try:
        manifest = Manifest.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise DamagedFolderError(
            f"{file} is damaged or not a ralm manifest ({error.error_count()} errors); build the {kind} again."
        ) from error
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
    _check_files(folder, manifest)
    return manifest


def _sweep_leftovers(path: Path) -> None:
    for leftover in path.parent.glob(f".{path.name}.partial-*"):
        process = leftover.name.rpartition("-")[2]
        if process.isdigit() and not _is_running(int(process)):
            shutil.rmtree(leftover, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process != os.getpid()


def _sync(folder: Path) -> None:
    for file in [*folder.rglob("*"), folder]:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move_into_place(partial: Path, path: Path) -> None:
    replaced = path.with_name(f"{partial.name}-replaced")
    if path.exists():
        path.rename(replaced)
    partial.rename(path)
    shutil.rmtree(replaced, ignore_errors=True)


def _check_files(folder: Path, manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        file = folder / name
        remedy = f"build the {manifest.kind} again or restore it from a copy."
        if not file.is_file():
            raise DamagedFolderError(f"{folder} is damaged: {name} is missing; {remedy}")
        size = file.stat().st_size
        if size != entry.bytes:
            raise DamagedFolderError(
                f"{folder} is damaged: {name} has {size:,} bytes where its manifest says {entry.bytes:,}; {remedy}"
            )
        if _checksum(file) != entry.checksum:
            raise DamagedFolderError(f"{folder} is damaged: {name} was altered since it was written; {remedy}")


def _checksum(file: Path) -> str:
    """SHA-256 of the whole file up to 64 MiB; of its size and 64 blocks of 1 MiB spread over it above that.

    Opening an index of many gigabytes must not read all of it; truncation and most damage still show.
    """
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        if size <= _BLOCK_BYTES * _BLOCKS_SAMPLED:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
        else:
            for i in range(_BLOCKS_SAMPLED):
                stream.seek(i * (size - _BLOCK_BYTES) // (_BLOCKS_SAMPLED - 1))
                digest.update(stream.read(_BLOCK_BYTES))
    return digest.hexdigest()
