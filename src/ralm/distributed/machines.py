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

from ralm.distributed.cluster import connected
from ralm.distributed.tasks import PAUSE, name_late, quietly, raise_cause
from ralm.distributed.work import TRIES, Job, Work
from ralm.errors import ClusterError, RalmError, RalmWarning, UsageError
from ralm.processes import collect_rarely
from ralm.terminal import no_progress

M_co = TypeVar("M_co", covariant=True)
M = TypeVar("M")
T = TypeVar("T")
R = TypeVar("R")

_AHEAD: Final = 2
"""Tasks that an actor is handed: one that runs, and one that waits for it."""
_SECONDS_BETWEEN_LOOKS: Final = 2.0
_LONG: Final = 60.0
_ENDED: Final = (RayActorError, ActorUnschedulableError, ObjectLostError, OutOfMemoryError, WorkerCrashedError)
"""What is raised for tasks of an actor that has ended."""
DEVICES: Final = ("auto", "all", "cpu", "cuda", "map")
"""What `device` can be on a cluster: a GPU's number means nothing there."""


class Maker(Protocol[M_co]):
    """What machines load, by value: equal makers load equal things. It is sent to them, so it is small."""

    @property
    def said(self) -> str:
        """What it loads, in messages."""

    def __call__(self) -> M_co:
        """Load it."""

    def facts(self, made: Any) -> Any:
        """What must be the same wherever it is loaded."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Tasks that are under way; several runs may be, each by a generator of its own."""

    maker: Maker[Any]
    function: Callable[[Any, Any], Any]
    work: Work[Any, Any]
    bad: Callable[[Any], None]


@dataclass(slots=True, eq=False)
class _Hand:
    """An actor: the machine it is on, what it has loaded, and what it does now for each run, the oldest first."""

    actor: Any
    node: str
    number: int
    ready: set[Any] = field(default_factory=set)
    loading: dict[Any, Any] = field(default_factory=dict)
    running: dict[Any, tuple[_Run, Job[Any]]] = field(default_factory=dict)

    def own(self, run: _Run) -> list[Any]:
        """What is under way for a run: the loading of what it needs, and its tasks."""
        loading = [ref for ref, maker in self.loading.items() if maker == run.maker]
        return [*loading, *self.tasks(run)]

    def tasks(self, run: _Run) -> list[Any]:
        """The tasks of a run."""
        return [ref for ref, (other, _) in self.running.items() if other is run]


