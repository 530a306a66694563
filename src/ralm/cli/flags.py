"""Makes the flags of a command, and its help, from the option records that it takes (`ralm.options`).

cyclopts, tyro and pydantic-settings also make flags from records. But each needs its own annotations in the records to
make flags flat, and takes two to three times as long to answer --help.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, field, is_dataclass, make_dataclass
from typing import Annotated, Any, ClassVar, Final, TypeAlias, get_args, get_origin

import typer
from pydantic import JsonValue
from typer.core import TyperCommand, TyperGroup

from ralm.cli.process import with_flags
from ralm.errors import RalmError, UsageError
from ralm.grammar import parse_keys
from ralm.options import Declared, Option, check_options, make_record, options_of, without_none

UserFlags: TypeAlias = Mapping[str, str]
"""The flag as written of each option that the user set; a command with a parameter of this type gets them."""


def check_unused(user_flags: UserFlags, unused: Collection[str], why: str) -> None:
    """Raise UsageError if the user gave an option without effect."""
    for option, flag in user_flags.items():
        if option in unused:
            raise UsageError(f"{flag} has no effect{why}.")


@dataclass(frozen=True, slots=True)
class Output:
    """What a command prints: JSON with --json, else text; and its exit status."""

    as_json: Callable[[], JsonValue]
    print_text: Callable[[], None]
    status: int = 0
    formats: ClassVar[tuple[str, ...]] = ("json",)
    """The flags that choose how it is printed."""

    def print(self, *, json: bool, latex: bool = False) -> None:
        """Print it; raises typer.Exit if the status is not 0."""
        from ralm.cli.output import as_latex, print_json

        if json and latex:
            raise UsageError("`json` and `latex` are two ways of printing: give one of them.")
        if json:
            print_json(self.as_json())
        else:
            with as_latex() if latex else nullcontext():
                self.print_text()
        if self.status:
            raise typer.Exit(self.status)


class TableOutput(Output):
    """The same of a command that prints tables: as LaTeX with --latex."""

    formats = ("json", "latex")


_SHORT: Final = {"--lm": "-m", "--index": "-i", "--out": "-o"}
LATEX: Final = Option("Print tables as LaTeX (booktabs), all else as comments.")
_FORMATS: Final = {"json": Option("Print only one JSON object."), "latex": LATEX}
_GROUP: Final = Option("")
_ARGUMENTS: Final = "Arguments"
_OPTIONS: Final = "Options"


def command(function: Callable[..., Output | None]) -> Callable[..., None]:
    """Return the function with a signature for typer.

    A parameter declared with an `Option` becomes a flag, and so does each option of a record that is a parameter, or
    that a parameter `Callable[..., Record]` makes: called with values for flags, it takes the others from the user.
    Error messages that name Python arguments name the flags instead. A command that returns an `Output` has --json, and
    a `TableOutput` --latex too.
    """
    signature = inspect.signature(function)
    formats = getattr(signature.return_annotation, "formats", ())
    taken: list[tuple[str, Any, Any]] = []
    made_later: dict[str, type] = {}
    for name, parameter in signature.parameters.items():
        kind, default = parameter.annotation, parameter.default
        if get_origin(kind) is Callable:
            made_later[name] = get_args(kind)[1]
        elif kind is not UserFlags:
            kind = Annotated[kind, _GROUP] if is_dataclass(kind) else kind
            taken.append((name, kind, field(default=MISSING if default is parameter.empty else default)))
    printed = [(name, Annotated[bool, _FORMATS[name]], field(default=False)) for name in formats]
    record = make_dataclass("Arguments", [*taken, *printed], kw_only=True, namespace={"__post_init__": check_options})
    flags: dict[str, Declared] = {}
    for owner in (*made_later.values(), record):
        for flag in options_of(owner):
            flags.setdefault(flag.key, flag)
    names = _names(flags.values())

    def run(context: typer.Context, **values: Any) -> None:
        user_flags = _user_flags(context)
        try:
            chosen = (key for key, flag in flags.items() if key in user_flags or flag.option.part == "keys")
            read = {key: _value(flags[key], values[key]) for key in chosen}
            arguments = make_record(record, read)
            passed = {name: getattr(arguments, name) for name, _, _ in taken}
            passed |= {name: _maker(later, read) for name, later in made_later.items()}
            output = function(**passed, **({"user_flags": user_flags} if "user_flags" in signature.parameters else {}))
            if output is not None:
                output.print(**{name: getattr(arguments, name) for name in formats})
        except RalmError as error:
            error.args = (with_flags(str(error), names),)
            raise

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    parameters += [_parameter(flag, names) for flag in flags.values()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def _maker(record: type, values: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function that makes a record from these values, and from others that it is called with."""
    return lambda **chosen: make_record(record, {**values, **chosen})


