"""Runs the steps of recipes in order, or writes them as a shell script; a step whose result exists is skipped."""

import logging
import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from ralm.corpus.folder import HUB_PREFIX
from ralm.errors import FolderExistsError, InputError, RalmError
from ralm.recipes.folder import RecipeFolder
from ralm.recipes.inputs import STAND_IN_MODEL
from ralm.recipes.steps import Resource, Step
from ralm.storage import remote
from ralm.storage.outputs import recover

_HUB_SECONDS: Final = 10
_LOG: Final = logging.getLogger(__name__)


def run_steps(steps: Sequence[Step], folder: RecipeFolder, run: Callable[[list[str]], None]) -> None:
    """Run the steps, which are in order, unless their results exist; `run` executes a command line."""
    folder.begin()
    steps = folder.distinct_steps(steps)
    for number, step in enumerate(steps, 1):
        at = f"[{number}/{len(steps)}] {folder.path_of(step).name}"
        if folder.is_done(step):
            with suppress(FolderExistsError):  # another process is about to finish it
                recover(folder.path_of(step))
            _LOG.info("%s: done before", at)
            continue
        line = folder.command_line(step)
        _LOG.info("%s: %s", at, command_text(line))
        try:
            for resource in folder.inputs_of(step):
                folder.write_input(resource)
            run(line)
        except RalmError as error:
            error.args = (f"{at}: {error}",)
            raise


def command_text(line: Sequence[str]) -> str:
    """Return a command as one types it."""
    return f"ralm {shlex.join(line)}"


def script(steps: Sequence[Step], folder: RecipeFolder) -> Iterator[str]:
    """Yield the lines of a shell script that does what `run_steps` does; steps that are done are comments."""
    written: set[Resource] = set()
    for step in folder.distinct_steps(steps):
        line = command_text(folder.command_line(step))
        if folder.is_done(step):
            yield f"# done: {line}"
            continue
        for resource in folder.inputs_of(step):
            if resource not in written:
                written.add(resource)
                yield shlex.join(["python", "-m", "ralm.recipes.inputs", *folder.input_line(resource)])
        yield line


def check_resources(steps: Sequence[Step], folder: RecipeFolder) -> None:
    """Raise InputError with the models and data of steps to be done that are neither here nor on the hub."""
    left = [step for step in folder.distinct_steps(steps) if not folder.is_done(step)]
    sources = {
        part: part.source if folder.is_from_hub(part) else folder.source_of(part)
        for step in left
        for resource in step.resources
        for part in folder.parts_of(resource)
        if not Path(folder.source_of(part)).exists()
    }
    with ThreadPoolExecutor() as several:
        reached = dict(zip(sources, several.map(_is_reached, sources.values()), strict=True))
    if missing := [f"{part.name} ({source})" for part, source in sources.items() if not reached[part]]:
        raise InputError(
            f"neither here nor on the hub: {', '.join(missing)}. Give your own with `use` NAME=PATH; `ralm recipe` of "
            "the recipe describes them."
        )


def _is_reached(source: str) -> bool:
    """Whether a model or data set is on this machine, or the hub answers for it; URLs are taken for there."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.file_download import repo_folder_name

    kind, name = "model", source
    if source.startswith(HUB_PREFIX):
        kind, name = "dataset", source.removeprefix(HUB_PREFIX).partition(":")[0]
    if name == STAND_IN_MODEL or remote.is_url(source) or Path(name).exists():
        return True
    try:
        if not (Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind)).exists():
            HfApi().repo_info(name, repo_type=kind, timeout=_HUB_SECONDS)
    except Exception:  # noqa: BLE001  # the hub and its client raise many kinds
        return False
    return True
