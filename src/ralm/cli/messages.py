"""What the program says on standard error: notes on the way, and the sentence that it ends with."""

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, TextIO

from ralm.controls import one_line, visible
from ralm.errors import RalmWarning
from ralm.progress import no_progress

_PYTHONS_OWN: Final = warnings.showwarning
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


class ShownError(Protocol):
    """An error of the command line's parser, which knows how it wants to be shown."""

    exit_code: int

    def show(self, file: TextIO) -> None:
        """Write how the command is called and what was wrong."""


def note(text: str) -> None:
    """One line about what is going on, which `ralm --quiet` leaves out."""
    if not _quiet.get():
        complain(text)


def complain(text: str) -> None:
    """One line that must be seen: a warning, or the sentence that the program ends with."""
    sys.stderr.write(f"ralm: {one_line(text)}\n")


@contextmanager
def quietly() -> Iterator[None]:
    """Within, there are no notes and no progress, but warnings and errors."""
    before = _quiet.set(True)
    try:
        with no_progress():
            yield
    finally:
        _quiet.reset(before)


@contextmanager
def library_messages() -> Iterator[None]:
    """Within, what the library warns of and logs comes as lines of this program."""
    logger, lines = logging.getLogger("ralm"), _Lines(logging.INFO)
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RalmWarning)
            warnings.showwarning = _show_warning
            yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(lines)


class _Lines(logging.Handler):
    """Log records as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        say = note if record.levelno < logging.WARNING else complain
        say(record.getMessage())


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, RalmWarning):
        complain(f"warning: {message}")
    else:
        _PYTHONS_OWN(message, category, filename, lineno, file, line)


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
