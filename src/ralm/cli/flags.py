"""Makes the flags of a command from the option records that it takes (`ralm.options`), and rejects unused flags.

cyclopts, tyro and pydantic-settings also make flags from records. But each needs its own annotations in the records to
make flags flat, and takes two to three times as long to answer --help.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar, get_args, get_origin

import typer

from ralm.cli.process import rehearsal, with_flags
from ralm.errors import RalmError, UsageError
from ralm.options import Option, annotation, flag_of, negative_flag, without_none

T = TypeVar("T")
_REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """How a command changes the flags of a record and of the records in it: those that it leaves out, and descriptions
    of defaults."""

    without: tuple[str, ...] = ()
    default_text: Mapping[str, str] = field(default_factory=dict)


class Asked(Generic[T]):
    """A record to be made from flags: `make` creates it; its keyword arguments override values of flags."""

    def __init__(self, make: Callable[..., T]) -> None:
        self.make = make


class Part(NamedTuple):
    """A parameter of a command, or a field of a record that it takes as the parameter `within`."""

    name: str
    kind: Any
    marks: tuple[Any, ...]
    default: Any
    within: str = ""
    owner: type | None = None

    @property
    def option(self) -> Option | None:
        """Its declaration; None if it is not a flag."""
        return next((mark for mark in self.marks if isinstance(mark, Option) and mark.flag != ""), None)

    @property
    def record(self) -> Any:
        """The type of a record; None for anything else."""
        kind = without_none(get_args(self.kind)[0] if get_origin(self.kind) is Asked else self.kind)
        return kind if is_dataclass(kind) else None

    @property
    def key(self) -> str:
        """The name of the parameter that becomes the flag."""
        return ((self.option and self.option.flag) or self.name).replace("-", "_").lstrip("_")

    @property
    def written(self) -> str:
        """The flag as the user writes it, or the name of an argument."""
        if self.option is None:
            return next((mark.metavar for mark in self.marks if getattr(mark, "metavar", None)), self.name.upper())
        return flag_of(self.name, self.option)

    @property
    def negative(self) -> str:
        """The flag that means no."""
        return negative_flag(self.written)


def command(function: Callable[..., None], *, rehearses: bool = True) -> Callable[..., None]:
    """The function with a signature for typer. A parameter declared with an `Option` becomes a flag, and so does each
    option of a record that is a parameter. Error messages that name Python arguments name the flags instead. A command
    that `rehearses` writes and prints nothing in a dry run."""
    taken = [Part(one.name, *annotation(one.annotation), one.default) for one in _parameters_of(function)]
    flat: dict[str, list[Part]] = {}
    for part in _flat(taken):
        flat.setdefault(part.key, []).append(part)
    names = _names(part for same in flat.values() for part in same)

    def run(**values: Any) -> None:
        try:
            with rehearsal(values) if rehearses else nullcontext(values) as used:
                function(**{part.name: _value(part, used) for part in taken})
        except RalmError as error:
            error.args = (with_flags(str(error), names),)
            raise

    parameters = [_parameter(key, same, names) for key, same in flat.items()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def kinds_of(record: type) -> dict[str, Any]:
    """The types of the flags of a record, including records within it, by parameter name."""
    return {part.key: without_none(part.kind) for part in _flat(parts_of(record)) if part.option}


def names_of(record: type) -> dict[str, str]:
    """The flags of a record, by field name."""
    return {part.name: part.written for part in parts_of(record) if part.option and not part.record}


def _parameters_of(function: Callable[..., None]) -> Iterable[inspect.Parameter]:
    return inspect.signature(function).parameters.values()


def parts_of(record: type, base: Any = None) -> Iterator[Part]:
    """The options and arguments of a record; their defaults are the values of `base` if it is such a record."""
    for one in fields(record):
        kind, marks = annotation(one.type)
        default = getattr(base, one.name) if isinstance(base, record) else _default(one)
        part = Part(one.name, kind, marks, default, owner=record)
        if part.option or any(isinstance(mark, typer.models.ParameterInfo) for mark in marks):
            yield part


def _default(of: "Field[Any]") -> Any:
    if of.default_factory is not MISSING:
        return of.default_factory()
    return _REQUIRED if of.default is MISSING else of.default


def _flat(parts: Iterable[Part], without: tuple[str, ...] = ()) -> Iterator[Part]:
    """The parts, with each record replaced by its own parts; without those of these names."""
    for part in (part for part in parts if part.name not in without):
        if part.record is None:
            yield part
            continue
        changed = next((mark for mark in part.marks if isinstance(mark, Flags)), Flags())
        for one in _flat(parts_of(part.record, part.default), (*without, *changed.without)):
            said = changed.default_text.get(one.name)
            marks = (replace(one.option, default_text=said),) if one.option and said else one.marks
            default = None if one.default is _REQUIRED and _may_be_none(part) else one.default
            yield one._replace(marks=marks, default=default, within=one.within or part.name)


def _names(parts: Iterable[Part]) -> dict[str, str]:
    """The flags by their names in messages: a parameter, `Record.field`, or `plot=False`."""
    names: dict[str, str] = {}
    for part in parts:
        names |= {part.key: part.written, f"{part.key}=False": part.negative}
        names[f"{part.owner.__name__}.{part.name}" if part.owner else part.name] = part.written
    return names


def _parameter(key: str, same: list[Part], names: Mapping[str, str]) -> inspect.Parameter:
    """The parameter that typer turns into a flag; records with different defaults for it keep their own."""
    part = same[0]
    if part.option is None:
        kind = Annotated[part.kind, *part.marks] if part.marks else part.kind
        return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=part.default, annotation=kind)
    kind, default, said = part.kind, part.default, part.option.default_text
    if any(other.default != default for other in same):
        default, said = None, "; ".join(f"{other.within}: {other.default}" for other in same)
    if get_origin(without_none(kind)) is tuple:
        kind, default = list[get_args(without_none(kind))[0]], default or None  # type: ignore[misc]
    if default is None:
        kind = kind | None
    info = typer.Option(
        f"{part.written}/{part.negative}" if default is True else part.written,
        help=with_flags(part.option.help, names),
        show_default=said or default is not _REQUIRED,
    )
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _value(part: Part, values: Mapping[str, Any], without: tuple[str, ...] = ()) -> Any:
    """The value that the function gets for one of its parameters."""
    if part.record is None:
        return _own_value(part, values)
    changed = next((mark for mark in part.marks if isinstance(mark, Flags)), Flags())
    without = (*without, *changed.without)
    if get_origin(part.kind) is Asked:
        return Asked(lambda **other: _record(part.record, part.default, {**values, **other}, without))
    if _may_be_none(part) and any(values[key] is None for key in _required(part.record)):
        return None
    return _record(part.record, part.default, values, without)


def _own_value(part: Part, values: Mapping[str, Any]) -> Any:
    value = values[part.key]
    if part.option is None:
        return value
    if value in (None, []):
        return None if part.default is _REQUIRED else part.default
    kind = without_none(part.kind)
    value = tuple(value) if get_origin(kind) is tuple else Path(value) if kind is Path else value
    if part.owner is None:  # records check their own options
        part.option.check(part.name, part.kind, value)
    return value


def _may_be_none(part: Part) -> bool:
    return without_none(part.kind) != part.kind


def _required(record: type) -> list[str]:
    return [part.key for part in parts_of(record) if part.default is _REQUIRED]


def _record(record: Any, base: Any, values: Mapping[str, Any], without: tuple[str, ...]) -> Any:
    """The record, created from the values of its flags."""
    parts = [part for part in parts_of(record, base) if part.name not in without]
    made = {part.name: _value(part, values, without) for part in parts}
    try:
        return replace(base, **made) if isinstance(base, record) else record(**made)
    except UsageError as error:
        raise UsageError(with_flags(str(error), names_of(record))) from None


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
        raise UsageError(f"{option} has no effect without {needs}.")


def refuse_idle(context: typer.Context, *uses: Use) -> None:
    """Raise UsageError for the first given option that has no effect."""
    refuse(idle_options(given_options(context), uses), context)


def _needs(record: Any, needed: str | None) -> Iterator[tuple[str, str | None]]:
    """The options of a record and of records within it, each with what it lacks to have an effect."""
    names = names_of(type(record))
    for part in parts_of(type(record), record):
        needs = part.option.needs if part.option else None
        lacks = needed or (with_flags(needs.text, names) if needs is not None and not needs.met(record) else None)
        if part.record is not None:
            yield from _needs(part.default, lacks)
        else:
            yield part.key, lacks


def _written(parameter: Any, value: object) -> str:
    """An option as given on the command line; of a pair such as --plot/--no-plot, the one for this value."""
    names = parameter.secondary_opts if value is False and parameter.secondary_opts else parameter.opts
    return str(max(names, key=len))
