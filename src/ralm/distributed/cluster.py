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

_S = TypeVar("_S")
_T = TypeVar("_T")
_R = TypeVar("_R")

_AUTO: Final = "auto"
_START: Final = "Start one with `ray start --head`, and `ray start --address=...` on its other machines"
_CONNECT_SECONDS: Final = 5.0
_MARKER: Final = "seen"
_VERSIONS: Final = {"ralm": lambda: __version__, "Ray": lambda: ray.__version__, "Python": platform.python_version}
MAX_CRASHES: Final = 3
"""How often a task may end its process before it is halved or given up."""
_MAX_LOST: Final = 10
"""How many machines may be lost during a task before it counts as the cause."""
_LATE: Final = 4.0
"""A straggler takes this many times as long as the median task."""
_MIN_LATE_SECONDS: Final = 30.0
_MIN_DONE: Final = 3
"""Tasks that must be done before stragglers are named."""
_AHEAD: Final = 2
"""Tasks that are handed to the cluster, for each of its processors."""
_NOT_IMPORTED: Final = "failed to import on the worker"
"""Ray's message where a machine cannot import our code."""
PAUSE: Final = 1.0
"""Seconds to wait for a result before looking around."""


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Use the cluster at an address: HOST:PORT, or `auto` for the one that this machine belongs to.

    A process that is connected already stays connected. Raises ClusterError if there is no cluster, or if it runs other
    versions of Ray or Python.
    """
    if ray.is_initialized():
        yield
        return
    if address != _AUTO:
        _check_answers(address)
    try:
        with own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:
        if address != _AUTO:
            raise ClusterError(f"{address} is not a Ray cluster, or it needs a token; set RAY_AUTH_TOKEN.") from None
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
    """Keep our handler of SIGTERM, since Ray's prints a trace."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if current_thread() is main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


def processors() -> int:
    """The number of processors that the cluster has now, at least 1."""
    machines: Any = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return max(1, int(machines.get("CPU", 0)))


@dataclass(frozen=True, slots=True)
class Requirements:
    """What every machine must have: versions by name, files or folders to `read`, and a folder to write to.

    The machine sees the folder `shared` as this one does if the file `marker` is in it.
    """

    versions: tuple[tuple[str, str], ...]
    read: tuple[Path, ...]
    marker: str = ""
    shared: Path | None = None

    @classmethod
    def reading(cls, read: Sequence[Path], packages: Sequence[str] = ()) -> "Requirements":
        """The requirements of a job that writes nothing; versions of `packages` matter besides the usual ones."""
        return cls(_versions(packages), tuple(read))

    @classmethod
    @contextmanager
    def writing(cls, shared: Path, read: Sequence[Path], packages: Sequence[str] = ()) -> "Iterator[Requirements]":
        """The requirements of a job that writes to `shared`, where the marker is within the block."""
        marker = shared / f"{_MARKER}-{uuid.uuid4().hex}"
        marker.touch()
        try:
            yield replace(cls.reading(read, packages), shared=shared, marker=marker.name)
        finally:
            marker.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise ClusterError if this machine does not meet them."""
        if self not in _met:
            if problem := self._problem():
                raise ClusterError(f"the machine {platform.node()} of the cluster {problem}.")
            _met.add(self)

    def _problem(self) -> str:
        """The requirement that this machine does not meet, in words; empty if it meets all."""
        for name, here in self.versions:
            there = _VERSIONS[name]() if name in _VERSIONS else _version_of(name)
            if there != here:
                return f"has {name} {there} where this one has {here}: install the same on all"
        for path in self.read:
            if not path.exists():
                return f"cannot read {path}: put it on a disk that all share"
        return "" if self.shared is None else self._writing_problem(self.shared)

    def _writing_problem(self, shared: Path) -> str:
        if not (shared / self.marker).exists():
            return f"does not see {shared} as this one does: use a folder on a disk that all share"
        try:
            own = shared / f"{self.marker}-{uuid.uuid4().hex}"
            own.touch()
            own.unlink()
        except OSError as error:
            return f"cannot write to {shared} ({error.strerror}): allow that, or choose another output"
        return ""


_met: set[Requirements] = set()
"""Requirements that this process has been found to meet."""


def _versions(packages: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The versions that decide the results of this machine."""
    own = tuple((name, version()) for name, version in _VERSIONS.items())
    return (*own, *((name, _version_of(name)) for name in ("PyStemmer", *packages)))


def _version_of(package: str) -> str:
    """The version of a package; builds of one version for other devices are alike."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return "missing"


def _check_answers(address: str) -> None:
    """Raise ClusterError unless a server answers at the address; Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ClusterError(f"{address!r} is not the address of a cluster: give HOST:PORT, or auto.")
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"there is no Ray cluster at {address} ({error}). {_START}, or give another address."
        ) from None


@dataclass(slots=True, eq=False)
class ClusterJob(Generic[_T]):
    """A task and its place in the order: a half has the place of its task and 0 or 1."""

    task: _T
    place: tuple[int, ...]
    crashes: int = 0
    lost: int = 0
    started: float = 0.0
    is_reported: bool = False


