"""Progress bars on standard error, for whatever takes more than a second."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(ProgressColumn):
    """How many are done in a second."""

    def render(self, task: Task) -> Text:
        """Empty until something was done."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


class Advance(Protocol):
    """What moves a bar on."""

    def __call__(self, steps: int = 1) -> None:
        """Say that `steps` more are done."""


@contextmanager
def progress_bar(description: str, total: int | None = None) -> Iterator[Advance]:
    """A bar that is drawn only where standard error is a terminal, and gone when the work is done."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)

        def advance(steps: int = 1) -> None:
            bar.advance(task, steps)

        yield advance


Item = TypeVar("Item")


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """The same items, with a bar that counts them."""
    with progress_bar(description, total) as advance:
        for item in items:
            yield item
            advance()
