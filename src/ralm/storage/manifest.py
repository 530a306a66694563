"""The manifest of a folder that ralm writes: what the folder is, its files, and checks that they are unchanged."""

import hashlib
import json
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, field_validator

from ralm import __version__
from ralm.errors import DamagedFolderError, FolderError
from ralm.storage.outputs import MANIFEST, FolderKind, restore

_READ_BYTES: Final = 1 << 26
"""Opening a folder reads files up to this size; an index of many gigabytes must open at once."""
_FILE_NAME: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*", re.ASCII)
_Opened = TypeVar("_Opened")


class FileEntry(BaseModel):
    """What the manifest says about a file: its size and the SHA-256 of its content."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    sha256: str


class Manifest(BaseModel):
    """What a folder is: kind, format, settings, counts, files, and a `checksum` over all else (`manifest_checksum`)."""

    model_config = ConfigDict(frozen=True)

    program: Literal["ralm"] = "ralm"
    kind: str
    format_version: int
    ralm_version: str
    created: str
    settings: dict[str, JsonValue]
    counts: dict[str, int]
    files: dict[str, FileEntry]
    checksum: str

    @field_validator("files")
    @classmethod
    def _check_names(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        if not all(_FILE_NAME.fullmatch(name) for name in files):
            raise ValueError("a file outside the folder")
        return files


def write_manifest(
    folder: Path,
    *,
    kind: FolderKind,
    settings: dict[str, JsonValue],
    counts: dict[str, int],
    files: dict[str, FileEntry] | None = None,
) -> Manifest:
    """Write the manifest of `folder` with every file that is in it now, or with the entries `files`; call it last."""
    manifest = Manifest(
        kind=kind.name,
        format_version=kind.version,
        ralm_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        settings=settings,
        counts=counts,
        files=file_entries(folder) if files is None else files,
        checksum="",
    )
    checksum = manifest_checksum(json.loads(manifest.model_dump_json()))
    manifest = manifest.model_copy(update={"checksum": checksum})
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return manifest


def file_entries(folder: Path, root: Path | None = None) -> dict[str, FileEntry]:
    """Return the entries of all files in a folder, by their paths in it, or in `root`."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {
        file.relative_to(root or folder).as_posix(): FileEntry(bytes=file.stat().st_size, sha256=whole_checksum(file))
        for file in files
    }


def manifest_checksum(content: dict[str, JsonValue]) -> str:
    """Return the SHA-256 of the content of a manifest as canonical JSON, without the checksum itself."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path, *, kind: FolderKind) -> Manifest:
    """Return the manifest of a folder of this kind after comparing its files with it.

    The sizes of all files are compared, and the SHA-256 of those up to 64 MiB; `check_every_byte` reads all of them.
    Raises FolderError or DamagedFolderError.
    """
    manifest, content = _parse(folder, kind.name)
    if manifest.kind != kind.name:
        raise FolderError(f"{folder} is a ralm {manifest.kind}, not a ralm {kind}.")
    if manifest.format_version != kind.version:
        raise FolderError(
            f"{folder} has format {manifest.format_version}, written by ralm {manifest.ralm_version}; this is ralm "
            f"{__version__}, which reads format {kind.version}: build the {kind} again, or use the other ralm."
        )
    _check_itself(folder, manifest, content)
    for name, entry in manifest.files.items():
        if fault := _fault(folder / name, entry, reads=entry.bytes <= _READ_BYTES):
            raise DamagedFolderError(f"{folder} is damaged: {name} {fault}; {_remedy(manifest)}")
    return manifest


def is_current(folder: Path, manifest: Manifest) -> bool:
    """Return whether a folder still has this manifest; raises FolderError or DamagedFolderError."""
    return _parse(folder, manifest.kind)[0] == manifest


def kind_of(folder: Path) -> str:
    """Return the name of a folder's kind, from its manifest; raises FolderError or DamagedFolderError."""
    return _parse(folder, "folder")[0].kind


def check_every_byte(folder: Path) -> list[str]:
    """Compare every byte of a folder with its manifest; return the damaged files, with a few words each."""
    manifest, content = _parse(folder, "folder")
    _check_itself(folder, manifest, content)
    faults = {name: _fault(folder / name, entry, reads=True) for name, entry in manifest.files.items()}
    return [f"{name} {fault}" for name, fault in faults.items() if fault]


def open_consistently(folder: Path, open_all: Callable[[], _Opened]) -> _Opened:
    """Open the files of a folder from one version of it, the new one if it is replaced meanwhile."""
    while True:
        before = identity(folder)
        try:
            opened = open_all()
        except (FolderError, OSError):
            if identity(folder) == before:
                raise
        else:
            if identity(folder) == before:
                return opened


def whole_checksum(file: Path) -> str:
    """Return the SHA-256 of every byte of a file, as `sha256sum` prints it."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _parse(folder: Path, kind: str) -> tuple[Manifest, dict[str, JsonValue]]:
    if not folder.exists():
        restore(folder)
    file = folder / MANIFEST
    if not file.is_file():
        fault = "does not exist" if not folder.exists() else "is a file" if folder.is_file() else f"has no {MANIFEST}"
        raise FolderError(f"{folder} is not a ralm {kind}: it {fault}.")
    try:
        content = json.loads(file.read_bytes())
        return Manifest.model_validate(content), content
    except (ValueError, RecursionError) as error:  # includes ValidationError and bytes that are not UTF-8
        errors = error.error_count() if isinstance(error, ValidationError) else 1
        raise DamagedFolderError(
            f"{file} is damaged or not a ralm manifest ({errors} errors); build the {kind} again."
        ) from error


def _check_itself(folder: Path, manifest: Manifest, content: dict[str, JsonValue]) -> None:
    if manifest.checksum != manifest_checksum(content):
        raise DamagedFolderError(
            f"{folder} is damaged: {MANIFEST} was altered since it was written; {_remedy(manifest)}"
        )


def identity(folder: Path) -> tuple[int, ...] | None:
    """Return what tells a folder from one that replaced it: the file of the manifest; None if there is none."""
    try:
        facts = (folder / MANIFEST).stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def _fault(file: Path, entry: FileEntry, *, reads: bool) -> str:
    """Return how a file differs from its entry, empty if it does not; without `reads` only in its size."""
    if not file.is_file():
        return "is missing"
    size = file.stat().st_size
    if size != entry.bytes:
        return f"has {size:,} bytes where its manifest says {entry.bytes:,}"
    return "was altered since it was written" if reads and whole_checksum(file) != entry.sha256 else ""


def _remedy(manifest: Manifest) -> str:
    return f"build the {manifest.kind} again or restore it from a copy."


def environment() -> dict[str, JsonValue]:
    """Return the versions that figures may depend on; None for a package that is not installed."""
    packages = "torch transformers tokenizers numpy numba pyarrow sentence-transformers faiss-cpu"
    versions: dict[str, JsonValue] = dict.fromkeys(packages.split())
    for package in versions:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        **versions,
    }
