"""Workers: actors on the machines of a cluster, one for each machine or GPU, which hold what takes long to load.

Each takes the whole of its machine or GPU, so they never compete. A task goes to a worker that has loaded what the task
needs. If a machine is lost, its tasks go to others; if one joins, it gets work at once. A task that ends its process is
done again, until it is an error.
"""

import platform
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Protocol, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ralm.distributed.cluster import connected
from ralm.errors import ClusterError, RalmError, RalmWarning, UsageError
from ralm.processes import collect_rarely
from ralm.terminal import no_progress

_M_co = TypeVar("_M_co", covariant=True)
_M = TypeVar("_M")
_T = TypeVar("_T")
_R = TypeVar("_R")

MAX_CRASHES: Final = 3
"""How often a task, or the loading of an object, may end its process before it is an error."""
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


class Loader(Protocol[_M_co]):
    """A loader of an object on a machine. It is sent there, so it is small; equal loaders load equal objects."""

    @property
    def label(self) -> str:
        """The object's name in messages."""

    def __call__(self) -> _M_co:
        """Load the object."""

    def facts(self, loaded: Any) -> Any:
        """Return facts of the object that must be the same on all machines."""


@dataclass(slots=True, eq=False)
class _Job:
    """A task, and how often it has ended its process."""

    task: Any
    crashes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Tasks to be done, of which some wait; there may be several runs, each by a generator of its own."""

    loader: Loader[Any]
    function: Callable[[Any, Any], Any]
    describe: Callable[[Any], str]
    waiting: deque[_Job]


@dataclass(slots=True, eq=False)
class _Worker:
    """An actor: its machine, the loaders that it has called, and its tasks in progress, the oldest first."""

    actor: Any
    node: str
    number: int
    ready: set[Any] = field(default_factory=set)
    loading: dict[Any, Any] = field(default_factory=dict)
    running: dict[Any, tuple[_Run, _Job]] = field(default_factory=dict)

    def pending(self, run: _Run) -> list[Any]:
        """Return the loading and the tasks in progress for a run."""
        loading = [ref for ref, loader in self.loading.items() if loader == run.loader]
        return [*loading, *self.tasks(run)]

    def tasks(self, run: _Run) -> list[Any]:
        """Return the tasks in progress for a run."""
        return [ref for ref, (other, _) in self.running.items() if other is run]


class WorkerPool:
    """The workers of the cluster that this process is connected to; see `open_workers`."""

    def __init__(self, device: str = "auto") -> None:
        check_cluster_device(device)
        self._device = device
        self._uses_gpus = True if device in ("cuda", "map") else None if device != "cpu" else False
        self._workers: list[_Worker] = []
        self._ended = Counter[tuple[str, int, Any]]()
        self._facts: dict[Any, tuple[str, Any]] = {}
        self._updated = -_UPDATE_SECONDS
        self._last_ready = time.monotonic()

    def facts(self, loader: Loader[_M]) -> Any:
        """Return the facts of a loader's object, once a machine has loaded it; raises the errors of `run`."""
        if loader not in self._facts:
            list(self.run(loader, _do_nothing, [None], describe=lambda _: loader.label))
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
        ends its process each time, if machines load different objects, or if all end while they load; and the errors of
        the function.
        """
        run = _Run(loader, function, describe, deque(map(_Job, tasks)))
        self._last_ready = time.monotonic()
        try:
            while run.waiting or any(worker.tasks(run) for worker in self._workers):
                self._update(loader)
                self._assign(run)
                yield from self._finished(run)
        finally:
            for worker in self._workers:
                for ref in worker.tasks(run):
                    del worker.running[ref]

    def close(self) -> None:
        """End the workers."""
        while self._workers:
            ray.kill(self._workers.pop().actor)

    def _update(self, loader: Loader[Any]) -> None:
        """Start workers on machines that have none; raise or warn if no machine can load the object."""
        now = time.monotonic()
        if now - self._updated < _UPDATE_SECONDS:
            return
        self._updated = now
        alive = [node for node in _nodes() if node["Alive"]]
        if self._uses_gpus is None and alive:
            # Decided once: figures of GPUs and of processors must not be mixed.
            self._uses_gpus = any(node["Resources"].get("GPU") for node in alive)
        usable_places = 0
        for node in alive:
            shares = worker_resources(node["Resources"], use_gpus=bool(self._uses_gpus), together=self._device == "map")
            for number, resources in enumerate(shares):
                place = node["NodeID"], number
                has_worker = any((worker.node, worker.number) == place for worker in self._workers)
                is_usable = self._ended[*place, loader] < MAX_CRASHES
                if is_usable and not has_worker:
                    self._workers.append(_start(*place, resources))
                usable_places += is_usable
        ended = any(other == loader and count >= MAX_CRASHES for (*_, other), count in self._ended.items())
        if ended and not usable_places:
            raise ClusterError(
                f"every machine of the cluster ends while it loads {loader.label}: they may have too little memory."
            )
        if any(loader in worker.ready for worker in self._workers):
            self._last_ready = now
        if now - self._last_ready > _WARNING_SECONDS:
            self._last_ready = now
            kind = "GPUs" if self._uses_gpus else "processors"
            reasons = f"no machine that is left has {kind}", "it is large, or other jobs hold all machines"
            why = reasons[usable_places > 0]
            warnings.warn(f"no machine of the cluster has {loader.label} loaded: {why}.", RalmWarning, stacklevel=3)

    def _assign(self, run: _Run) -> None:
        loader = run.loader
        for worker in self._workers:
            is_new = loader not in worker.ready and loader not in worker.loading.values()
            if is_new and self._ended[worker.node, worker.number, loader] < MAX_CRASHES:
                worker.loading[worker.actor.load.remote(loader)] = loader
        for ahead in range(_AHEAD):
            for worker in self._workers:
                if run.waiting and loader in worker.ready and len(worker.tasks(run)) == ahead:
                    job = run.waiting.popleft()
                    worker.running[worker.actor.do.remote(loader, run.function, job.task)] = run, job

    def _finished(self, run: _Run) -> Iterator[tuple[Any, Any]]:
        """Wait a moment, and take the tasks of a run, and the loading, that have finished."""
        waiting = {ref: worker for worker in self._workers for ref in worker.pending(run)}
        if not waiting:
            time.sleep(_PAUSE)
            return
        ready, _ = ray.wait([*waiting], timeout=_PAUSE)
        for ref in ready:
            worker = waiting[ref]
            try:
                answer = ray.get(ref)
            except ray.exceptions.RayTaskError as error:
                worker.loading.pop(ref, None)
                _raise_cause(error)
            except _ENDED:
                self._lost(worker)
            except ray.exceptions.RayError as error:
                raise ClusterError(
                    f"the cluster has failed: {error}. Run this again to go on where it stopped."
                ) from error
            else:
                if ref in worker.loading:
                    self._loaded(worker, worker.loading.pop(ref), *answer)
                elif ref in worker.running:
                    _, job = worker.running.pop(ref)
                    yield job.task, answer

    def _loaded(self, worker: _Worker, loader: Loader[Any], machine: str, facts: Any) -> None:
        first, expected = self._facts.setdefault(loader, (machine, facts))
        if facts != expected:
            raise ClusterError(
                f"{loader.label} is not the same on the machines {first} and {machine} of the cluster: give all the "
                f"same files, and devices of one kind ({_difference(expected, facts)})."
            )
        worker.ready.add(loader)

    def _lost(self, worker: _Worker) -> None:
        """Drop a worker that has ended: with its machine, because of its oldest task, or while it loaded something."""
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        ray.kill(worker.actor)
        self._updated = -_UPDATE_SECONDS
        is_alive = any(node["NodeID"] == worker.node and node["Alive"] for node in _nodes())
        tasks = [*worker.running.values()]
        worker.running.clear()
        for run, job in reversed(tasks):
            run.waiting.appendleft(job)
        if is_alive and tasks:
            _count_crash(*tasks[0])
        elif is_alive:
            self._ended.update((worker.node, worker.number, loader) for loader in worker.loading.values())


def _count_crash(run: _Run, job: _Job) -> None:
    """Raise ClusterError if a task has ended its process each time."""
    job.crashes += 1
    if job.crashes >= MAX_CRASHES:
        raise ClusterError(
            f"{run.describe(job.task)} ends its process, each of {MAX_CRASHES} times; the machines may have too little "
            "memory."
        )


class _Actor:
    """An actor that loads objects and does tasks with them."""

    def __init__(self) -> None:
        collect_rarely()
        self._loaded: dict[Any, Any] = {}

    def load(self, loader: Loader[Any]) -> tuple[str, Any]:
        """Load an object unless it is loaded; return the name of the machine, and the object's facts."""
        try:
            if loader not in self._loaded:
                with no_progress():
                    self._loaded[loader] = loader()
            return platform.node(), loader.facts(self._loaded[loader])
        except ClusterError:
            raise
        except RalmError as error:
            raise ClusterError(f"on the machine {platform.node()} of the cluster: {error}") from None

    def do(self, loader: Loader[_M], function: Callable[[_M, _T], _R], task: _T) -> _R:
        """Do a task with an object that was loaded."""
        with no_progress():
            return function(self._loaded[loader], task)


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


def _start(node: str, number: int, resources: dict[str, float]) -> _Worker:
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    remote: Any = ray.remote
    return _Worker(remote(scheduling_strategy=there, **resources)(_Actor).remote(), node, number)


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


def _difference(expected: object, facts: object) -> str:
    """Return the differences between two facts, in words."""
    if isinstance(expected, Mapping) and isinstance(facts, Mapping):
        names = [str(name) for name in expected if expected[name] != facts.get(name)]
        return ", ".join(f"{name} {expected[name]} and {facts.get(name)}" for name in names)
    return f"{expected} and {facts}"
