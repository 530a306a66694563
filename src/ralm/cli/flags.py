"""Makes the flags of a command from the option records that it takes (`ralm.options`), and rejects unused flags.

cyclopts, tyro and pydantic-settings also make flags from records. But each needs its own annotations in the records to
make flags flat, and takes two to three times as long to answer --help.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_args, get_origin

import typer
from pydantic import JsonValue

from ralm.cli.help import group_of
from ralm.cli.process import dry_run_outputs, with_flags
from ralm.cli.settings import SETTINGS_OPTION, with_file
from ralm.errors import RalmError, UsageError
from ralm.grammar import keys_of, parse_keys
from ralm.options import Flags, Option, annotation, check_effects, flag_of, key_of, negative_flag, without_none

_REQUIRED = inspect.Parameter.empty

Given: TypeAlias = Mapping[str, str]
"""The options that the user gave, on the command line or in a file of settings: each name with the flag as written. A
command with a parameter of this type gets them."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a command prints: JSON with --json, else text; and its exit status."""

    as_json: Callable[[], JsonValue]
    print_text: Callable[[], None]
    status: int = 0

    def print(self, *, json: bool) -> None:
        """Print it; raises typer.Exit if the status is not 0."""
        from ralm.cli.output import print_json

        if json:
            print_json(self.as_json())
        else:
            self.print_text()
        if self.status:
            raise typer.Exit(self.status)


class TableOutput(Output):
    """The same of a command that prints tables: as LaTeX with --latex."""

    def print(self, *, json: bool, latex: bool = False) -> None:
        """Print it; raises typer.Exit if the status is not 0."""
        from ralm.cli.output import as_latex

        if json and latex:
            raise UsageError("`json` and `latex` are two ways of printing: give one of them.")
        with as_latex() if latex else nullcontext():
            Output.print(self, json=json)


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
        """The type of a record, or of the one that it makes; None for anything else, and for one written as keys."""
        if self.option and self.option.part == "keys":
            return None
        kind = without_none(get_args(self.kind)[1] if self.is_maker else self.kind)
        return kind if is_dataclass(kind) else None

    @property
    def is_maker(self) -> bool:
        return get_origin(self.kind) is Callable

    @property
    def flags(self) -> Flags:
        return next((mark for mark in self.marks if isinstance(mark, Flags)), _UNCHANGED)

    @property
    def key(self) -> str:
        """The name of the parameter that becomes the flag."""
        return key_of(self.name, self.option)

    @property
    def written(self) -> str:
        """The flag as the user writes it, or the name of an argument."""
        if self.option is None:
            return next((mark.metavar for mark in self.marks if getattr(mark, "metavar", None)), self.name.upper())
        return flag_of(self.name, self.option)


_UNCHANGED: Final = Flags()
_SHORT: Final = {"--lm": "-m", "--index": "-i", "--out": "-o"}
_JSON: Final = _Part("json", bool, (Option("Print only one JSON object."),), default=False)
LATEX: Final = Option("Print tables as LaTeX (booktabs), all else as comments.")
_LATEX: Final = _Part("latex", bool, (LATEX,), default=False)
_SETTINGS: Final = _Part("settings", Path | None, (SETTINGS_OPTION,), default=None)


