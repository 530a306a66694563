"""Connects to a Ray cluster, and runs tasks on workers: actors that hold what takes long to load.

A worker has the whole of its machine or GPU, so workers never compete. If a machine is lost, its tasks go to others; if
one joins, it gets work at once. A task that ends its process is done again, until it is an error.
"""

import gc
import logging
import platform
import signal
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Final, NoReturn, Protocol, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ralm import __version__
from ralm.errors import ClusterError, RalmError, RalmWarning, UsageError, short_message
from ralm.terminal import no_progress

_M_co = TypeVar("_M_co", covariant=True)
_M = TypeVar("_M")
_T = TypeVar("_T")
_R = TypeVar("_R")

_AUTO: Final = "auto"
_START: Final = "Start one with `ray start --head`, and `ray start --address=...` on its other machines"
_CONNECT_SECONDS: Final = 5.0
MAX_CRASHES: Final = 3
"""How often a task may end its process before it is an error."""
_AHEAD: Final = 2
"""Tasks that a worker is handed: one that runs, and one that waits for it."""
_PAUSE: Final = 1.0
"""Seconds to wait for a result before looking around."""
_UPDATE_SECONDS: Final = 2.0
_WARNING_SECONDS: Final = 60.0
_ENDED: Final = (
    ray.exceptions.RayActorError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.WorkerCrashedError,
)
"""Errors of tasks whose worker has ended."""
_DEVICES: Final = ("auto", "all", "cpu", "cuda", "map")
"""Devices on a cluster, where the number of a GPU has no meaning."""
_NOT_IMPORTED: Final = "failed to import on the worker"
"""Ray's message where a machine cannot import our code."""


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Use the cluster at an address, HOST:PORT or `auto`; ClusterError if it cannot be joined."""
    if ray.is_initialized():
        yield
        return
    if address != _AUTO:
        _check_answers(address)
    try:
        with own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError) as error:  # there is none, it needs a token, or it has other versions
        raise ClusterError(
            f"this machine cannot join the Ray cluster at {address}: {short_message(error)}. {_START}, with the same "
            "versions of Ray and Python and the same RAY_AUTH_TOKEN on all."
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


@dataclass(frozen=True, slots=True)
class Requirements:
    """What every machine must have: versions of packages by name, and files or folders to `read`."""

    versions: tuple[tuple[str, str], ...]
    read: tuple[Path, ...]

    @classmethod
    def of(cls, read: Sequence[Path], packages: Sequence[str]) -> "Requirements":
        """Return the requirements of a job; `packages` are those whose versions decide its results."""
        return cls(tuple((name, _version_of(name)) for name in ("ralm", *packages)), tuple(read))

    def check(self) -> None:
        """Raise ClusterError if this machine does not meet them."""
        machine = f"the machine {platform.node()} of the cluster"
        for name, here in self.versions:
            if (there := _version_of(name)) != here:
                raise ClusterError(f"{machine} has {name} {there} where this one has {here}: install the same on all.")
        for path in self.read:
            if not path.exists():
                raise ClusterError(f"{machine} cannot read {path}: put it on a disk that all share.")


def _version_of(name: str) -> str:
    """Return the version of a package here; builds of one version for other devices are alike."""
    return __version__ if name == "ralm" else version(name).partition("+")[0]


class Loader(Protocol[_M_co]):
    """A loader of an object on a machine. It is sent there, so it is small; equal loaders load equal objects."""

    @property
    def label(self) -> str:
        """The object's name in messages."""

    def __call__(self) -> _M_co:
        """Load the object."""

    def facts(self, loaded: Any) -> Any:
        """Return facts of the object that must be the same on all machines."""


class _Actor:
    """An actor that does tasks with objects, which it loads when they are first needed."""

    def __init__(self) -> None:
        gc.set_threshold(20_000)  # as in `ralm.cli.main`
        self._loaded: dict[Any, tuple[Any, Any]] = {}

    def do(self, loader: Loader[_M], function: Callable[[_M, _T], _R], task: _T) -> tuple[str, Any, _R]:
        """Do a task; return the name of the machine, the facts of the loaded object, and the result."""
        with no_progress():
            try:
                if loader not in self._loaded:
                    loaded = loader()
                    self._loaded[loader] = loaded, loader.facts(loaded)
            except ClusterError:
                raise
            except RalmError as error:
                raise ClusterError(f"on the machine {platform.node()} of the cluster: {error}") from None
            loaded, facts = self._loaded[loader]
            return platform.node(), facts, function(loaded, task)


