"""`--settings FILE`: values of options from a TOML file, as if on the command line, which wins over the file.

One file serves all commands of `WITH_SETTINGS`. A key that another one of them takes is reported and not used; a key
that none takes is an error.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import typer

from ralm.cli.process import print_note
from ralm.corpus.files import whole_text
from ralm.errors import InputError, UsageError

WITH_SETTINGS: Final = ("eval", "generate", "ask", "serve")
"""The commands that take a file of settings."""
_FILE: Final = "ralm.settings"


def _with_settings(context: typer.Context, file: Path | None) -> Path | None:
    """Take the values in a TOML file, by the names of options, as defaults of the flags."""
    if file is None:
        return None
    command: Any = context.command
    options, values, unused = _options(command), {}, []
    try:
        settings = tomllib.loads(whole_text(file, InputError))
    except ValueError as error:
        raise UsageError(f"{file} is not a file of settings: {error}.") from None
    for key, value in settings.items():
        if (name := key.replace("_", "-")) in options:
            values[options[name].name] = _value(context, options[name], file, name, value)
        elif any(name in names for names in _options_of_others(command)):
            unused.append(name)
        else:
            raise UsageError(f"{file} sets {key}, which is no option of `ralm {command.name}`: correct or remove it.")
    if unused:
        print_note(f"{file}: `ralm {command.name}` has no use for {', '.join(unused)}")
    context.default_map = values
    context.meta[_FILE] = file
    return file


SETTINGS_OPTION: Final[Any] = typer.Option(
    "--settings",
    help="TOML file with values for these options, by name: what the command line does not say.",
    callback=_with_settings,
    is_eager=True,
)


def with_file(message: str, context: typer.Context) -> str:
    """Return an error message, which begins with the file of settings if that set an option which it names."""
    command: Any = context.command
    sources = ((option, context.get_parameter_source(option.name)) for option in command.params)
    from_file = [option for option, source in sources if source is not None and source.name == "DEFAULT_MAP"]
    flags = (re.escape(flag) for option in from_file for flag in (*option.opts, *option.secondary_opts))
    named = any(re.search(rf"(?<![\w-]){flag}(?![\w-])", message) for flag in flags)
    return f"{context.meta[_FILE]}: {message}" if named else message


def _options(command: Any) -> dict[str, Any]:
    """Return the options of a command that a file may set, by their names."""
    return {
        flag.removeprefix("--"): option
        for option in command.params
        for flag in option.opts
        if flag.startswith("--") and flag not in ("--settings", "--help")
    }


def _options_of_others(command: Any) -> Iterator[Iterable[str]]:
    """Yield the names of the options of each other command."""
    from ralm.cli import program

    every = program().commands
    return (_options(every[name]) for name in WITH_SETTINGS if name != command.name)


def _value(context: typer.Context, option: Any, file: Path, name: str, value: Any) -> Any:
    """Return a value in a file, if the option takes it; UsageError if not."""
    shown = repr(value).lower() if isinstance(value, bool) else repr(value)
    if option.is_flag != isinstance(value, bool) or isinstance(value, dict):
        kind = "true or false" if option.is_flag else "a value of its own"
        raise UsageError(f"{file} sets {name} to {shown}: it takes {kind}.")
    if option.multiple and not isinstance(value, list):
        value = [value]
    try:
        option.process_value(context, value)
    except Exception as error:
        if not (message := getattr(error, "message", "")):  # not every version of typer exports the class
            raise
        reason = message.removeprefix("Value error, ").rstrip(".")
        raise UsageError(f"{file} sets {name} to {shown}, which it does not take: {reason}.") from None
    return value