def command(function: Callable[..., Output | None], *, settings: bool = False) -> Callable[..., None]:
    """The function with a signature for typer.

    A parameter declared with an `Option` becomes a flag, and so does each option of a record that is a parameter, or
    that a parameter `Callable[..., Record]` makes: called with values for flags, it takes the others from the user.
    Options without effect are rejected before the function is called. Error messages that name Python arguments name
    the flags instead. In a dry run of requests, the command prints nothing and keeps no output. A command that returns
    an `Output` has --json, and a `TableOutput` --latex too. With `settings`, it has --settings.
    """
    signature = inspect.signature(function)
    taken = [_Part(one.name, *annotation(one.annotation), one.default) for one in signature.parameters.values()]
    arguments = make_dataclass("Arguments", [(one.name, one.annotation) for one in signature.parameters.values()])
    has_output = isinstance(signature.return_annotation, type) and issubclass(signature.return_annotation, Output)
    printed = [_JSON] if has_output and "json" not in signature.parameters else []
    printed += [_LATEX] if signature.return_annotation is TableOutput else []
    printed += [_SETTINGS] if settings else []
    flat: dict[str, list[_Part]] = {}
    for part in _flat([part for part in (*taken, *printed) if part.kind is not Given]):
        flat.setdefault(part.key, []).append(part)
    names = _names(part for same in flat.values() for part in same)

    def run(context: typer.Context, **values: Any) -> None:
        given = _given_options(context)
        try:
            with dry_run_outputs(values) if _is_dry_run(flat, values) else nullcontext(values) as used:
                made = {part.name: given if part.kind is Given else _value(part, used) for part in taken}
                check_effects(arguments(**made), given)
                output = function(**made)
                if output is not None:
                    output.print(**{part.name: used[part.name] for part in (_JSON, _LATEX) if part.name in used})
        except RalmError as error:
            error.args = (with_file(with_flags(str(error), names), context),)
            raise

    parameters = [_parameter(key, same, names) for key, same in flat.items()]
    parameters.insert(0, inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def _is_dry_run(flat: Mapping[str, list[_Part]], values: Mapping[str, Any]) -> bool:
    """Whether no request is sent to models behind an API."""
    return any(_own_value(part, values).api.dry_run for (part, *_) in flat.values() if part.key == "lm_args")


def _completion(part: _Part) -> Callable[[str], list[str]]:
    """The completion of names of parts, or of keys, in a shell."""

    def complete(incomplete: str) -> list[str]:
        from ralm.settings import CATALOGUES

        catalogue = CATALOGUES.get(part.key)
        names = catalogue.records if catalogue else [f"{key}=" for key in keys_of(without_none(part.kind))]
        return [name for name in names if name.startswith(incomplete)]

    return complete


def option_types(record: type) -> dict[str, Any]:
    """The types of the flags of a record, including records within it, by parameter name."""
    return {part.key: without_none(part.kind) for part in _flat(_parts(record)) if part.option}


def _given_options(context: typer.Context) -> Given:
    command: Any = context.command
    given = {}
    for parameter in command.params:
        source = context.get_parameter_source(parameter.name)
        if source and source.name in ("COMMANDLINE", "DEFAULT_MAP"):
            negative = context.params.get(parameter.name) is False and parameter.secondary_opts
            given[parameter.name] = str(max(negative or parameter.opts, key=len))
    return given


def _parts(record: type, base: Any = None) -> Iterator[_Part]:
    """The options and arguments of a record; their defaults are the values of `base` if it is such a record."""
    for one in fields(record):
        kind, marks = annotation(one.type)
        if isinstance(base, record):
            default = getattr(base, one.name)
        elif one.default_factory is not MISSING:
            default = one.default_factory()
        else:
            default = _REQUIRED if one.default is MISSING else one.default
        part = _Part(one.name, kind, marks, default, owner=record)
        if part.option or any(isinstance(mark, typer.models.ParameterInfo) for mark in marks):
            yield part


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
            yield one._replace(marks=marks, within=one.within or part.name)


def _names(parts: Iterable[_Part]) -> dict[str, str]:
    """The flags by their names in messages: a parameter, `Record.field`, or `plot=False`."""
    names: dict[str, str] = {}
    for part in parts:
        names |= {part.key: part.written, f"{part.key}=False": negative_flag(part.written)}
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
    metavar = None
    if part.option.part is not None:
        is_keys = part.option.part == "keys"
        metavar, kind = ("KEY=VALUE,...", list[str]) if is_keys else ("NAME[:KEY=VALUE,...]", str)
        default = default if isinstance(default, str) else None
    if default is None:
        kind = kind | None
    info = typer.Option(
        f"{part.written}/{negative_flag(part.written)}" if default is True else part.written,
        *([_SHORT[part.written]] if part.written in _SHORT else []),
        help=with_flags(part.option.help, names),
        metavar=metavar,
        show_default=said or default is not _REQUIRED,
        autocompletion=_completion(part) if part.option.part else None,
        rich_help_panel=group_of(key, part.owner),
    )
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _value(part: _Part, values: Mapping[str, Any], without: tuple[str, ...] = ()) -> Any:
    """The value that the function gets for one of its parameters, or a record for one of its fields."""
    if part.record is None:
        return _own_value(part, values)
    without = (*without, *part.flags.without)
    if part.is_maker:
        return lambda **other: _record(part.record, part.default, {**values, **other}, without)
    return _record(part.record, part.default, values, without)


def _own_value(part: _Part, values: Mapping[str, Any]) -> Any:
    value = values[part.key]
    if part.option is None:
        return value
    kind = without_none(part.kind)
    if part.option.part == "keys":
        return parse_keys(kind, ",".join(value or ()), f"`{part.key}`")
    if value in (None, []):
        return None if part.default is _REQUIRED else part.default
    value = tuple(value) if get_origin(kind) is tuple else Path(value) if kind is Path else value
    if part.owner is None:  # records check their own options
        part.option.check(part.name, part.kind, value)
    return value


def _record(record: Any, base: Any, values: Mapping[str, Any], without: tuple[str, ...]) -> Any:
    """The record, created from the values of its flags."""
    made = {part.name: _value(part, values, without) for part in _parts(record, base) if part.name not in without}
    try:
        return replace(base, **made) if isinstance(base, record) else record(**made)
    except UsageError as error:
        names = {part.name: part.written for part in _parts(record) if part.option and not part.record}
        raise UsageError(with_flags(str(error), names)) from None
