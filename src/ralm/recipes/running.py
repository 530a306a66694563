"""Runs the steps of recipes in order, each unless its result is there. A killed run goes on where it was.

How a command is performed is the caller's: the command line gives a function that runs it in this process.
"""

import logging
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from ralm.errors import FolderExistsError, RalmError
from ralm.recipes.estimates import check_room
from ralm.recipes.place import Place
from ralm.recipes.steps import Step
from ralm.storage.outputs import recover

Perform = Callable[[list[str]], None]
_LOG: Final = logging.getLogger(__name__)


def run_steps(steps: Sequence[Step], place: Place, perform: Perform) -> None:
    """Perform the steps, which are in order, unless they were done before.

    Raises what a command raises, with the step in front and what can be given instead of what it reads from the hub.
    """
    place.begin()
    steps = place.distinct_steps(steps)
    for number, step in enumerate(steps, 1):
        at = f"[{number}/{len(steps)}] {place.folder_of(step).name}"
        if place.is_done(step):
            with suppress(FolderExistsError):  # another process is at its end
                recover(place.folder_of(step))
            _LOG.info("%s: done before", at)
            continue
        line = place.command_line(step)
        _LOG.info("%s: %s", at, shown(line))
        try:
            check_room(step, place)
            place.provide(step)
            perform(line)
        except RalmError as error:
            said = str(error)
            error.args = (f"{at}: {said}{'' if said.endswith('.') else '.'}{_instead(step, place)}",)
            raise


def shown(line: Sequence[str]) -> str:
    """A command as one types it."""
    return f"ralm {shlex.join(line)}"


def _instead(step: Step, place: Place) -> str:
    """What a user can give if the hub cannot be reached."""
    read = [resource for resource in step.resources if place.is_from_hub(resource)]
    if not read:
        return ""
    named = [f"{one.name} ({one.note})" if one.note else one.name for one in read]
    return f" From the hub it reads {', '.join(named)}; give your own with --use {read[0].name}=PATH."
