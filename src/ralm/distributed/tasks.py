"""Runs tasks on the cluster: a bounded number at a time, each again if its machine is lost, in halves if it crashes."""

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn, TypeVar

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayError,
    RaySystemError,
    RayTaskError,
    WorkerCrashedError,
)

from ralm.distributed.cluster import processors
from ralm.distributed.work import Work
from ralm.errors import ClusterError, RalmWarning
from ralm.terminal import no_progress, progress_bar

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")

_AHEAD: Final = 2
"""Tasks that are handed to the cluster, for each of its processors."""
_NOT_IMPORTED: Final = "failed to import on the worker"
"""What Ray says where a machine cannot import our code."""
PAUSE: Final = 1.0
"""The most seconds to wait for an answer before looking around."""


def run_tasks(
    function: Callable[[S, T], R],
    shared: S,
    tasks: Iterable[T],
    *,
    shown: str,
    name: Callable[[T], str],
    bad: Callable[[T], None],
    halves: Callable[[T], Sequence[T] | None] = lambda _: None,
) -> list[tuple[T, R]]:
    """The results of `function(shared, task)` for tasks, in order, each with its task; of halves where one was halved.

    `shown` is the title of the progress bar, `name` what a task is called in messages. `bad` is called for a task that
    ends its process each time and cannot be halved; unless it raises an error, the task is left out. Raises what the
    function raises.
    """
    work: Work[T, R] = Work(tasks, halves)
    remote: Any = ray.remote(num_cpus=1, max_retries=0)(quietly)
    held = ray.put(shared)
    running: dict[Any, Any] = {}
    with progress_bar(shown, work.total) as advance:
        while not work.is_done:
            room = _AHEAD * processors() - len(running)
            while room > 0 and (job := work.begin(time.monotonic())):
                running[remote.remote(function, held, job.task)] = job
                room -= 1
            ready, _ = ray.wait([*running], timeout=PAUSE)
            for one in ready:
                job = running.pop(one)
                whole = len(job.place) == 1
                if _take(work, job, one, bad) and whole:
                    advance()
            name_late(work, name)
    return work.results()


def _take(work: Work[T, R], job: Any, answer: Any, bad: Callable[[T], None]) -> bool:
    """Take the answer of a task; returns whether it was done."""
    try:
        result = ray.get(answer)
    except RayTaskError as error:
        raise_cause(error)
    except (NodeDiedError, ObjectLostError):
        going_on = work.lost(job)
    except (WorkerCrashedError, OutOfMemoryError):
        going_on = work.crashed(job)
    except RayError as error:
        raise ClusterError(f"the cluster has failed: {error}. Run this again to go on where it stopped.") from error
    else:
        work.done(job, result, time.monotonic())
        return True
    if not going_on:
        bad(job.task)
    return False


def raise_cause(error: RayTaskError) -> NoReturn:
    """Raise the error of a function as if it had been called here."""
    if isinstance(error.cause, ImportError | RaySystemError) or _NOT_IMPORTED in str(error.cause):
        why = str(error.cause).splitlines()[0]
        raise ClusterError(
            f"a machine of the cluster does not have what this one has ({why}): install the same on all."
        )
    if isinstance(error.cause, Exception):
        raise error.cause from None
    raise error


def name_late(work: Work[T, R], name: Callable[[T], str]) -> None:
    """Give a RalmWarning for each task that has become a straggler."""
    for task, seconds, usual in work.late(time.monotonic()):
        warnings.warn(
            f"{name(task)} has taken {seconds:,.0f} s so far, where others took {usual:,.0f} s.",
            RalmWarning,
            stacklevel=3,
        )


def quietly(function: Callable[[S, T], R], shared: S, task: T) -> R:
    """Call a function on a machine of the cluster, which shows no progress."""
    with no_progress():
        return function(shared, task)
