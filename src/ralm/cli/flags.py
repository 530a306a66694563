"""Makes the flags of a command from the option records that it takes (`ralm.options`), and rejects unused flags.

cyclopts, tyro and pydantic-settings also make flags from records. But each needs its own annotations in the records to
make flags flat, and takes two to three times as long to answer --help.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

import typer

from ralm.cli.process import dry_run_outputs, with_flags
from ralm.errors import RalmError, UsageError
from ralm.options import Needs, Option, annotation, flag_of, negative_flag, without_none

_T = TypeVar("_T")
_REQUIRED = inspect.Parameter.empty
_GIVEN: Final = ("COMMANDLINE", "DEFAULT_MAP")


Given: TypeAlias = Mapping[str, str]
"""The options that the user gave, on the command line or in a file of settings: each name with the flag as written. A
command with a parameter of this type gets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Changes to the flags of a record and of the records in it: flags that are left out, descriptions of defaults, and
    conditions for flags to have an effect. A condition looks at the record or the parameters that hold the record."""

    without: tuple[str, ...] = ()
    default_text: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, Needs] = field(default_factory=dict)


class RecordMaker(Generic[_T]):
    """Makes a record from flags; keyword arguments of `make` replace values of flags."""

    def __init__(self, make: Callable[..., _T]) -> None:
        self.make = make


class _Part(NamedTuple):
    """A parameter of a command, or a field of a record in its parameter `within`."""

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
        kind = without_none(get_args(self.kind)[0] if self.is_maker else self.kind)
        return kind if is_dataclass(kind) else None

    @property
    def is_maker(self) -> bool:
        """Whether it is a `RecordMaker`."""
        return get_origin(self.kind) is RecordMaker

    @property
    def flags(self) -> Flags:
        """The changes to the flags of a record."""
        return next((mark for mark in self.marks if isinstance(mark, Flags)), _UNCHANGED)

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
        """The flag for False."""
        return negative_flag(self.written)


_UNCHANGED: Final = Flags()


def command(function: Callable[..., None], *, has_dry_run: bool = True) -> Callable[..., None]:
    """The function with a signature for typer.

    A parameter declared with an `Option` becomes a flag, and so does each option of a record that is a parameter.
    Options without effect are rejected before the function is called. Error messages that name Python arguments name
    the flags instead. In a dry run, a command that `has_dry_run` prints nothing and keeps no output.
    """
    taken = [_Part(one.name, *annotation(one.annotation), one.default) for one in _parameters_of(function)]
    flat: dict[str, list[_Part]] = {}
    for part in _flat([part for part in taken if part.kind is not Given]):
        flat.setdefault(part.key, []).append(part)
    names = _names(part for same in flat.values() for part in same)

    def run(context: typer.Context, **values: Any) -> None:
        given = _given_options(context)
        try:
            with dry_run_outputs(values) if has_dry_run else nullcontext(values) as used:
                made = {part.name: given if part.kind is Given else _value(part, used) for part in taken}
                reject_unused(_unused(SimpleNamespace(**made), taken, given), given)
                function(**made)
        except RalmError as error:
            error.args = (with_flags(str(error), names),)
            raise

    parameters = [_parameter(key, same, names) for key, same in flat.items()]
    parameters.insert(0, inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def option_types(record: type) -> dict[str, Any]:
    """The types of the flags of a record, including records within it, by parameter name."""
    return {part.key: without_none(part.kind) for part in _flat(_parts(record)) if part.option}


def unused_options(record: Any, given: Given) -> dict[str, str]:
    """The given options of a record without an effect, by name, each with the condition for one."""
    return _unused(record, [*_parts(type(record), record)], given)


def reject_unused(unused: Mapping[str, str], given: Given) -> None:
    """Raise UsageError for the first option without an effect."""
    for name, needs in unused.items():
        raise UsageError(f"{given[name]} has no effect without {needs}.")


def _given_options(context: typer.Context) -> Given:
    command: Any = context.command
    sources = ((parameter, context.get_parameter_source(parameter.name)) for parameter in command.params)
    return {
        parameter.name: _written(parameter, context.params.get(parameter.name))
        for parameter, source in sources
        if source and source.name in _GIVEN
    }


def _unused(owner: Any, parts: Iterable[_Part], given: Given) -> dict[str, str]:
    """As `unused_options`. An option of several records is unused if none of them uses it."""
    missing: dict[str, list[str | None]] = {}
    for name, needs in _conditions(owner, parts, given, None, {}):
        missing.setdefault(name, []).append(needs)
    return {name: " or ".join(dict.fromkeys(map(str, some))) for name, some in missing.items() if None not in some}


def _conditions(
    owner: Any, parts: Iterable[_Part], given: Given, missing: str | None, inherited: Mapping[str, str | None]
) -> Iterator[tuple[str, str | None]]:
    """The given options of a record and of the records in it, each with its first unmet condition.

    `missing` is that of the whole record; `inherited` holds those of single flags, from the records around it.
    """
    parts = [*parts]
    names = {part.name: part.written for part in parts if part.option and not part.record}

    def unmet(needs: Needs | None) -> str | None:
        met = needs is None or owner is None or needs.met(owner)  # None: a record of which nothing is given
        return None if met or needs is None else with_flags(needs.text, names)

    for part in parts:
        if part.is_maker or (part.record is None and part.key not in given):
            continue
        own = missing or inherited.get(part.name) or unmet(part.option.needs if part.option else None)
        if part.record is None:
            yield part.key, own or inherited.get(part.key)
            continue
        value = None if owner is None else getattr(owner, part.name)
        own_flags = {**inherited, **{name: unmet(needs) for name, needs in part.flags.needs.items()}}
        yield from _conditions(value, _parts(part.record, value), given, own, own_flags)


def _parameters_of(function: Callable[..., None]) -> Iterable[inspect.Parameter]:
    return inspect.signature(function).parameters.values()


def _parts(record: type, base: Any = None) -> Iterator[_Part]:
    """The options and arguments of a record; their defaults are the values of `base` if it is such a record."""
    for one in fields(record):
        kind, marks = annotation(one.type)
        default = getattr(base, one.name) if isinstance(base, record) else _default(one)
        part = _Part(one.name, kind, marks, default, owner=record)
        if part.option or any(isinstance(mark, typer.models.ParameterInfo) for mark in marks):
            yield part


def _default(of: "Field[Any]") -> Any:
    if of.default_factory is not MISSING:
        return of.default_factory()
    return _REQUIRED if of.default is MISSING else of.default


def _flat(parts: Iterable[_Part], without: tuple[str, ...] = ()) -> Iterator[_Part]:
    """The parts, with each record replaced by its own parts; without those of these names."""
    for part in (part for part in parts if part.name not in without):
        if part.record is None:
            yield part
            continue
        changed = part.flags
        for one in _flat(_parts(part.record, part.default), (*without, *changed.without)):
            said = changed.default_text.get(one.name)
            marks = (replace(one.option, default_text=said),) if one.option and said else one.marks
            default = None if one.default is _REQUIRED and _may_be_none(part) else one.default
            yield one._replace(marks=marks, default=default, within=one.within or part.name)


def _names(parts: Iterable[_Part]) -> dict[str, str]:
    """The flags by their names in messages: a parameter, `Record.field`, or `plot=False`."""
    names: dict[str, str] = {}
    for part in parts:
        names |= {part.key: part.written, f"{part.key}=False": part.negative}
        names[f"{part.owner.__name__}.{part.name}" if part.owner else part.name] = part.written
    return names


def _parameter(key: str, same: list[_Part], names: Mapping[str, str]) -> inspect.Parameter:
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


def _value(part: _Part, values: Mapping[str, Any], without: tuple[str, ...] = ()) -> Any:
    """The value that the function gets for one of its parameters."""
    if part.record is None:
        return _own_value(part, values)
    without = (*without, *part.flags.without)
    if part.is_maker:
        return RecordMaker(lambda **other: _record(part.record, part.default, {**values, **other}, without))
    if _may_be_none(part) and any(values[key] is None for key in _required(part.record)):
        return None
    return _record(part.record, part.default, values, without)


def _own_value(part: _Part, values: Mapping[str, Any]) -> Any:
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


def _may_be_none(part: _Part) -> bool:
    return without_none(part.kind) != part.kind


def _field_flags(record: type) -> dict[str, str]:
    return {part.name: part.written for part in _parts(record) if part.option and not part.record}


def _required(record: type) -> list[str]:
    return [part.key for part in _parts(record) if part.default is _REQUIRED]


def _record(record: Any, base: Any, values: Mapping[str, Any], without: tuple[str, ...]) -> Any:
    """The record, created from the values of its flags."""
    parts = [part for part in _parts(record, base) if part.name not in without]
    made = {part.name: _value(part, values, without) for part in parts}
    try:
        return replace(base, **made) if isinstance(base, record) else record(**made)
    except UsageError as error:
        raise UsageError(with_flags(str(error), _field_flags(record))) from None


def _written(parameter: Any, value: object) -> str:
    """An option as given on the command line; of a pair such as --plot/--no-plot, the one for this value."""
    names = parameter.secondary_opts if value is False and parameter.secondary_opts else parameter.opts
    return str(max(names, key=len))