@dataclass(frozen=True, slots=True, eq=False)
class _Worker:
    """An actor, and its place: the machine, and its number there."""

    actor: Any
    place: tuple[str, int]


@dataclass(slots=True, eq=False)
class _Job:
    """A task, and how often it has ended its process."""

    task: Any
    crashes: int = 0


class WorkerPool:
    """The workers of the cluster that this process is connected to; see `open_workers`."""

    def __init__(self, device: str = "auto") -> None:
        check_cluster_device(device)
        self._device = device
        self._uses_gpus = True if device in ("cuda", "map") else None if device != "cpu" else False
        self._workers: list[_Worker] = []
        self._facts: dict[Any, tuple[str, Any]] = {}
        self._updated = -_UPDATE_SECONDS

    def facts(self, loader: Loader[_M]) -> Any:
        """Return the facts of a loader's object, once a machine has loaded it; raises the errors of `run`."""
        if loader not in self._facts:
            list(self.run(loader, _do_nothing, [None], describe=lambda _: f"loading {loader.label}"))
        return self._facts[loader][1]

    def run(
        self,
        loader: Loader[_M],
        function: Callable[[_M, _T], _R],
        tasks: Iterable[_T],
        *,
        describe: Callable[[_T], str],
    ) -> Generator[tuple[_T, _R], None, None]:
        """Yield the results of `function(loaded, task)` in any order, each with its task.

        `loaded` is the object that the loader loads; `describe` names a task in messages. Raises ClusterError if a task
        ends its process each time, or if machines load different objects; and the errors of the function.
        """
        waiting: deque[_Job] = deque(map(_Job, tasks))
        running: dict[Any, tuple[_Worker, _Job]] = {}
        last = time.monotonic()
        while waiting or running:
            self._start_workers()
            for ahead in range(_AHEAD):
                for worker in self._workers:
                    if waiting and sum(busy is worker for busy, _ in running.values()) == ahead:
                        job = waiting.popleft()
                        running[worker.actor.do.remote(loader, function, job.task)] = worker, job
            for ref in ray.wait([*running], timeout=_PAUSE)[0] if running else ():
                if (answer := self._answer(ref, waiting, running, describe)) is not None:
                    self._check_facts(loader, *answer[:2])
                    last = time.monotonic()
                    yield running.pop(ref)[1].task, answer[2]
            if not running:
                time.sleep(_PAUSE)
            if (waiting or loader not in self._facts) and time.monotonic() - last > _WARNING_SECONDS:
                last = time.monotonic()
                kind = "GPUs" if self._uses_gpus else "processors"
                warnings.warn(
                    f"no machine of the cluster has finished a task with {loader.label} for a minute: it is large, "
                    f"other jobs hold all machines, or none has {kind}.",
                    RalmWarning,
                    stacklevel=2,
                )

    def _answer(
        self,
        ref: Any,
        waiting: deque[_Job],
        running: dict[Any, tuple[_Worker, _Job]],
        describe: Callable[[Any], str],
    ) -> tuple[str, Any, Any] | None:
        """Return what a task has come to; None if its worker has ended, whose tasks then wait again."""
        if ref not in running:
            return None
        worker, _ = running[ref]
        try:
            answer: tuple[str, Any, Any] = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            _raise_cause(error)
        except _ENDED:
            lost = [running.pop(other)[1] for other in [*running] if running[other][0] is worker]
            waiting.extendleft(reversed(lost))
            if self._drop(worker):
                lost[0].crashes += 1
                if lost[0].crashes >= MAX_CRASHES:
                    raise ClusterError(
                        f"{describe(lost[0].task)} ends its process, each of {MAX_CRASHES} times; the machines may "
                        "have too little memory."
                    ) from None
            return None
        except ray.exceptions.RayError as error:
            raise ClusterError(f"the cluster has failed: {error}. Run this again to go on where it stopped.") from error
        return answer

    def close(self) -> None:
        """End the workers."""
        while self._workers:
            ray.kill(self._workers.pop().actor)

    def _start_workers(self) -> None:
        """Start workers at places that have none."""
        if time.monotonic() - self._updated < _UPDATE_SECONDS:
            return
        self._updated = time.monotonic()
        alive = [node for node in _nodes() if node["Alive"]]
        if self._uses_gpus is None and alive:
            # Decided once: figures of GPUs and of processors must not be mixed.
            self._uses_gpus = any(node["Resources"].get("GPU") for node in alive)
        taken = {worker.place for worker in self._workers}
        for node in alive:
            shares = worker_resources(node["Resources"], use_gpus=bool(self._uses_gpus), together=self._device == "map")
            for number, resources in enumerate(shares):
                place = node["NodeID"], number
                if place not in taken:
                    there = NodeAffinitySchedulingStrategy(place[0], soft=False)
                    remote: Any = ray.remote
                    actor = remote(scheduling_strategy=there, **resources)(_Actor).remote()
                    self._workers.append(_Worker(actor, place))

    def _drop(self, worker: _Worker) -> bool:
        """Drop a worker that has ended; return whether its machine is alive, so that its task is to blame."""
        if worker in self._workers:
            self._workers.remove(worker)
            ray.kill(worker.actor)
            self._updated = -_UPDATE_SECONDS
        return any(node["NodeID"] == worker.place[0] and node["Alive"] for node in _nodes())

    def _check_facts(self, loader: Loader[Any], machine: str, facts: Any) -> None:
        """Raise ClusterError if a machine has loaded another object than the first one."""
        first, expected = self._facts.setdefault(loader, (machine, facts))
        if facts != expected:
            names = [str(name) for name in expected if expected[name] != facts.get(name)]
            differences = ", ".join(f"{name} {expected[name]} and {facts.get(name)}" for name in names)
            raise ClusterError(
                f"{loader.label} is not the same on the machines {first} and {machine} of the cluster: give all the "
                f"same files, and devices of one kind ({differences})."
            )


