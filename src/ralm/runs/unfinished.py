"""An unfinished run: what it has scored is kept beside its folder, so that a killed run can be resumed.

`RUN.unfinished/` holds the configuration of the run, and for each model a journal of what it scored. A training keeps
its checkpoints there.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.runs.run import to_json
from ralm.storage.atomic import storage_errors, write_atomically
from ralm.storage.outputs import output_path
from ralm.storage.work import UNFINISHED_RUN, work_folder

CONFIG: Final = "config.json"
JOURNAL: Final = ".journal"
_IDENTIFIED_BY: Final = {"path": "sha256", "retrieved": "sha256", "index": "fingerprint"}
"""Settings that name a file or folder, each with the one beside it that is a hash of all its content. A model keeps its
name: the hash of its weights reads only some of them."""
_HASH: Final = re.compile("[0-9a-f]{16,64}")
_KEPT: Final = (f"*{JOURNAL}", "checkpoint-*", "held-out.npz")
"""Files that are worth resuming from, if they are not empty."""


@contextmanager
def unfinished_run(out: Path, config: dict[str, JsonValue], *, force: bool) -> Iterator[Path]:
    """Yield the folder beside `out` in which the run keeps its work; reuses one of an earlier run with the same
    settings.

    The folder is removed if the block succeeds, or fails before anything was kept; otherwise it stays. Raises
    UsageError if a run with other settings was begun there and `force` is not set, or if the folder is not ours, and
    FolderExistsError if another process is using it.
    """
    out = output_path(out)
    with storage_errors(UNFINISHED_RUN.folder_of(out)), work_folder(UNFINISHED_RUN, out) as folder:
        _begin_or_go_on(folder, config, force)
        try:
            yield folder
        except BaseException:
            if not any(file.stat().st_size for pattern in _KEPT for file in folder.glob(pattern)):
                UNFINISHED_RUN.clear(folder)
            raise
        UNFINISHED_RUN.clear(folder)


def _begin_or_go_on(folder: Path, config: dict[str, JsonValue], force: bool) -> None:
    """Check that a run begun earlier has these settings, or write them for a new run."""
    if not is_begun(folder, config, "a run", force=force):
        UNFINISHED_RUN.empty(folder)
        write_config(folder, config)


def write_config(folder: Path, config: dict[str, JsonValue]) -> None:
    """Record the settings of what is begun in a work folder."""
    write_atomically(folder / CONFIG, to_json(config, indent=2))


def is_begun(folder: Path, config: dict[str, JsonValue], what: str, *, force: bool) -> bool:
    """Whether something was begun in a work folder with these settings; with `force`, other settings do not count.

    Raises UsageError if it was begun with other settings and `force` is not set.
    """
    path = folder / CONFIG
    if not path.exists():
        return False
    difference = _difference(path, json.loads(to_json(config)))
    if difference and not force:
        raise UsageError(
            f"{folder} is {what} begun with other settings ({difference}): give those again to resume; to start over, "
            "remove that folder, or give `force=True`."
        )
    return not difference


def _difference(begun: Path, wanted: JsonValue) -> str:
    """The first setting that differs from those in a file, its name and both values; empty if none does."""
    try:
        before = flat(_without_names(json.loads(begun.read_bytes())))
    except (OSError, ValueError, RecursionError):
        return f"{CONFIG} is damaged"
    now = flat(_without_names(wanted))
    name = first_difference(before, now)
    return "" if name is None else f"{name} {before.get(name)} there, {now.get(name)} here"


def _without_names(value: JsonValue) -> JsonValue:
    """Settings without the names of what is identified by its content: a file may have been moved, or be named another
    way."""
    if not isinstance(value, dict):
        return value
    named = {name for name, content in _IDENTIFIED_BY.items() if _HASH.fullmatch(str(value.get(content)))}
    return {name: _without_names(one) for name, one in value.items() if name not in named}


def first_difference(one: Mapping[str, JsonValue], other: Mapping[str, JsonValue]) -> str | None:
    """The name of the first of these settings that differs; None if none does."""
    return next((name for name in (*one, *other) if one.get(name) != other.get(name)), None)


def flat(value: JsonValue, name: str = "") -> dict[str, JsonValue]:
    """Nested settings as a flat dictionary with dotted names."""
    if not isinstance(value, dict):
        return {name: value}
    return {
        key: item for part, inner in value.items() for key, item in flat(inner, f"{name}.{part}".strip(".")).items()
    }
