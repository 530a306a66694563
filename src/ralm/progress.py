"""Progress on standard error, for whatever takes more than a second: a bar in a terminal, else a line now and then.

`RALM_PROGRESS=0` in the environment turns all of it off.
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
"""The variable of the environment that is 0 where no progress is to be shown."""


class _Rate(ProgressColumn):
    """How many are done in a second."""

    def render(self, task: Task) -> Text:
        """Empty until something was done."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


class Advance(Protocol):
    """What moves a bar on."""

    def __call__(self, steps: int = 1) -> None:
        """Say that `steps` more are done."""


def _unseen(steps: int = 1) -> None:
    """Where there is no bar to move on."""


@contextmanager
def progress_bar(description: str, total: int | None = None, *, shown: bool = True) -> Iterator[Advance]:
    """A bar that is gone when the work is done; where standard error is no terminal, a line every half minute."""
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
    """Within, neither this process nor those that it starts show progress."""
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
    """How far the work is, as lines for a log; work that is done before the first of them writes none."""

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
