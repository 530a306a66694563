"""Connects to a Ray cluster, checks its machines, and runs tasks on it.

Tasks are done in order, a bounded number at a time. A task is done again if its machine is lost. A task that ends its
process again and again holds something bad: it is done in halves, and these in halves, until the bad part stands alone.
"""

import logging
import platform
import signal
import socket
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from threading import current_thread, main_thread
from typing import Any, Final, Generic, NoReturn, TypeVar

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

from ralm.errors import ClusterError, RalmWarning
from ralm.terminal import no_progress, progress_bar
from ralm.version import __version__

_T = TypeVar("_T")
_R = TypeVar("_R")

MAX_CRASHES: Final = 3
"""How often a task may end its process before it is halved or given up."""
_MACHINES: Final = 10
"""How many machines may be lost under a task before it is taken for the cause."""
_LATE: Final = 4.0
_LATE_SECONDS: Final = 30.0
_ENOUGH: Final = 3


@dataclass(slots=True, eq=False)
class ClusterJob(Generic[_T]):
    """A task, and its place in the order: a half of a task has the place of the task and 0 or 1."""

    task: _T
    place: tuple[int, ...]
    crashes: int = 0
    lost: int = 0
    begun: float = 0.0
    named: bool = False


class TaskQueue(Generic[_T, _R]):
    """The tasks, in order. `halves` gives two tasks that do the same as one; None if it cannot be halved."""

    def __init__(self, tasks: Iterable[_T], halves: Callable[[_T], Sequence[_T] | None]) -> None:
        self._waiting = deque(ClusterJob(task, (number,)) for number, task in enumerate(tasks))
        self._halves = halves
        self._running: list[ClusterJob[_T]] = []
        self._results: dict[tuple[int, ...], tuple[_T, _R]] = {}
        self._seconds: list[float] = []
        self.total = len(self._waiting)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return not self._waiting and not self._running

    def begin(self, now: float) -> ClusterJob[_T] | None:
        """The next task to be run; None if none waits. `now` is in seconds."""
        if not self._waiting:
            return None
        job = self._waiting.popleft()
        job.begun = now
        self._running.append(job)
        return job

    def done(self, job: ClusterJob[_T], result: _R, now: float) -> None:
        """A task is done; its result is kept for `results`."""
        self.given(job, now)
        self._results[job.place] = job.task, result

    def given(self, job: ClusterJob[_T], now: float) -> None:
        """A task is done, and its result was given to whoever wanted it."""
        self._running.remove(job)
        self._seconds.append(now - job.begun)

    def lost(self, job: ClusterJob[_T]) -> bool:
        """The machine of a task was lost: it is done again. Returns False if that has happened too often."""
        job.lost += 1
        return self._again(job) if job.lost < _MACHINES else self.crashed(job)

    def crashed(self, job: ClusterJob[_T]) -> bool:
        """A task has ended its process: it is done again, or in halves. Returns False if it can be neither: then it is
        dropped."""
        job.crashes += 1
        is_half = len(job.place) > 1
        if not is_half and job.crashes < MAX_CRASHES:
            return self._again(job)
        halves = self._halves(job.task)
        if halves is not None:
            self._running.remove(job)
            self._waiting.extendleft(
                ClusterJob(half, (*job.place, number)) for number, half in reversed([*enumerate(halves)])
            )
            return True
        if job.crashes < MAX_CRASHES:
            return self._again(job)
        self._running.remove(job)
        return False

    def late(self, now: float) -> list[tuple[_T, float, float]]:
        """The tasks that have become stragglers: each with the seconds that it runs, and those of the median task."""
        if len(self._seconds) < _ENOUGH:
            return []
        usual = median(self._seconds)
        late = [job for job in self._running if not job.named and now - job.begun > max(_LATE * usual, _LATE_SECONDS)]
        for job in late:
            job.named = True
        return [(job.task, now - job.begun, usual) for job in late]

    def results(self) -> list[tuple[_T, _R]]:
        """The tasks that were done, in order, with their results."""
        return [self._results[place] for place in sorted(self._results)]

    def _again(self, job: ClusterJob[_T]) -> bool:
        self._running.remove(job)
        self._waiting.appendleft(job)
        return True


AUTO: Final = "auto"
SEEN: Final = "seen"
"""What the names of markers begin with."""
_SECONDS_TO_ANSWER: Final = 5.0
_START: Final = "Start one with `ray start --head`, and `ray start --address=...` on its other machines"


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Use the cluster at an address, HOST:PORT, or the one that this machine belongs to (`auto`); one that this process
    is connected to already stays connected.

    Raises ClusterError if there is none, or if it runs other versions of Ray or Python.
    """
    if ray.is_initialized():
        yield
        return
    if address != AUTO:
        _check_answers(address)
    try:
        with own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:
        if address != AUTO:
            raise ClusterError(
                f"what answers at {address} is no Ray cluster, or one with a token, which goes into RAY_AUTH_TOKEN."
            ) from None
        raise ClusterError(f"there is no Ray cluster on this machine. {_START}, or give an address.") from None
    except RuntimeError as error:
        if "mismatch" not in str(error):
            raise
        raise ClusterError(
            f"the cluster at {address} has other versions than this machine, which has Ray {ray.__version__} and "
            f"Python {platform.python_version()}; install the same on all machines."
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def own_signals() -> Iterator[None]:
    """Keep our handler of SIGTERM: Ray's prints a trace."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if current_thread() is main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


