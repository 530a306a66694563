"""Changes a folder of ralm in place: adds and removes files, and replaces the manifest in one step.

New files are moved into the folder first, under names that the old manifest does not use. Then the new manifest
replaces the old one. Then files that it no longer names are removed. A killed process leaves a record of these files,
so that those which the manifest does not name can be removed later. Knows nothing of what the files mean.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from ralm.errors import FolderExistsError
from ralm.folders.work import write_whole

MANIFEST: Final = "manifest.json"
RECORD: Final = "change"


class _Change(BaseModel):
    """The files that are added and removed, by their names in the folder."""

    files: list[str]


class _Named(BaseModel):
    """The files that a manifest names."""

    files: dict[str, Any]


def make_change(folder: Path, new: Path, work: Path) -> None:
    """Move the files of `new` into `folder` and replace the manifest; the new manifest names all files.

    Raises FolderExistsError if something that ralm did not write has the name of a new file.
    """
    before, after = _named(folder), _named(new)
    come = sorted(after - before)
    for name in come:
        if os.path.lexists(folder / name):
            raise FolderExistsError(f"{folder / name} is in the way, and ralm did not write it; move it elsewhere.")
    write_whole(work / RECORD, _Change(files=sorted(before ^ after)).model_dump_json())
    sync_one(work)  # a file must not survive a power failure without the record that names it
    for name in come:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (new / name).rename(folder / name)
    for parent in {folder / parent for name in come for parent in Path(name).parents}:
        sync_one(parent)
    (new / MANIFEST).replace(folder / MANIFEST)
    sync_one(folder)
    end_change(folder, work)


def end_change(folder: Path, work: Path) -> None:
    """Remove the files of an unfinished change, if any, that the manifest of the folder does not name."""
    try:
        change = _Change.model_validate_json((work / RECORD).read_bytes())
        named = _named(folder)
    except (OSError, ValidationError):
        return
    for name in change.files:
        if name not in named:
            (folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # stops at the first folder that is not empty
                for parent in Path(name).parents[:-1]:
                    (folder / parent).rmdir()


def link_file(file: Path, to: Path) -> None:
    """Give a file another name as well; a copy where the disk has no links."""
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


def _named(folder: Path) -> set[str]:
    return set(_Named.model_validate_json((folder / MANIFEST).read_bytes()).files)
