"""Messages on standard error: notes, warnings and errors."""

import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, TextIO

from ralm.errors import RalmError, RalmWarning
from ralm.terminal import no_progress, one_line, visible

_PYTHONS_OWN: Final = warnings.showwarning
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)

_QUOTE: Final = '"'
_ARGUMENT: Final = re.compile(r'`(?:([\w.]+)(?:=("[^"`]*"|[^"`]*))?|"([^"`]*)")`')


class ShownError(Protocol):
    """An error of the command line parser, which can print itself."""

    exit_code: int

    def show(self, file: TextIO) -> None:
        """Write the usage of the command and what was wrong."""


def note(text: str) -> None:
    """Print one line about what is going on, unless `ralm --quiet` is given."""
    if not _quiet.get():
        complain(text)


def complain(text: str) -> None:
    """Print one line that must be seen: a warning or an error."""
    sys.stderr.write(f"ralm: {one_line(text)}\n")


@contextmanager
def quietly() -> Iterator[None]:
    """Inside the block, print no notes and no progress, only warnings and errors."""
    before = _quiet.set(True)
    try:
        with no_progress():
            yield
    finally:
        _quiet.reset(before)


@contextmanager
def library_messages() -> Iterator[None]:
    """Inside the block, print warnings and log records of the library as lines of this program."""
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


def untested_warning(versions: Sequence[str]) -> str:
    """One line that names versions of packages that were not tested."""
    return f"warning: ralm was not tested with {', '.join(versions)}"


def complain_of_untested_versions(error: BaseException) -> None:
    """After an error that began in a library, name the versions that ralm was not tested with, if there are any."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, (RalmError, OSError)):
        return
    from ralm.environment import untested_versions

    if versions := untested_versions():
        complain(untested_warning(versions))


def print_usage_error(error: ShownError) -> None:
    """Print the usage of the command and what was wrong with the call."""
    shown = io.StringIO()
    error.show(file=shown)
    sys.stderr.write(visible(shown.getvalue()))


def print_whatever_comes() -> None:
    """Print characters that the encoding of a terminal or pipe lacks as escapes, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def with_flags(text: str, names: Mapping[str, str]) -> str:
    """A message with the Python arguments in backticks replaced by their flags.

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
