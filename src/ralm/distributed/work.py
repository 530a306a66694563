"""What is to be done, and what becomes of it: tasks in order, done again if a machine is lost, halved if they crash.

A task that ends its process again and again holds something bad. It is done in halves, and these in halves, until what
is bad stands alone. Knows nothing of what tasks are, and nothing of Ray.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

TRIES: Final = 3
"""How often a task may end its process before it is halved or given up."""
_MACHINES: Final = 10
"""How many machines may be lost under a task before it is taken for the cause."""
_LATE: Final = 4.0
_LATE_SECONDS: Final = 30.0
_ENOUGH: Final = 3


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """A task, and its place in the order: a half of a task has the place of the task and 0 or 1."""

    task: T
    place: tuple[int, ...]
    crashes: int = 0
    lost: int = 0
    begun: float = 0.0
    named: bool = False


class Work(Generic[T, R]):
    """The tasks, in order. `halves` gives two tasks that do the same as one; None if it cannot be halved."""

    def __init__(self, tasks: Iterable[T], halves: Callable[[T], Sequence[T] | None]) -> None:
        self._waiting = deque(Job(task, (number,)) for number, task in enumerate(tasks))
        self._halves = halves
        self._running: list[Job[T]] = []
        self._results: dict[tuple[int, ...], tuple[T, R]] = {}
        self._seconds: list[float] = []
        self.total = len(self._waiting)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return not self._waiting and not self._running

    def begin(self, now: float) -> Job[T] | None:
        """The next task to be run; None if none waits. `now` is in seconds."""
        if not self._waiting:
            return None
        job = self._waiting.popleft()
        job.begun = now
        self._running.append(job)
        return job

    def done(self, job: Job[T], result: R, now: float) -> None:
        """A task is done; its result is kept for `results`."""
        self.given(job, now)
        self._results[job.place] = job.task, result

    def given(self, job: Job[T], now: float) -> None:
        """A task is done, and its result was given to whoever wanted it."""
        self._running.remove(job)
        self._seconds.append(now - job.begun)

    def lost(self, job: Job[T]) -> bool:
        """The machine of a task was lost: it is done again. Returns False if that has happened too often."""
        job.lost += 1
        return self._again(job) if job.lost < _MACHINES else self.crashed(job)

    def crashed(self, job: Job[T]) -> bool:
        """A task has ended its process: it is done again, or in halves. Returns False if it can be neither: then it is
        dropped."""
        job.crashes += 1
        is_half = len(job.place) > 1
        if not is_half and job.crashes < TRIES:
            return self._again(job)
        halves = self._halves(job.task)
        if halves is not None:
            self._running.remove(job)
            self._waiting.extendleft(Job(half, (*job.place, number)) for number, half in reversed([*enumerate(halves)]))
            return True
        if job.crashes < TRIES:
            return self._again(job)
        self._running.remove(job)
        return False

    def late(self, now: float) -> list[tuple[T, float, float]]:
        """The tasks that have become stragglers: each with the seconds that it runs, and those of the median task."""
        if len(self._seconds) < _ENOUGH:
            return []
        usual = median(self._seconds)
        late = [job for job in self._running if not job.named and now - job.begun > max(_LATE * usual, _LATE_SECONDS)]
        for job in late:
            job.named = True
        return [(job.task, now - job.begun, usual) for job in late]

    def results(self) -> list[tuple[T, R]]:
        """The tasks that were done, in order, with their results."""
        return [self._results[place] for place in sorted(self._results)]

    def _again(self, job: Job[T]) -> bool:
        self._running.remove(job)
        self._waiting.appendleft(job)
        return True
