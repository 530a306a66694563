"""Options that would do nothing beside the others that were given: refused, and never passed over in silence.

Each command says beside its options which of them work with what; knows nothing of what the options mean.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import typer

from ralm.errors import UsageError


@dataclass(frozen=True, slots=True)
class Use:
    """Options, by the names of their parameters, that do something only where `works`; `needs` says what to give."""

    options: str
    works: bool
    needs: str


def idle_options(context: typer.Context, uses: Iterable[Use]) -> dict[str, str]:
    """The options that were given and do nothing, as they are written, each with what it needs."""
    command: Any = context.command
    given = {
        parameter.name: parameter
        for parameter in command.params
        if (source := context.get_parameter_source(parameter.name)) is not None and source.name == "COMMANDLINE"
    }
    idle: dict[str, str] = {}
    for use in uses:
        for name in use.options.split() if not use.works else ():
            if name in given:
                idle.setdefault(_written(given[name], context.params.get(name)), use.needs)
    return idle


def refuse(idle: dict[str, str]) -> None:
    """Raise UsageError where an option does nothing."""
    for option, needs in idle.items():
        raise UsageError(f"{option} does nothing here: it goes with {needs}.")


def refuse_idle(context: typer.Context, *uses: Use) -> None:
    """Raise UsageError for the first option that was given and does nothing."""
    refuse(idle_options(context, uses))


def _written(parameter: Any, value: object) -> str:
    """An option as it stands in the command: of a pair, the one that the value means."""
    names = parameter.secondary_opts if value is False and parameter.secondary_opts else parameter.opts
    return str(max(names, key=len))
