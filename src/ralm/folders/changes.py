"""How a folder that ralm wrote changes in its place: files come and go, and its manifest is replaced in one step.

The files that come are put into the folder first, under names that its manifest does not have; then the new manifest
takes the place of the old one; then the files go that it no longer names. Whoever is killed on the way leaves a record
of these files, so that those which the manifest does not name can be removed. Knows nothing of what the files mean.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from ralm.errors import FolderExistsError
from ralm.folders.work import write_whole

MANIFEST: Final = "manifest.json"
RECORD: Final = "change"


class _Change(BaseModel):
    """The files that come and go, by their names in the folder."""

    files: list[str]


class _Named(BaseModel):
    """The files that a manifest names."""

    files: dict[str, Any]


def make_change(folder: Path, new: Path, work: Path) -> None:
    """Have the files of `new` in `folder`, and its manifest, which names all files, in the place of the older one.

    Raises FolderExistsError where something that ralm did not write has the name of a file that comes.
    """
    before, after = _named(folder), _named(new)
    come = sorted(after - before)
    for name in come:
        if os.path.lexists(folder / name):
            raise FolderExistsError(f"{folder / name} is in the way, and ralm did not write it; move it elsewhere.")
    write_whole(work / RECORD, _Change(files=sorted(before ^ after)).model_dump_json())
    for name in come:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (new / name).rename(folder / name)
        _sync_parents(folder, name)
    (new / MANIFEST).replace(folder / MANIFEST)
    sync_one(folder)
    end_change(folder, work)


def end_change(folder: Path, work: Path) -> None:
    """Remove the files of a change, if one was begun, that the manifest of the folder does not name."""
    try:
        change = _Change.model_validate_json((work / RECORD).read_bytes())
        named = _named(folder)
    except (OSError, ValidationError):
        return
    for name in change.files:
        if name not in named:
            (folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # until a folder is not empty
                for parent in Path(name).parents[:-1]:
                    (folder / parent).rmdir()


def sync(folder: Path) -> None:
    """Have a folder on the disk, with everything in it."""
    for file in [*folder.rglob("*"), folder]:
        sync_one(file)


def sync_one(file: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_parents(folder: Path, name: str) -> None:
    for parent in Path(name).parents:
        sync_one(folder / parent)


def _named(folder: Path) -> set[str]:
    return set(_Named.model_validate_json((folder / MANIFEST).read_bytes()).files)