def check_cluster_device(device: str) -> None:
    """Raise UsageError if workers cannot use this device."""
    if device not in _DEVICES:
        raise UsageError(f"on a cluster `device` is one of {', '.join(_DEVICES)}, not {device!r}.")


@contextmanager
def open_workers(address: str, device: str = "auto") -> Iterator[WorkerPool]:
    """Open workers on the cluster at an address, which end with the block; UsageError if `device` names a GPU."""
    with connected(address):
        pool = WorkerPool(device)
        try:
            yield pool
        finally:
            pool.close()


def worker_resources(has: Mapping[str, float], *, use_gpus: bool, together: bool = False) -> list[dict[str, float]]:
    """Return the resources of each worker of a machine: a GPU each, all GPUs `together`, or all processors."""
    processors, gpus = has.get("CPU", 0.0), int(has.get("GPU", 0))
    if not use_gpus:
        return [{"num_cpus": processors, "num_gpus": 0}] if processors >= 1 else []
    actors = min(gpus, 1) if together else gpus
    return [{"num_cpus": processors // actors, "num_gpus": gpus // actors} for _ in range(actors)]


def _nodes() -> list[dict[str, Any]]:
    # Private: Ray's description of machines, causes and texts of errors; tests on a cluster.
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes


def _raise_cause(error: ray.exceptions.RayTaskError) -> NoReturn:
    """Raise the error of a function that ran on a machine."""
    if isinstance(error.cause, ImportError | ray.exceptions.RaySystemError) or _NOT_IMPORTED in str(error.cause):
        why = str(error.cause).splitlines()[0]
        raise ClusterError(
            f"a machine of the cluster does not have what this one has ({why}): install the same on all."
        )
    if isinstance(error.cause, Exception):
        raise error.cause from None
    raise error


def _do_nothing(_loaded: object, _task: None) -> None:
    pass