def _value(flag: Declared, value: Any) -> Any:
    """Return the value of an option as the type of its field."""
    kind = without_none(flag.kind)
    if flag.option.part == "keys":
        return parse_keys(kind, ",".join(value or ()), f"`{flag.key}`")
    return tuple(value) if get_origin(kind) is tuple else value


def _user_flags(context: typer.Context) -> UserFlags:
    command: Any = context.command
    user_flags = {}
    for parameter in command.params:
        source = context.get_parameter_source(parameter.name)
        if source and source.name == "COMMANDLINE":
            negative = context.params.get(parameter.name) is False and parameter.secondary_opts
            user_flags[parameter.name] = str(max(negative or parameter.opts, key=len))
    return user_flags


def _written(flag: Declared) -> str:
    """Return the flag as the user writes it, or the name of an argument."""
    if flag.option.argument:
        return flag.option.metavar or flag.name.upper()
    name = flag.option.flag or flag.name
    return name if name.startswith("-") else "--" + name.replace("_", "-")


def _negative(flag: Declared) -> str:
    """Return the flag that means no."""
    return "--no-" + _written(flag).removeprefix("--")


def _names(flags: Collection[Declared]) -> dict[str, str]:
    """Return the flags by their names in messages: that of the field, the key, or `plot=False`."""
    names = {flag.name: _written(flag) for flag in flags}
    for flag in flags:
        names |= {flag.key: _written(flag), f"{flag.key}=False": _negative(flag)}
    return names


def _parameter(flag: Declared, names: Mapping[str, str]) -> inspect.Parameter:
    """Return the parameter that typer turns into a flag."""
    option, kind = flag.option, flag.kind
    default = inspect.Parameter.empty if flag.default is MISSING else flag.default
    info: Any
    if option.argument:
        info = typer.Argument(metavar=option.metavar, help=option.help, show_default=False, rich_help_panel=_ARGUMENTS)
    else:
        metavar = None
        if get_origin(without_none(kind)) is tuple:
            kind, default = list[get_args(without_none(kind))[0]], default or None  # type: ignore[misc]
        if option.part is not None:
            is_keys = option.part == "keys"
            metavar, kind = ("KEY=VALUE,...", list[str]) if is_keys else ("NAME[:KEY=VALUE,...]", str)
            default = default if isinstance(default, str) else None
        if default is None:
            kind = kind | None
        info = typer.Option(
            f"{_written(flag)}/{_negative(flag)}" if default is True else _written(flag),
            *([_SHORT[_written(flag)]] if _written(flag) in _SHORT else []),
            help=with_flags(option.help, names),
            metavar=metavar,
            show_default=option.default_text or default is not inspect.Parameter.empty,
            rich_help_panel=flag.group or _OPTIONS,
        )
    return inspect.Parameter(
        flag.key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


class CommandWithGroups(TyperCommand):
    """A command whose help lists its own options first, then those of each record under what they decide."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the groups of options."""
        rows = [(_title(parameter), parameter.get_help_record(ctx)) for parameter in self.get_params(ctx)]
        first = {_ARGUMENTS: 0, _OPTIONS: 1}
        _write_groups(sorted(rows, key=lambda row: first.get(row[0], len(first))), formatter)


class CommandsInGroups(TyperGroup):
    """A list of commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups of commands."""
        members = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        rows = [(_title(member), (name, member.get_short_help_str(200))) for name, member in members]
        _write_groups(rows, formatter)


def _title(declared: Any) -> str:
    """Return the group of a parameter or command; typer declares --help without one."""
    title = vars(declared).get("rich_help_panel")
    return title if isinstance(title, str) else _OPTIONS


def _write_groups(rows: Iterable[tuple[str, tuple[str, str] | None]], formatter: Any) -> None:
    """Write each group under its title, in the order in which they begin."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for title, row in rows:
        if row is not None:
            groups.setdefault(title, []).append(row)
    for title, members in groups.items():
        with formatter.section(title):
            formatter.write_dl(members)