def processors() -> int:
    """How many processors the machines of the cluster have now, at least 1."""
    machines: Any = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return max(1, int(machines.get("CPU", 0)))


@dataclass(frozen=True, slots=True)
class Requirements:
    """What every machine must have: these versions, each with its name; files or folders to `read`; and if something is
    written, the folder `shared` with the file `marker`, to be written to."""

    versions: tuple[tuple[str, str], ...]
    read: tuple[Path, ...]
    marker: str = ""
    shared: Path | None = None

    @classmethod
    def reading(cls, read: Sequence[Path], packages: Sequence[str] = ()) -> "Requirements":
        """What this machine has, if nothing is written. Versions of `packages` matter, besides the usual ones."""
        return cls(_versions(packages), tuple(read))

    @classmethod
    @contextmanager
    def of(cls, shared: Path, read: Sequence[Path], packages: Sequence[str] = ()) -> "Iterator[Requirements]":
        """The same with a folder to be written to. The marker is there within the block."""
        marker = shared / f"{SEEN}-{uuid.uuid4().hex}"
        marker.touch()
        try:
            yield replace(cls.reading(read, packages), shared=shared, marker=marker.name)
        finally:
            marker.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise ClusterError if the machine that this runs on lacks something."""
        if self in _checked:
            return
        if lacks := self._lacks():
            raise ClusterError(f"the machine {platform.node()} of the cluster {lacks}.")
        _checked.add(self)

    def _lacks(self) -> str:
        """What this machine lacks, in words; empty if nothing."""
        for name, here in self.versions:
            there = _VERSIONS[name]() if name in _VERSIONS else _version_of(name)
            if there != here:
                return f"has {name} {there} where this one has {here}: install the same on all"
        for path in self.read:
            if not path.exists():
                return f"cannot read {path}: put it on a disk that all share"
        return "" if self.shared is None else self._cannot_write(self.shared)

    def _cannot_write(self, shared: Path) -> str:
        if not (shared / self.marker).exists():
            return f"does not see {shared} as this one does: use a folder on a disk that all share"
        try:
            own = shared / f"{self.marker}-{uuid.uuid4().hex}"
            own.touch()
            own.unlink()
        except OSError as error:
            return f"cannot write to {shared} ({error.strerror}): allow that, or choose another output"
        return ""


_checked: set[Requirements] = set()
"""What this process has been found to have."""


_VERSIONS: Final = {"ralm": lambda: __version__, "Ray": lambda: ray.__version__, "Python": platform.python_version}


def _versions(packages: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The versions that decide what this machine computes."""
    own = tuple((name, version()) for name, version in _VERSIONS.items())
    return (*own, *((name, _version_of(name)) for name in ("PyStemmer", *packages)))


def _version_of(package: str) -> str:
    """The version of a package; builds of one version for other devices are alike."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return "missing"


def _check_answers(address: str) -> None:
    """Raise ClusterError unless something answers there: Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ClusterError(f"{address!r} is not the address of a cluster: give HOST:PORT, or auto.")
    try:
        socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"there is no Ray cluster at {address} ({error}). {_START}, or give another address."
        ) from None


_S = TypeVar("_S")

_AHEAD: Final = 2
"""Tasks that are handed to the cluster, for each of its processors."""
_NOT_IMPORTED: Final = "failed to import on the worker"
"""What Ray says where a machine cannot import our code."""
PAUSE: Final = 1.0
"""The most seconds to wait for an answer before looking around."""


def run_tasks(
    function: Callable[[_S, _T], _R],
    shared: _S,
    tasks: Iterable[_T],
    *,
    shown: str,
    name: Callable[[_T], str],
    bad: Callable[[_T], None],
    halves: Callable[[_T], Sequence[_T] | None] = lambda _: None,
) -> list[tuple[_T, _R]]:
    """The results of `function(shared, task)` for tasks, in order, each with its task; of halves where one was halved.

    `shown` is the title of the progress bar, `name` what a task is called in messages. `bad` is called for a task that
    ends its process each time and cannot be halved; unless it raises an error, the task is left out. Raises what the
    function raises.
    """
    work: TaskQueue[_T, _R] = TaskQueue(tasks, halves)
    remote: Any = ray.remote(num_cpus=1, max_retries=0)(without_progress)
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


def _take(work: TaskQueue[_T, _R], job: Any, answer: Any, bad: Callable[[_T], None]) -> bool:
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


def name_late(work: TaskQueue[_T, _R], name: Callable[[_T], str]) -> None:
    """Give a RalmWarning for each task that has become a straggler."""
    for task, seconds, usual in work.late(time.monotonic()):
        warnings.warn(
            f"{name(task)} has taken {seconds:,.0f} s so far, where others took {usual:,.0f} s.",
            RalmWarning,
            stacklevel=3,
        )


def without_progress(function: Callable[[_S, _T], _R], shared: _S, task: _T) -> _R:
    """Call a function on a machine of the cluster, which shows no progress."""
    with no_progress():
        return function(shared, task)
