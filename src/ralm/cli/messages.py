"""What the program says on standard error: notes on the way, and the sentence that it ends with."""

import io
import logging
import sys
from typing import Protocol, TextIO

from ralm.controls import one_line, visible


class ShownError(Protocol):
    """An error of the command line's parser, which knows how it wants to be shown."""

    exit_code: int

    def show(self, file: TextIO) -> None:
        """Write how the command is called and what was wrong."""


def note(text: str) -> None:
    """One line about what is going on."""
    sys.stderr.write(f"ralm: {one_line(text)}\n")


class _Notes(logging.Handler):
    """What the library logs, as lines about what is going on."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def print_what_is_logged() -> None:
    """Show what the library logs at INFO and above on standard error."""
    logger = logging.getLogger("ralm")
    if not any(isinstance(handler, _Notes) for handler in logger.handlers):
        logger.addHandler(_Notes())
    logger.setLevel(logging.INFO)


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
