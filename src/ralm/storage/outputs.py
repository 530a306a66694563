"""Writes output folders and files atomically.

A new output is written in a work folder beside its place, `.NAME.new`, synced, then renamed, so the final name never
holds an incomplete one. What a killed process left is restored or removed. Only outputs that ralm wrote, as their
manifest shows, are replaced.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, TextIO

from ralm.errors import FolderExistsError, RalmError, UsageError
from ralm.storage.work import empty, is_held, remove, storage_errors, sync, sync_one, unfinished, work_folder

MANIFEST: Final = "manifest.json"
_NEW: Final = "new"
_OLD: Final = "old"
_ENDS: Final = "ends"
"""A file that says: once the new output has its place, the unfinished work beside it is over."""
_PAUSE: Final = 0.01


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of folder that ralm writes, such as "index" or "run", and the version of its format."""

    name: str
    version: int = 1

    def __str__(self) -> str:
        return self.name


@contextmanager
def new_folder(path: Path, *, kind: FolderKind, force: bool, also: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that is renamed to `path` when the block succeeds.

    If the block fails or is interrupted, the temporary folder is removed and `path` stays as it was. With `force`, an
    older folder that ralm wrote is replaced if it is of this `kind` and holds only the files of its manifest and those
    of `also`; anything else at `path` is never touched. What a killed process left is removed first, and in the end the
    unfinished work of this output, if this process holds it.

    Raises the errors of `check_output` before any work is done, FolderExistsError if another process writes the folder
    or something that may not be replaced appears there, and StorageError if the disk is full.
    """
    path = output_path(path)
    with storage_errors(path):
        check_output(path, kind=kind, force=force, also=also)
        path.parent.mkdir(parents=True, exist_ok=True)
        with work_folder(_work_of(path), path, sweep=partial(_recover, path)) as work:
            (work / _NEW).mkdir()
            yield work / _NEW
            sync(work / _NEW)
            if is_held(unfinished(path)):
                (work / _ENDS).touch()
            _move_into_place(path, work, replace=force and not _reason_to_keep(path, kind, also))
            sync_one(path.parent)


@contextmanager
def replaced_file(path: Path) -> Iterator[TextIO]:
    """Yield a UTF-8 stream to a temporary file that replaces `path`, or a link's target, if the block succeeds."""
    path = path.resolve()
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with work_folder(_work_of(path), path, sweep=empty) as work:
            with (work / _NEW).open("w", encoding="utf-8") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            (work / _NEW).replace(path)


def output_path(path: Path) -> Path:
    """Return the path of an output with links resolved; UsageError for the current folder or one of its parents."""
    try:
        resolved = path.resolve()
    except RuntimeError:
        raise UsageError(f"{path} is a link that leads to itself; choose another output.") from None
    here = Path.cwd()
    if resolved == here or resolved in here.parents:
        raise UsageError(f"{str(path)!r} is the current folder or one of its parents; choose another output.")
    return resolved


def check_output(path: Path, *, kind: FolderKind, force: bool, also: Sequence[str] = ()) -> None:
    """Raise FolderExistsError or UsageError if `path` may not be written: what `new_folder` checks, before the work."""
    path = output_path(path)
    recover(path)
    if not _is_taken(path):
        return
    if not force:
        raise FolderExistsError(
            f"{path} already exists and is kept; choose another output, or replace it with `force=True`."
        )
    if reason := _reason_to_keep(path, kind, also):
        raise UsageError(f"{path} is kept: {reason}.")


def recover(path: Path) -> None:
    """Restore or remove what a process left that was killed while it wrote `path`."""
    if _work_of(path).exists():
        with work_folder(_work_of(path), path, sweep=partial(_recover, path)):
            pass


def restore(path: Path) -> None:
    """Restore a folder that a killed process moved away while replacing it, or wait for the process that does it."""
    path = path.resolve()
    while (_work_of(path) / _OLD).exists() and not path.exists():
        try:
            recover(path)
        except FolderExistsError:
            time.sleep(_PAUSE)
        except (UsageError, OSError):
            return


def check_output_file(path: Path, force: bool) -> None:
    """Raise FolderExistsError or UsageError if a file may not be written; remove what a killed process left."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is {'a folder' if path.is_dir() else 'no regular file'}; name a file to write.")
    recover(path.resolve())
    if path.exists() and not force:
        raise FolderExistsError(
            f"{path} already exists and is kept; choose another name, or replace it with `force=True`."
        )


def _work_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _is_taken(path: Path) -> bool:
    """Return whether something other than an empty folder is at `path`."""
    return any(path.iterdir()) if path.is_dir() else os.path.lexists(path)


def _reason_to_keep(path: Path, kind: FolderKind, also: Sequence[str]) -> str:
    """Return why a folder may not be replaced by one of this kind; empty if it may."""
    if not (manifest := _manifest(path)):
        return f"it was not written by ralm, whose folders have a {MANIFEST} that says so"
    if manifest["kind"] != kind.name:
        return f"it is a ralm {manifest['kind']}, and this is a ralm {kind}"
    entries = (entry for entry in sorted(path.rglob("*")) if entry.is_symlink() or not entry.is_dir())
    files = (entry.relative_to(path).as_posix() for entry in entries)
    strange = next((file for file in files if file not in {MANIFEST, *manifest["files"], *also}), None)
    return "" if strange is None else f"ralm did not write {strange}, which is in it; move that elsewhere first"


def _manifest(folder: Path) -> dict[str, Any]:
    """Return what shows that ralm wrote a folder, even if its files are damaged; empty if ralm did not."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    is_ours = isinstance(manifest, dict) and manifest.get("program") == "ralm" and {"kind", "files"} <= manifest.keys()
    return manifest if is_ours and isinstance(manifest["files"], dict) else {}


def _move_into_place(path: Path, work: Path, *, replace: bool) -> None:
    """Move a finished folder to `path`, which goes into `work` if `replace`; `_recover` mends what is half done."""
    new, old = work / _NEW, work / _OLD
    try:
        if replace and _is_taken(path):
            path.rename(old)
        new.rename(path)  # succeeds only if `path` is free or an empty folder
    except OSError as error:
        names = (path.with_name(f"{path.name}.finished{suffix}") for suffix in chain([""], map("-{}".format, count(2))))
        elsewhere = next(name for name in names if not os.path.lexists(name))
        new.rename(elsewhere)
        raise FolderExistsError(
            f"{path} could not be replaced ({error.strerror}); what is there now is kept, and the new output is in "
            f"{elsewhere}."
        ) from error


def _recover(path: Path, work: Path) -> None:
    """Restore at `path` what a killed process had finished, and remove everything else that it left."""
    if (work / _OLD).exists() and not _is_taken(path):
        (work / (_NEW if (work / _NEW).exists() else _OLD)).rename(path)
    if (work / _ENDS).exists() and not (work / _NEW / MANIFEST).exists():
        _remove_unfinished(path)
    (work / _ENDS).unlink(missing_ok=True)  # first, since it ends nothing without the new output
    empty(work)


def _remove_unfinished(path: Path) -> None:
    """Remove the unfinished work of an output, unless another process holds it."""
    folder = unfinished(path)
    if is_held(folder):
        remove(folder)
    elif folder.exists():
        with suppress(RalmError), work_folder(folder, path):
            remove(folder)
