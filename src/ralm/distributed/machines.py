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
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

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


@dataclass(slots=True, eq=False)
class _Hand(Generic[T]):
    """An actor: the machine it is on, what it has loaded, and what it does now, the oldest first."""

    actor: Any
    node: str
    number: int
    ready: set[Any] = field(default_factory=set)
    loading: dict[Any, Any] = field(default_factory=dict)
    running: dict[Any, Job[T]] = field(default_factory=dict)


class Machines:
    """The machines of the cluster that this process is connected to, and the actors on them; see `machines`."""

    def __init__(self, device: str = "auto") -> None:
        if device not in DEVICES:
            raise UsageError(f"on a cluster `device` is one of {', '.join(DEVICES)}, not {device!r}.")
        self._device = device
        self._hands: list[_Hand[Any]] = []
        self._ended = Counter[tuple[str, int, Any]]()
        self._facts: dict[Any, tuple[str, Any]] = {}
        self._looked = -_SECONDS_BETWEEN_LOOKS
        self._begun = time.monotonic()
        self._warned = False

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
        try:
            while not work.is_done:
                self._look_around(maker)
                self._hand_out(work, maker, function)
                yield from self._done(work, bad)
                name_late(work, name)
        finally:
            for hand in self._hands:
                hand.running.clear()
                hand.loading.clear()

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
        uses_gpus = self._device != "cpu" and any(node["Resources"].get("GPU") for node in alive)
        for node in alive:
            shares = shares_of(node["Resources"], use_gpus=uses_gpus, together=self._device == "map")
            for number, resources in enumerate(shares):
                place = node["NodeID"], number
                held = any((hand.node, hand.number) == place for hand in self._hands)
                if not held and self._ended[*place, maker] < TRIES:
                    self._hands.append(_hand(*place, resources))
        ends = any(other == maker for *_, other in self._ended)
        if ends and not any(self._can_load(hand, maker) for hand in self._hands):
            raise ClusterError(
                f"every machine of the cluster ends while it loads {maker.said}: they may have too little memory."
            )
        if now - self._begun > _LONG and not (self._warned or self._facts):
            self._warned = True
            warnings.warn(
                f"no machine of the cluster has loaded {maker.said} yet: it is large, or other jobs hold all machines.",
                RalmWarning,
                stacklevel=3,
            )

    def _can_load(self, hand: _Hand[Any], maker: Maker[Any]) -> bool:
        return self._ended[hand.node, hand.number, maker] < TRIES

    def _hand_out(self, work: Work[T, R], maker: Maker[M], function: Callable[[M, T], R]) -> None:
        for hand in self._hands:
            is_new = maker not in hand.ready and maker not in hand.loading.values()
            if is_new and self._can_load(hand, maker):
                hand.loading[hand.actor.load.remote(maker)] = maker
        for ahead in range(_AHEAD):
            for hand in self._hands:
                if maker in hand.ready and len(hand.running) == ahead and (job := work.begin(time.monotonic())):
                    hand.running[hand.actor.do.remote(maker, function, job.task)] = job

    def _done(self, work: Work[T, R], bad: Callable[[T], None]) -> Iterator[tuple[T, R]]:
        """Wait a moment; take what was loaded and done."""
        waiting = {ref: hand for hand in self._hands for ref in (*hand.loading, *hand.running)}
        if not waiting:
            time.sleep(PAUSE)
            return
        ready, _ = ray.wait([*waiting], timeout=PAUSE)
        for ref in ready:
            hand = waiting[ref]
            try:
                answer = ray.get(ref)
            except RayTaskError as error:
                raise_cause(error)
            except _ENDED:
                self._lost(hand, work, bad)
            except RayError as error:
                raise ClusterError(
                    f"the cluster has failed: {error}. Run this again to go on where it stopped."
                ) from error
            else:
                if ref in hand.loading:
                    self._loaded(hand, hand.loading.pop(ref), *answer)
                elif (job := hand.running.pop(ref, None)) is not None:
                    work.done(job, answer, time.monotonic())
                    yield job.task, answer

    def _loaded(self, hand: _Hand[Any], maker: Maker[Any], machine: str, facts: Any) -> None:
        first, known = self._facts.setdefault(maker, (machine, facts))
        if facts != known:
            raise ClusterError(
                f"{maker.said} is not the same on the machines {first} and {machine} of the cluster: give all the same "
                f"files, and devices of one kind ({_difference(known, facts)})."
            )
        hand.ready.add(maker)

    def _lost(self, hand: _Hand[T], work: Work[T, Any], bad: Callable[[T], None]) -> None:
        """An actor has ended: with its machine, of the oldest task that it had, or as it loaded something."""
        if hand not in self._hands:
            return
        self._hands.remove(hand)
        ray.kill(hand.actor)
        self._looked = -_SECONDS_BETWEEN_LOOKS
        jobs = [*hand.running.values()]
        if _is_alive(hand.node) and jobs:
            first = jobs.pop(0)
            if not work.crashed(first):
                bad(first.task)
        elif _is_alive(hand.node):
            self._ended.update((hand.node, hand.number, maker) for maker in hand.loading.values())
        for job in jobs:
            if not work.lost(job):
                bad(job.task)


class _Actor:
    """Loads things and does tasks with them."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def load(self, maker: Maker[Any]) -> tuple[str, Any]:
        """Load something, unless it is loaded; returns the name of the machine, and the facts of it."""
        return _load(self._made, maker)

    def do(self, maker: Maker[M], function: Callable[[M, T], R], task: T) -> R:
        """Do a task with something that was loaded."""
        return quietly(function, self._made[maker], task)


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


def _hand(node: str, number: int, resources: dict[str, float]) -> _Hand[Any]:
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    remote: Any = ray.remote
    return _Hand(remote(scheduling_strategy=there, **resources)(_Actor).remote(), node, number)


def _nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes


def _is_alive(node: str) -> bool:
    return any(one["NodeID"] == node and one["Alive"] for one in _nodes())


def _load(made: dict[Any, Any], maker: Maker[Any]) -> tuple[str, Any]:
    try:
        if maker not in made:
            made[maker] = quietly(_made, maker, None)
        return platform.node(), maker.facts(made[maker])
    except ClusterError:
        raise
    except RalmError as error:
        raise ClusterError(f"on the machine {platform.node()} of the cluster: {error}") from None


def _made(maker: Maker[M], _: None) -> M:
    return maker()


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
