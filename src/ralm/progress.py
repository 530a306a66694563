"""Progress on standard error for work that takes more than a second: a bar in a terminal, else a line now and then.

The environment variable `RALM_PROGRESS=0` turns it off.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

SECONDS_A_LINE: Final = 30.0
SWITCH: Final = "RALM_PROGRESS"
"""The environment variable that turns progress off if it is 0."""


class _Rate(ProgressColumn):
    """How many items are done per second."""

    def render(self, task: Task) -> Text:
        """Empty until the first item is done."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


class Advance(Protocol):
    """A function that advances a progress bar."""

    def __call__(self, steps: int = 1) -> None:
        """Report that `steps` more are done."""


def _unseen(steps: int = 1) -> None:
    """Used if no progress is shown."""


@contextmanager
def progress_bar(description: str, total: int | None = None, *, shown: bool = True) -> Iterator[Advance]:
    """A bar that disappears when the work is done; a line every 30 seconds if standard error is not a terminal."""
    if not shown or os.environ.get(SWITCH) == "0":
        yield _unseen
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(description, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=total)

        def advance(steps: int = 1) -> None:
            bar.advance(task, steps)

        yield advance


@contextmanager
def no_progress() -> Iterator[None]:
    """Inside the block, this process and the processes that it starts show no progress."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


class _Lines:
    """Progress as log lines; work that takes less than `SECONDS_A_LINE` writes none."""

    def __init__(self, description: str, total: int | None) -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._begin = self._written = time.monotonic()

    def __call__(self, steps: int = 1) -> None:
        self._done += steps
        now = time.monotonic()
        if now - self._written >= SECONDS_A_LINE:
            self._written = now
            sys.stderr.write(f"ralm: {self._line(self._done / max(now - self._begin, 1e-9))}\n")
            sys.stderr.flush()

    def _line(self, rate: float) -> str:
        of, left = "", ""
        if self._total is not None:
            of = f" of {self._total:,}"
            left = f", {timedelta(seconds=round((self._total - self._done) / rate))} left"
        return f"{self._description}: {self._done:,}{of}, {rate:,.0f} a second{left}"


Item = TypeVar("Item")


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """The same items, with a bar that counts them."""
    with progress_bar(description, total) as advance:
        for item in items:
            yield item
            advance()