class Machines:
    """The machines of the cluster that this process is connected to, and the actors on them; see `machines`."""

    def __init__(self, device: str = "auto") -> None:
        check_device(device)
        self._device = device
        self._uses_gpus = True if device in ("cuda", "map") else None if device != "cpu" else False
        self._hands: list[_Hand] = []
        self._ended = Counter[tuple[str, int, Any]]()
        self._facts: dict[Any, tuple[str, Any]] = {}
        self._looked = -_SECONDS_BETWEEN_LOOKS
        self._worked = time.monotonic()

    def facts(self, maker: Maker[M]) -> Any:
        """The facts of what a maker makes; waits until a machine has loaded it. Raises what `run` raises."""
        if maker not in self._facts:
            list(self.run(maker, _nothing, [None], name=lambda _: maker.said, bad=_never))
        return self._facts[maker][1]

    def run(
        self,
        maker: Maker[M],
        function: Callable[[M, T], R],
        tasks: Iterable[T],
        *,
        name: Callable[[T], str],
        bad: Callable[[T], None],
        halves: Callable[[T], Sequence[T] | None] = lambda _: None,
    ) -> Generator[tuple[T, R], None, None]:
        """The results of `function(made, task)`, each with its task, as they are done; of halves where one was halved.

        `made` is what the maker loads. `name` is what a task is called in messages. `bad` is called for a task that
        ends its process each time and cannot be halved; unless it raises an error, the task is left out. Raises
        ClusterError if machines load different things, or if all end while they load; and what the function raises.
        """
        work: Work[T, R] = Work(tasks, halves)
        run = _Run(maker, function, work, bad)
        self._worked = time.monotonic()
        try:
            while not work.is_done:
                self._look_around(maker)
                self._hand_out(run)
                yield from self._done(run)
                name_late(work, name)
        finally:
            for hand in self._hands:
                for ref in hand.tasks(run):
                    del hand.running[ref]

    def close(self) -> None:
        """End the actors."""
        while self._hands:
            ray.kill(self._hands.pop().actor)

    def _look_around(self, maker: Maker[Any]) -> None:
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
            shares = shares_of(node["Resources"], use_gpus=bool(self._uses_gpus), together=self._device == "map")
            for number, resources in enumerate(shares):
                place = node["NodeID"], number
                held = any((hand.node, hand.number) == place for hand in self._hands)
                usable = self._ended[*place, maker] < TRIES
                if usable and not held:
                    self._hands.append(_start(*place, resources))
                places += usable
        if not places and any(other == maker and count >= TRIES for (*_, other), count in self._ended.items()):
            raise ClusterError(
                f"every machine of the cluster ends while it loads {maker.said}: they may have too little memory."
            )
        if any(maker in hand.ready for hand in self._hands):
            self._worked = now
        if now - self._worked > _LONG:
            self._worked = now
            kind = "GPUs" if self._uses_gpus else "processors"
            why = "it is large, or other jobs hold all machines" if places else f"no machine that is left has {kind}"
            warnings.warn(f"no machine of the cluster has {maker.said} loaded: {why}.", RalmWarning, stacklevel=3)

    def _hand_out(self, run: _Run) -> None:
        maker = run.maker
        for hand in self._hands:
            is_new = maker not in hand.ready and maker not in hand.loading.values()
            if is_new and self._ended[hand.node, hand.number, maker] < TRIES:
                hand.loading[hand.actor.load.remote(maker)] = maker
        for ahead in range(_AHEAD):
            for hand in self._hands:
                has_room = maker in hand.ready and len(hand.tasks(run)) == ahead
                if has_room and (job := run.work.begin(time.monotonic())):
                    hand.running[hand.actor.do.remote(maker, run.function, job.task)] = run, job

    def _done(self, run: _Run) -> Iterator[tuple[Any, Any]]:
        """Wait a moment; take what was loaded, and what was done of a run."""
        waiting = {ref: hand for hand in self._hands for ref in hand.own(run)}
        if not waiting:
            time.sleep(PAUSE)
            return
        ready, _ = ray.wait([*waiting], timeout=PAUSE)
        for ref in ready:
            hand = waiting[ref]
            try:
                answer = ray.get(ref)
            except RayTaskError as error:
                hand.loading.pop(ref, None)
                raise_cause(error)
            except _ENDED:
                self._lost(hand)
            except RayError as error:
                raise ClusterError(
                    f"the cluster has failed: {error}. Run this again to go on where it stopped."
                ) from error
            else:
                if ref in hand.loading:
                    self._loaded(hand, hand.loading.pop(ref), *answer)
                elif ref in hand.running:
                    _, job = hand.running.pop(ref)
                    run.work.given(job, time.monotonic())
                    yield job.task, answer

    def _loaded(self, hand: _Hand, maker: Maker[Any], machine: str, facts: Any) -> None:
        first, known = self._facts.setdefault(maker, (machine, facts))
        if facts != known:
            raise ClusterError(
                f"{maker.said} is not the same on the machines {first} and {machine} of the cluster: give all the same "
                f"files, and devices of one kind ({_difference(known, facts)})."
            )
        hand.ready.add(maker)

    def _lost(self, hand: _Hand) -> None:
        """An actor has ended: with its machine, of the oldest task that it had, or as it loaded something."""
        if hand not in self._hands:
            return
        self._hands.remove(hand)
        ray.kill(hand.actor)
        self._looked = -_SECONDS_BETWEEN_LOOKS
        is_alive = any(node["NodeID"] == hand.node and node["Alive"] for node in _nodes())
        tasks = [*hand.running.values()]
        if is_alive and tasks:
            run, job = tasks.pop(0)
            if not run.work.crashed(job):
                run.bad(job.task)
        elif is_alive:
            self._ended.update((hand.node, hand.number, maker) for maker in hand.loading.values())
        for run, job in tasks:
            if not run.work.lost(job):
                run.bad(job.task)


class _Actor:
    """Loads things and does tasks with them."""

    def __init__(self) -> None:
        collect_rarely()
        self._made: dict[Any, Any] = {}

    def load(self, maker: Maker[Any]) -> tuple[str, Any]:
        """Load something, unless it is loaded; returns the name of the machine, and the facts of it."""
        try:
            if maker not in self._made:
                with no_progress():
                    self._made[maker] = maker()
            return platform.node(), maker.facts(self._made[maker])
        except ClusterError:
            raise
        except RalmError as error:
            raise ClusterError(f"on the machine {platform.node()} of the cluster: {error}") from None

    def do(self, maker: Maker[M], function: Callable[[M, T], R], task: T) -> R:
        """Do a task with something that was loaded."""
        return quietly(function, self._made[maker], task)


def check_device(device: str) -> None:
    """Raise UsageError if actors cannot use a device of this name."""
    if device not in DEVICES:
        raise UsageError(f"on a cluster `device` is one of {', '.join(DEVICES)}, not {device!r}.")


@contextmanager
def machines(address: str, device: str = "auto") -> Iterator[Machines]:
    """The machines of the cluster at an address. `device`: auto is the GPUs of the cluster if it has any, else its
    processors; map spreads what is loaded over all GPUs of a machine. The actors end with the block.

    Raises ClusterError if there is no cluster, UsageError if `device` names a GPU.
    """
    with connected(address):
        found = Machines(device)
        try:
            yield found
        finally:
            found.close()


def shares_of(has: Mapping[str, float], *, use_gpus: bool, together: bool = False) -> list[dict[str, float]]:
    """What each actor of a machine with these resources takes: a GPU and its share of the processors, or all GPUs
    `together`; or all processors, if GPUs are not used."""
    processors, gpus = has.get("CPU", 0.0), int(has.get("GPU", 0))
    if not use_gpus:
        return [{"num_cpus": processors, "num_gpus": 0}] if processors >= 1 else []
    actors = min(gpus, 1) if together else gpus
    return [{"num_cpus": processors // actors, "num_gpus": gpus // actors} for _ in range(actors)]


def _start(node: str, number: int, resources: dict[str, float]) -> _Hand:
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    remote: Any = ray.remote
    return _Hand(remote(scheduling_strategy=there, **resources)(_Actor).remote(), node, number)


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
