"""What the program says on standard error: notes on the way, and the sentence that it ends with."""

import io
import re
import sys
from collections.abc import Mapping
from typing import Final, Protocol, TextIO

from ralm.controls import one_line, visible

_QUOTE: Final = '"'
_ARGUMENT: Final = re.compile(r'`(?:([\w.]+)(?:=("[^"`]*"|[^"`]*))?|"([^"`]*)")`')


class ShownError(Protocol):
    """An error of the command line's parser, which knows how it wants to be shown."""

    exit_code: int

    def show(self, file: TextIO) -> None:
        """Write how the command is called and what was wrong."""


def note(text: str) -> None:
    """One line about what is going on."""
    sys.stderr.write(f"ralm: {one_line(text)}\n")


def print_usage_error(error: ShownError) -> None:
    """How the command is called, and what was wrong with the call."""
    shown = io.StringIO()
    error.show(file=shown)
    sys.stderr.write(visible(shown.getvalue()))


def print_whatever_comes() -> None:
    """Let no character that the encoding of a terminal or pipe lacks end the program: it is written as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def with_flags(text: str, names: Mapping[str, str]) -> str:
    """A message that names Python's arguments in backticks, with the flags of these names instead.

    `stride` becomes --stride, `retriever="dense"` --retriever dense, and `force=True` --force.
    """
    return _ARGUMENT.sub(lambda found: _flag(found, names), text)


def _flag(found: re.Match[str], names: Mapping[str, str]) -> str:
    name, value, alone = found.groups()
    if alone is not None:
        return str(alone)
    if f"{name}={value}" in names:
        return names[f"{name}={value}"]
    if name not in names:
        return found[0]
    return f"{names[name]} {value.strip(_QUOTE)}" if value and value.startswith(_QUOTE) else names[name]
