"""The process of a command: messages on standard error, signal handling and dry runs."""

import io
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Timer, current_thread, main_thread
from types import FrameType
from typing import Any, Final, NoReturn

from ralm.errors import RalmWarning
from ralm.terminal import no_progress, one_line

_PYTHONS_OWN: Final = warnings.showwarning
_AFTER_FINALIZER: Final = 0.01
"""Seconds until a signal is sent again that arrived in a finalizer."""
_logger: Final = logging.getLogger("ralm")
"""Notes of commands and messages of the library; `ralm --quiet` raises its level."""

_QUOTE: Final = '"'
_ARGUMENT: Final = re.compile(r'`(?:([\w.]+)(?:=("[^"`]*"|[^"`]*))?|"([^"`]*)")`')


def print_note(text: str) -> None:
    """Print one line, unless `ralm --quiet` is given."""
    _logger.info("%s", text)


def print_error(text: str) -> None:
    """Print one line: a warning or an error."""
    sys.stderr.write(f"ralm: {one_line(text)}\n")


@contextmanager
def quietly() -> Iterator[None]:
    """Print no notes and no progress inside the block, only warnings and errors."""
    level = _logger.level
    _logger.setLevel(logging.WARNING)
    try:
        with no_progress():
            yield
    finally:
        _logger.setLevel(level)


@contextmanager
def library_messages(shown: int = logging.INFO) -> Iterator[None]:
    """Print warnings and log records (from a level on) of the library as lines of this program, inside the block."""
    lines, level = _Lines(), _logger.level
    _logger.addHandler(lines)
    _logger.setLevel(shown)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RalmWarning)
            warnings.showwarning = _show_warning
            yield
    finally:
        _logger.setLevel(level)
        _logger.removeHandler(lines)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_error(record.getMessage())


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    if issubclass(category, RalmWarning):
        print_error(f"warning: {message}")
    else:
        _PYTHONS_OWN(message, category, *place, **more)


def escape_unprintable() -> None:
    """Print characters that the encoding of a terminal or pipe lacks as escapes, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def with_flags(text: str, names: Mapping[str, str]) -> str:
    """Return a message with flags in place of the Python arguments in backticks: `stride` becomes --stride."""
    return _ARGUMENT.sub(lambda match: _flag(match, names), text)


def _flag(match: re.Match[str], names: Mapping[str, str]) -> str:
    name, value, alone = match.groups()
    if alone is not None:
        return str(alone)
    if f"{name}={value}" in names:
        return names[f"{name}={value}"]
    if name not in names:
        return match[0]
    return f"{names[name]} {value.strip(_QUOTE)}" if value and value.startswith(_QUOTE) else names[name]


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP end the program with an exception and exit status 128 + the signal's number.

    A second signal of the same kind ends the program at once. Ignored signals, as under nohup, stay ignored. The status
    is the signal's even if cleaning up fails, as it may when the signal has ended the worker processes too.
    """
    if current_thread() is not main_thread():
        yield
        return
    received: list[int] = []

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def end_again(lost: "sys.UnraisableHookArgs") -> None:
        # Python drops an exception that is raised in a finalizer or a callback: send the signal again, after it.
        if received and isinstance(lost.exc_value, (KeyboardInterrupt, SystemExit)):
            signal.signal(received[-1], end)
            Timer(_AFTER_FINALIZER, os.kill, (os.getpid(), received[-1])).start()
        else:
            hook(lost)

    hook = sys.unraisablehook
    try:
        with ExitStack() as stack:
            stack.callback(setattr, sys, "unraisablehook", hook)
            sys.unraisablehook = end_again
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                if signal.getsignal(number) is signal.SIG_DFL:
                    stack.callback(signal.signal, number, signal.SIG_DFL)
                    signal.signal(number, end)
            yield
    except BaseException as error:  # Ray makes a KeyboardInterrupt of ours
        if not received or isinstance(error, GeneratorExit):  # that is if a signal arrived just before the block
            raise
    if received:  # also if code that catches everything caught the exception
        sys.exit(128 + received[0])