class TaskQueue(Generic[_T]):
    """Tasks in order. `describe` names a task in messages; `halves` returns two tasks that do the same as one, or None
    if it cannot be halved."""

    def __init__(
        self, tasks: Iterable[_T], describe: Callable[[_T], str], halves: Callable[[_T], Sequence[_T] | None]
    ) -> None:
        self._waiting = deque(ClusterJob(task, (number,)) for number, task in enumerate(tasks))
        self.describe = describe
        self._halves = halves
        self._running: list[ClusterJob[_T]] = []
        self._seconds: list[float] = []
        self.total = len(self._waiting)

    @property
    def is_done(self) -> bool:
        """Whether no task waits or runs."""
        return not self._waiting and not self._running

    def begin(self, now: float) -> ClusterJob[_T] | None:
        """Start the next task at `now` (seconds); None if none waits."""
        if not self._waiting:
            return None
        job = self._waiting.popleft()
        job.started = now
        self._running.append(job)
        return job

    def finish(self, job: ClusterJob[_T], now: float) -> None:
        """Finish a task at `now` (seconds)."""
        self._running.remove(job)
        self._seconds.append(now - job.started)

    def lost(self, job: ClusterJob[_T]) -> bool:
        """Do a task again whose machine was lost; False if that has happened too often."""
        job.lost += 1
        return self._again(job) if job.lost < _MAX_LOST else self.crashed(job)

    def crashed(self, job: ClusterJob[_T]) -> bool:
        """Do a task again, or in halves, that has ended its process; False if it is dropped."""
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

    def warn_of_stragglers(self, now: float) -> None:
        """Give a RalmWarning for each task that has become a straggler at `now` (seconds)."""
        if len(self._seconds) < _MIN_DONE:
            return
        usual = median(self._seconds)
        for job in self._running:
            seconds = now - job.started
            if not job.is_reported and seconds > max(_LATE * usual, _MIN_LATE_SECONDS):
                job.is_reported = True
                message = (
                    f"{self.describe(job.task)} has taken {seconds:,.0f} s so far, where others took {usual:,.0f} s."
                )
                warnings.warn(message, RalmWarning, stacklevel=3)

    def _again(self, job: ClusterJob[_T]) -> bool:
        self._running.remove(job)
        self._waiting.appendleft(job)
        return True


def run_tasks(
    function: Callable[[_S, _T], _R],
    shared: _S,
    tasks: Iterable[_T],
    *,
    title: str,
    describe: Callable[[_T], str],
    on_crash: Callable[[_T], None],
    halves: Callable[[_T], Sequence[_T] | None] = lambda _: None,
) -> list[tuple[_T, _R]]:
    """The results of `function(shared, task)` for tasks, in order, each with its task or half of a task.

    `title` is that of the progress bar; `describe` names a task in messages. `on_crash` is called for a task that ends
    its process each time and cannot be halved; if it raises no error, the task is skipped. Raises the errors of the
    function.
    """
    queue = TaskQueue(tasks, describe, halves)
    remote: Any = ray.remote(num_cpus=1, max_retries=0)(without_progress)
    shared_ref = ray.put(shared)
    running: dict[Any, ClusterJob[_T]] = {}
    results: dict[tuple[int, ...], tuple[_T, _R]] = {}
    with progress_bar(title, queue.total) as advance:
        while not queue.is_done:
            room = _AHEAD * processors() - len(running)
            while room > 0 and (job := queue.begin(time.monotonic())):
                running[remote.remote(function, shared_ref, job.task)] = job
                room -= 1
            ready, _ = ray.wait([*running], timeout=PAUSE)
            for ref in ready:
                job = running.pop(ref)
                try:
                    results[job.place] = job.task, ray.get(ref)
                except RayError as error:
                    if not _runs_again(queue, job, error):
                        on_crash(job.task)
                else:
                    queue.finish(job, time.monotonic())
                    if len(job.place) == 1:
                        advance()
            queue.warn_of_stragglers(time.monotonic())
    return [results[place] for place in sorted(results)]


def _runs_again(queue: TaskQueue[_T], job: ClusterJob[_T], error: RayError) -> bool:
    """Whether a task is done again after an error; raises those of its function, and of a cluster that fails."""
    if isinstance(error, RayTaskError):
        raise_cause(error)
    if isinstance(error, NodeDiedError | ObjectLostError):
        return queue.lost(job)
    if isinstance(error, WorkerCrashedError | OutOfMemoryError):
        return queue.crashed(job)
    raise cluster_failure(error) from error


def cluster_failure(error: RayError) -> ClusterError:
    """The error for a cluster that fails during a job."""
    return ClusterError(f"the cluster has failed: {error}. Run this again to go on where it stopped.")


def raise_cause(error: RayTaskError) -> NoReturn:
    """Raise the error of a function that ran on a machine."""
    if isinstance(error.cause, ImportError | RaySystemError) or _NOT_IMPORTED in str(error.cause):
        why = str(error.cause).splitlines()[0]
        raise ClusterError(
            f"a machine of the cluster does not have what this one has ({why}): install the same on all."
        )
    if isinstance(error.cause, Exception):
        raise error.cause from None
    raise error


def without_progress(function: Callable[[_S, _T], _R], shared: _S, task: _T) -> _R:
    """Call a function on a machine, which must show no progress."""
    with no_progress():
        return function(shared, task)
