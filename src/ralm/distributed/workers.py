"""Actors on the machines of a cluster, one for each machine or GPU, which hold what takes long to load.

Each takes the whole of its machine or GPU, so they never compete. A task goes to an actor that has loaded what the task
needs. If a machine is lost, its tasks go to others; if one joins, it gets work at once.
"""

import platform
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Protocol, TypeVar

import ray
from ray.exceptions import (
    ActorUnschedulableError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ralm.distributed.cluster import (
    MAX_CRASHES,
    PAUSE,
    ClusterJob,
    TaskQueue,
    connected,
    name_late,
    raise_cause,
    without_progress,
)
from ralm.errors import ClusterError, RalmError, RalmWarning, UsageError
from ralm.processes import collect_rarely
from ralm.terminal import no_progress

_M_co = TypeVar("_M_co", covariant=True)
_M = TypeVar("_M")
_T = TypeVar("_T")
_R = TypeVar("_R")

_AHEAD: Final = 2
"""Tasks that an actor is handed: one that runs, and one that waits for it."""
_SECONDS_BETWEEN_LOOKS: Final = 2.0
_LONG: Final = 60.0
_ENDED: Final = (RayActorError, ActorUnschedulableError, ObjectLostError, OutOfMemoryError, WorkerCrashedError)
"""What is raised for tasks of an actor that has ended."""
_DEVICES: Final = ("auto", "all", "cpu", "cuda", "map")
"""What `device` can be on a cluster: a GPU's number means nothing there."""


class Loader(Protocol[_M_co]):
    """What machines load, by value: equal loaders load equal things. It is sent to them, so it is small."""

    @property
    def label(self) -> str:
        """What it loads, in messages."""

    def __call__(self) -> _M_co:
        """Load it."""

    def facts(self, made: Any) -> Any:
        """What must be the same wherever it is loaded."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Tasks that are under way; several runs may be, each by a generator of its own."""

    loader: Loader[Any]
    function: Callable[[Any, Any], Any]
    work: TaskQueue[Any, Any]
    bad: Callable[[Any], None]


@dataclass(slots=True, eq=False)
class _Worker:
    """An actor: the machine it is on, what it has loaded, and what it does now for each run, the oldest first."""

    actor: Any
    node: str
    number: int
    ready: set[Any] = field(default_factory=set)
    loading: dict[Any, Any] = field(default_factory=dict)
    running: dict[Any, tuple[_Run, ClusterJob[Any]]] = field(default_factory=dict)

    def own(self, run: _Run) -> list[Any]:
        """What is under way for a run: the loading of what it needs, and its tasks."""
        loading = [ref for ref, loader in self.loading.items() if loader == run.loader]
        return [*loading, *self.tasks(run)]

    def tasks(self, run: _Run) -> list[Any]:
        """The tasks of a run."""
        return [ref for ref, (other, _) in self.running.items() if other is run]


class WorkerPool:
    """The machines of the cluster that this process is connected to, and the actors on them; see `machines`."""

    def __init__(self, device: str = "auto") -> None:
        check_cluster_device(device)
        self._device = device
        self._uses_gpus = True if device in ("cuda", "map") else None if device != "cpu" else False
        self._workers: list[_Worker] = []
        self._ended = Counter[tuple[str, int, Any]]()
        self._facts: dict[Any, tuple[str, Any]] = {}
        self._looked = -_SECONDS_BETWEEN_LOOKS
        self._worked = time.monotonic()

    def facts(self, loader: Loader[_M]) -> Any:
        """The facts of what a loader makes; waits until a machine has loaded it. Raises what `run` raises."""
        if loader not in self._facts:
            list(self.run(loader, _nothing, [None], name=lambda _: loader.label, bad=_never))
        return self._facts[loader][1]

    def run(
        self,
        loader: Loader[_M],
        function: Callable[[_M, _T], _R],
        tasks: Iterable[_T],
        *,
        name: Callable[[_T], str],
        bad: Callable[[_T], None],
        halves: Callable[[_T], Sequence[_T] | None] = lambda _: None,
    ) -> Generator[tuple[_T, _R], None, None]:
        """The results of `function(made, task)`, each with its task, as they are done; of halves where one was halved.

        `made` is what the loader loads. `name` is what a task is called in messages. `bad` is called for a task that
        ends its process each time and cannot be halved; unless it raises an error, the task is left out. Raises
        ClusterError if machines load different things, or if all end while they load; and what the function raises.
        """
        work: TaskQueue[_T, _R] = TaskQueue(tasks, halves)
        run = _Run(loader, function, work, bad)
        self._worked = time.monotonic()
        try:
            while not work.is_done:
                self._look_around(loader)
                self._hand_out(run)
                yield from self._done(run)
                name_late(work, name)
        finally:
            for worker in self._workers:
                for ref in worker.tasks(run):
                    del worker.running[ref]

    def close(self) -> None:
        """End the actors."""
        while self._workers:
            ray.kill(self._workers.pop().actor)

    def _look_around(self, loader: Loader[Any]) -> None:
        """Start actors on machines that have none, and forget those of machines that are gone."""
        now = time.monotonic()
        if now - self._looked < _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        alive = [node for node in _nodes() if node["Alive"]]
        if self._uses_gpus is None and alive:  # for good: a figure of a GPU is not that of a processor
            self._uses_gpus = any(node["Resources"].get("GPU") for node in alive)
        places = 0
        for node in alive:
            shares = worker_resources(node["Resources"], use_gpus=bool(self._uses_gpus), together=self._device == "map")
            for number, resources in enumerate(shares):
                place = node["NodeID"], number
                held = any((worker.node, worker.number) == place for worker in self._workers)
                usable = self._ended[*place, loader] < MAX_CRASHES
                if usable and not held:
                    self._workers.append(_start(*place, resources))
                places += usable
        if not places and any(other == loader and count >= MAX_CRASHES for (*_, other), count in self._ended.items()):
            raise ClusterError(
                f"every machine of the cluster ends while it loads {loader.label}: they may have too little memory."
            )
        if any(loader in worker.ready for worker in self._workers):
            self._worked = now
        if now - self._worked > _LONG:
            self._worked = now
            kind = "GPUs" if self._uses_gpus else "processors"
            why = "it is large, or other jobs hold all machines" if places else f"no machine that is left has {kind}"
            warnings.warn(f"no machine of the cluster has {loader.label} loaded: {why}.", RalmWarning, stacklevel=3)

    def _hand_out(self, run: _Run) -> None:
        loader = run.loader
        for worker in self._workers:
            is_new = loader not in worker.ready and loader not in worker.loading.values()
            if is_new and self._ended[worker.node, worker.number, loader] < MAX_CRASHES:
                worker.loading[worker.actor.load.remote(loader)] = loader
        for ahead in range(_AHEAD):
            for worker in self._workers:
                has_room = loader in worker.ready and len(worker.tasks(run)) == ahead
                if has_room and (job := run.work.begin(time.monotonic())):
                    worker.running[worker.actor.do.remote(loader, run.function, job.task)] = run, job

    def _done(self, run: _Run) -> Iterator[tuple[Any, Any]]:
        """Wait a moment; take what was loaded, and what was done of a run."""
        waiting = {ref: worker for worker in self._workers for ref in worker.own(run)}
        if not waiting:
            time.sleep(PAUSE)
            return
        ready, _ = ray.wait([*waiting], timeout=PAUSE)
        for ref in ready:
            worker = waiting[ref]
            try:
                answer = ray.get(ref)
            except RayTaskError as error:
                worker.loading.pop(ref, None)
                raise_cause(error)
            except _ENDED:
                self._lost(worker)
            except RayError as error:
                raise ClusterError(
                    f"the cluster has failed: {error}. Run this again to go on where it stopped."
                ) from error
            else:
                if ref in worker.loading:
                    self._loaded(worker, worker.loading.pop(ref), *answer)
                elif ref in worker.running:
                    _, job = worker.running.pop(ref)
                    run.work.given(job, time.monotonic())
                    yield job.task, answer

    def _loaded(self, worker: _Worker, loader: Loader[Any], machine: str, facts: Any) -> None:
        first, known = self._facts.setdefault(loader, (machine, facts))
        if facts != known:
            raise ClusterError(
                f"{loader.label} is not the same on the machines {first} and {machine} of the cluster: give all the "
                f"same files, and devices of one kind ({_difference(known, facts)})."
            )
        worker.ready.add(loader)

    def _lost(self, worker: _Worker) -> None:
        """An actor has ended: with its machine, of the oldest task that it had, or as it loaded something."""
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        ray.kill(worker.actor)
        self._looked = -_SECONDS_BETWEEN_LOOKS
        is_alive = any(node["NodeID"] == worker.node and node["Alive"] for node in _nodes())
        tasks = [*worker.running.values()]
        if is_alive and tasks:
            run, job = tasks.pop(0)
            if not run.work.crashed(job):
                run.bad(job.task)
        elif is_alive:
            self._ended.update((worker.node, worker.number, loader) for loader in worker.loading.values())
        for run, job in tasks:
            if not run.work.lost(job):
                run.bad(job.task)


class _Actor:
    """Loads things and does tasks with them."""

    def __init__(self) -> None:
        collect_rarely()
        self._made: dict[Any, Any] = {}

    def load(self, loader: Loader[Any]) -> tuple[str, Any]:
        """Load something, unless it is loaded; returns the name of the machine, and the facts of it."""
        try:
            if loader not in self._made:
                with no_progress():
                    self._made[loader] = loader()
            return platform.node(), loader.facts(self._made[loader])
        except ClusterError:
            raise
        except RalmError as error:
            raise ClusterError(f"on the machine {platform.node()} of the cluster: {error}") from None

    def do(self, loader: Loader[_M], function: Callable[[_M, _T], _R], task: _T) -> _R:
        """Do a task with something that was loaded."""
        return without_progress(function, self._made[loader], task)


def check_cluster_device(device: str) -> None:
    """Raise UsageError if actors cannot use a device of this name."""
    if device not in _DEVICES:
        raise UsageError(f"on a cluster `device` is one of {', '.join(_DEVICES)}, not {device!r}.")


@contextmanager
def open_workers(address: str, device: str = "auto") -> Iterator[WorkerPool]:
    """The machines of the cluster at an address. `device`: auto is the GPUs of the cluster if it has any, else its
    processors; map spreads what is loaded over all GPUs of a machine. The actors end with the block.

    Raises ClusterError if there is no cluster, UsageError if `device` names a GPU.
    """
    with connected(address):
        found = WorkerPool(device)
        try:
            yield found
        finally:
            found.close()


def worker_resources(has: Mapping[str, float], *, use_gpus: bool, together: bool = False) -> list[dict[str, float]]:
    """What each actor of a machine with these resources takes: a GPU and its share of the processors, or all GPUs
    `together`; or all processors, if GPUs are not used."""
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
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes


def _nothing(_made: object, _task: None) -> None:
    """A task that is done at once."""


def _never(_: object) -> NoReturn:
    raise ClusterError("a machine of the cluster ends as soon as it does anything.")


def _difference(known: object, facts: object) -> str:
    """What differs between two facts, in words."""
    if isinstance(known, Mapping) and isinstance(facts, Mapping):
        names = [str(name) for name in known if known[name] != facts.get(name)]
        return ", ".join(f"{name} {known[name]} and {facts.get(name)}" for name in names)
    return f"{known} and {facts}"
