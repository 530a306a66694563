"""What people see in a terminal: progress on standard error, and text without characters that act on the terminal.

Work that takes more than a second shows a bar in a terminal, else a line now and then. The environment variable
`RALM_PROGRESS=0` turns it off.

Passages, titles and file names are untrusted, so everything that is printed for a person goes through `visible` or
`one_line`: escape sequences can fill clipboards, and other characters overwrite lines or show them in another order.
"""

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_A_LINE: Final = 30.0
PROGRESS_SWITCH: Final = "RALM_PROGRESS"
"""The environment variable that turns progress off if it is 0."""


class Advance(Protocol):
    """A function that advances a progress bar."""

    def __call__(self, steps: int = 1) -> None:
        """Report that `steps` more are done."""


def _ignore(steps: int = 1) -> None:
    """Show no progress."""


@contextmanager
def progress_bar(description: str, total: int | None = None, *, shown: bool = True) -> Iterator[Advance]:
    """Show a bar while the block runs; a line every 30 seconds if standard error is not a terminal."""
    if not shown or os.environ.get(PROGRESS_SWITCH) == "0":
        yield _ignore
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(description, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=total)

        def advance(steps: int = 1) -> None:
            bar.advance(task, steps)

        yield advance


@contextmanager
def no_progress() -> Iterator[None]:
    """Show no progress in this block, in this process and those that it starts."""
    before = os.environ.get(PROGRESS_SWITCH)
    os.environ[PROGRESS_SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PROGRESS_SWITCH]
        else:
            os.environ[PROGRESS_SWITCH] = before


class _Lines:
    """Progress as log lines, one every `_SECONDS_A_LINE`."""

    def __init__(self, description: str, total: int | None) -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._begin = self._written = time.monotonic()

    def __call__(self, steps: int = 1) -> None:
        self._done += steps
        now = time.monotonic()
        if now - self._written >= _SECONDS_A_LINE:
            self._written = now
            sys.stderr.write(f"ralm: {self._line(self._done / max(now - self._begin, 1e-9))}\n")
            sys.stderr.flush()

    def _line(self, rate: float) -> str:
        of, rest = "", ""
        if self._total is not None:
            of = f" of {self._total:,}"
            rest = f", {timedelta(seconds=round((self._total - self._done) / rate))} left"
        return f"{self._description}: {self._done:,}{of}, {rate:,.1f} a second{rest}"


_Element = TypeVar("_Element")


def track(elements: Iterable[_Element], description: str, total: int | None = None) -> Iterator[_Element]:
    """Yield the elements, and show a bar that counts them."""
    with progress_bar(description, total) as advance:
        for element in elements:
            yield element
            advance()


_BEYOND_ASCII: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Delete and the C1 controls, direction marks and overrides, line separators, and surrogates."""
_CONTROLS: Final = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1f{_BEYOND_ASCII}]|\r(?!\n)")
_CONTROLS_IN_JSON: Final = re.compile(f"[{_BEYOND_ASCII}]")
_BREAKS: Final = re.compile(r"\r\n|[\n\t]")


def visible(text: str) -> str:
    r"""Return the text with control characters as escapes such as `\x1b`; line breaks and tabs stay as they are."""
    return _CONTROLS.sub(lambda match: _escape(match[0]), text)


def one_line(text: str) -> str:
    """Return what `visible` does, for a name or a message: line breaks and tabs become escapes too."""
    return _BREAKS.sub(lambda match: _escape(match[0]), visible(text))


def path_text(path: str | os.PathLike[str]) -> str:
    r"""Return a path as text that any file can hold: bytes that are not UTF-8 become escapes such as `\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def to_json(value: Any, indent: int | None = None) -> str:
    """Return JSON for any parser and terminal: infinity and NaN are null, and control characters escapes."""
    text = json.dumps(_finite(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return _CONTROLS_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(member) for member in value]
    return value


def _escape(characters: str) -> str:
    return characters.encode("unicode_escape").decode()
