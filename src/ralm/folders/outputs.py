"""How a folder or a file that ralm writes comes to its place: under a temporary name, synced, renamed.

There is never half of one under the final name, nothing is replaced but what is provably ours, and what a killed
process left is brought back or removed. Knows nothing of what the files mean, and of a manifest only whose it is.
"""

import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, Literal, TextIO

from pydantic import BaseModel, ValidationError

from ralm.errors import FolderExistsError, StorageError, UsageError
from ralm.folders.changes import MANIFEST as MANIFEST, end_change, make_change, sync, sync_one
from ralm.folders.exchange import exchange
from ralm.folders.work import ENCODED, PARTIAL, UNFINISHED, WorkKind, at_work, is_work_folder, write_whole

_NEW: Final = "new"
_OLD: Final = "old"
_FINISHED: Final = "finished"


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
                sync(work / _NEW)
                _take_place(path, work, kind=kind, force=force, also=also)
            finally:
                _recover(path, work)


@contextmanager
def changed_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside a folder that ralm wrote, for files that are to be added to it.

    When the block ends well they are moved to that folder, and the manifest among them, which must name every file,
    takes the place of the older one in one step. Files that it does not name are removed then; whoever has them open
    keeps them. Where the block fails or is interrupted the folder stays as it was. What a killed process left is
    removed first.

    Raises FolderExistsError where another process is writing the folder, StorageError where the disk is full.
    """
    path = path.resolve()
    with storage_errors(path), at_work(PARTIAL, path) as work:
        _recover(path, work)
        try:
            (work / _NEW).mkdir()
            yield work / _NEW
            sync(work / _NEW)
            held = _note_finished(path, work)
            make_change(path, work / _NEW, work)
            for other in held:
                other.clear(other.beside(path))
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


def bring_back(path: Path) -> None:
    """Recover a folder that is out of sight, its writer having been killed, where that can be done."""
    work = PARTIAL.beside(path.resolve())
    if (work / _OLD).exists() and is_work_folder(work):
        with suppress(FolderExistsError, OSError):
            recover(path.resolve())


def _take_place(path: Path, work: Path, *, kind: str, force: bool, also: Sequence[str]) -> None:
    """Move a finished folder to its place, and remove what others kept beside it until then."""
    held = _note_finished(path, work)
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
    sync_one(path.parent)
    for other in held:
        other.clear(other.beside(path))


def _note_finished(path: Path, work: Path) -> list[WorkKind]:
    """Write down that a folder is finished, with what others kept beside it until now, which is of no use then."""
    held = [other for other in (UNFINISHED, ENCODED) if other.is_held_here(path)]
    record = _Finished(manifest=_hash(work / _NEW), of_no_use=[other.name for other in held])
    write_whole(work / _FINISHED, record.model_dump_json())
    return held


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
    end_change(path, work)
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
