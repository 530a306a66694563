"""Connects to a Ray cluster, checks its machines, and says which task is next.

A task is done again if its machine is lost. A task that ends its process again and again holds something bad: it is
done in halves, and these in halves, until the bad part stands alone, which is an error.
"""

import logging
import platform
import signal
import socket
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
from typing import Final, Generic, TypeVar

import ray

from ralm.errors import ClusterError, RalmWarning
from ralm.version import __version__

_T = TypeVar("_T")

_AUTO: Final = "auto"
_START: Final = "Start one with `ray start --head`, and `ray start --address=...` on its other machines"
_CONNECT_SECONDS: Final = 5.0
_MARKER: Final = "seen"
_VERSIONS: Final = ("ralm", "Ray", "Python")
"""What must have the same version on all machines, besides the packages that decide the results of a job."""
MAX_CRASHES: Final = 3
"""How often a task may end its process before it is halved or is an error."""
_MAX_LOST: Final = 10
"""How many machines may be lost during a task before it counts as the cause."""
_LATE: Final = 4.0
"""A straggler takes this many times as long as the median task."""
_MIN_LATE_SECONDS: Final = 30.0
_MIN_DONE: Final = 3
"""Tasks that must be done before stragglers are named."""


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
    def reading(cls, read: Sequence[Path], packages: Sequence[str]) -> "Requirements":
        """The requirements of a job that writes nothing; `packages` are those whose versions decide its results."""
        return cls(tuple((name, _version_of(name)) for name in (*_VERSIONS, *packages)), tuple(read))

    @classmethod
    @contextmanager
    def writing(cls, shared: Path, read: Sequence[Path], packages: Sequence[str]) -> "Iterator[Requirements]":
        """The requirements of a job that writes to `shared`, where the marker is within the block."""
        marker = shared / f"{_MARKER}-{uuid.uuid4().hex}"
        marker.touch()
        try:
            yield replace(cls.reading(read, packages), shared=shared, marker=marker.name)
        finally:
            marker.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise ClusterError if this machine does not meet them."""
        if problem := self._problem():
            raise ClusterError(f"the machine {platform.node()} of the cluster {problem}.")

    def _problem(self) -> str:
        """The requirement that this machine does not meet, in words; empty if it meets all."""
        for name, here in self.versions:
            if (there := _version_of(name)) != here:
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


def _version_of(name: str) -> str:
    """The version of Python or of a package here; builds of one version for other devices are alike."""
    match name:
        case "Python":
            return platform.python_version()
        case "ralm":
            return __version__
    try:
        return version(name).partition("+")[0]
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
    """A task, and what became of it so far."""

    task: _T
    is_half: bool = False
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
        self._waiting = deque(map(ClusterJob[_T], tasks))
        self._describe = describe
        self._halves = halves
        self._running: list[ClusterJob[_T]] = []
        self._seconds: list[float] = []

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

    def lost(self, job: ClusterJob[_T]) -> None:
        """Do a task again whose machine was lost; if that happens too often, the task counts as the cause."""
        job.lost += 1
        if job.lost < _MAX_LOST:
            self._again(job)
        else:
            self.crashed(job)

    def crashed(self, job: ClusterJob[_T]) -> None:
        """Do a task again, or in halves, that has ended its process; raise ClusterError if it does so each time."""
        job.crashes += 1
        tries_left = job.crashes < MAX_CRASHES
        halves = None if tries_left and not job.is_half else self._halves(job.task)
        if halves is None and tries_left:
            self._again(job)
            return
        self._running.remove(job)
        if halves is None:
            raise ClusterError(
                f"{self._describe(job.task)} ends its process, each of {MAX_CRASHES} times; the machines may have too "
                "little memory."
            )
        self._waiting.extendleft(ClusterJob(half, is_half=True) for half in reversed(halves))

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
                    f"{self._describe(job.task)} has taken {seconds:,.0f} s so far, where others took {usual:,.0f} s."
                )
                warnings.warn(message, RalmWarning, stacklevel=3)

    def _again(self, job: ClusterJob[_T]) -> None:
        self._running.remove(job)
        self._waiting.appendleft(job)
