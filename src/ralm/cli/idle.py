"""Refuses options that have no effect together with the other options, instead of silently ignoring them.

Records declare what their options need (`options.Needs`); commands add further needs. Knows nothing of what options
mean.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import typer

from ralm.cli.flags import kinds_of, names_of, parts_of
from ralm.cli.messages import with_flags
from ralm.errors import UsageError

_GIVEN: Final = ("COMMANDLINE", "DEFAULT_MAP")


@dataclass(frozen=True, slots=True)
class Use:
    """Options that have an effect only if `works`; `needs` says what to give.

    `options` holds parameter names separated by spaces, the type of a record, or a record, whose options may have their
    own needs. An option of several records is idle only if none of them uses it.
    """

    options: Any
    works: bool = True
    needs: str = ""


def given_options(context: typer.Context) -> dict[str, Any]:
    """The options given on the command line, or in a file of settings: their parameters by name."""
    command: Any = context.command
    sources = ((parameter, context.get_parameter_source(parameter.name)) for parameter in command.params)
    return {parameter.name: parameter for parameter, source in sources if source and source.name in _GIVEN}


def idle_options(given: Collection[str], uses: Iterable[Use]) -> dict[str, str]:
    """The given options that have no effect, by name, each with what it needs."""
    idle: dict[str, str] = {}
    of_records: dict[str, list[str | None]] = {}
    for use in uses:
        if not isinstance(use.options, str | type):
            for name, lacks in _needs(use.options, None if use.works else use.needs):
                of_records.setdefault(name, []).append(lacks)
        elif not use.works:
            names = use.options.split() if isinstance(use.options, str) else [*kinds_of(use.options)]
            idle = dict.fromkeys(names, use.needs) | idle
    for name, several in of_records.items():
        lacking = [one for one in dict.fromkeys(several) if one is not None]
        if None not in several:
            idle.setdefault(name, " or ".join(lacking))
    return {name: needs for name, needs in idle.items() if name in given}


def refuse(idle: Mapping[str, str], context: typer.Context) -> None:
    """Raise UsageError if an option has no effect."""
    given = given_options(context)
    for name, needs in idle.items():
        option = _written(given[name], context.params.get(name)) if name in given else name
        raise UsageError(f"{option} does nothing here: it goes with {needs}.")


def refuse_idle(context: typer.Context, *uses: Use) -> None:
    """Raise UsageError for the first given option that has no effect."""
    refuse(idle_options(given_options(context), uses), context)


def _needs(record: Any, needed: str | None) -> Iterator[tuple[str, str | None]]:
    """The options of a record and of records within it, each with what it lacks to have an effect."""
    names = names_of(type(record))
    for part in parts_of(type(record), record):
        needs = part.option.needs if part.option else None
        lacks = needed or (with_flags(needs.said, names) if needs is not None and not needs.met(record) else None)
        if part.record is not None:
            yield from _needs(part.default, lacks)
        else:
            yield part.key, lacks


def _written(parameter: Any, value: object) -> str:
    """An option as given on the command line; of a pair such as --plot/--no-plot, the one for this value."""
    names = parameter.secondary_opts if value is False and parameter.secondary_opts else parameter.opts
    return str(max(names, key=len))
