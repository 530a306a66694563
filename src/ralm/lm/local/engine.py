"""The scoring engine: passes in, log-probabilities of their targets out. Replicas share the batches.

- Passes are batched by length and read by the copies of the model (`ralm.lm.local.replica`), each in its own thread.
- Results come in the order of the passes, each as soon as it and all before it are known.

Works on token ids; knows nothing of requests, text or plans.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeAlias

from ralm.lm.local.replica import InFlight, Replica, Wanted, target_log_probs
from ralm.records import FloatArray, ScoringSequence

_Batch: TypeAlias = tuple[int, Sequence[ScoringSequence]]
"""The number of a batch, from 0, and its passes."""
_Scored: TypeAlias = tuple[int, list[FloatArray]]


class Engine:
    """Scores passes with one model or several copies of it."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._by_length = bool(lengths_read_apart(replicas[0].logits.model.config))

    def score(self, passes: Sequence[ScoringSequence], wanted: Wanted = target_log_probs) -> Iterator[FloatArray]:
        """For each pass, in order, what is wanted of each of its targets: by default its natural log-probability
        (float32).

        Consecutive passes are read together if the first is the longest. Raises ModelError if a single pass is too
        large for the device, or the model returns NaN.
        """
        batches = enumerate(self._batches(passes))
        if len(self._replicas) == 1:
            scored = _served(self._replicas[0], lambda: next(batches, None), wanted)
        else:
            scored = _in_order(_served_by_all(self._replicas, batches, wanted))
        for _, log_probs in scored:
            yield from log_probs

    def _batches(self, passes: Sequence[ScoringSequence]) -> Iterator[Sequence[ScoringSequence]]:
        """Passes in order, in batches of as many as can be padded to the first and read together."""
        batch: list[ScoringSequence] = []
        for one in passes:
            if batch and not self._fits(batch, one):
                yield batch
                batch = []
            batch.append(one)
        if batch:
            yield batch

    def _fits(self, batch: Sequence[ScoringSequence], one: ScoringSequence) -> bool:
        longest = len(batch[0])
        alike = len(one) == longest if self._by_length else len(one) <= longest
        return alike and all(replica.fits(batch, one) for replica in self._replicas)


def _served(replica: Replica, take: Callable[[], _Batch | None], wanted: Wanted) -> Iterator[_Scored]:
    """Batch after batch, read by one replica; a GPU starts each batch before the previous one is fetched, so it never
    waits."""
    before: tuple[int, InFlight] | None = None
    while (batch := take()) is not None:
        started: tuple[int, InFlight] | None = (batch[0], replica.start(batch[1], wanted))
        if replica.overlaps:
            started, before = before, started
        if started is not None:
            yield started[0], started[1].fetch()
    if before is not None:
        yield before[0], before[1].fetch()


def _served_by_all(replicas: Sequence[Replica], batches: Iterator[_Batch], wanted: Wanted) -> Iterator[_Scored]:
    """All batches in the order in which replicas finish them; an idle replica takes the next, the first error stops
    all."""
    lock, finished = Lock(), SimpleQueue[_Scored | BaseException | None]()
    stopped = False

    def take() -> _Batch | None:
        with lock:
            return None if stopped else next(batches, None)

    def serve(replica: Replica) -> None:
        try:
            for scored in _served(replica, take, wanted):
                finished.put(scored)
            finished.put(None)
        except BaseException as error:  # noqa: BLE001  # raised again by the thread that waits for results
            finished.put(error)

    with ThreadPoolExecutor(max_workers=len(replicas)) as pool:
        try:
            for replica in replicas:
                pool.submit(serve, replica)
            working = len(replicas)
            while working:
                match finished.get():
                    case None:
                        working -= 1
                    case BaseException() as error:
                        raise error
                    case scored:
                        yield scored
        finally:
            stopped = True


def _in_order(scored: Iterator[_Scored]) -> Iterator[_Scored]:
    """Finished batches, sorted by their numbers."""
    early: dict[int, list[FloatArray]] = {}
    due = 0
    for number, log_probs in scored:
        early[number] = log_probs
        while due in early:
            yield due, early.pop(due)
            due += 1


def lengths_read_apart(config: Any) -> list[int]:
    """The text lengths beyond which a model reads all tokens differently; empty for most models.

    LongRoPE (Phi-3) does so: it uses other frequencies for all positions once the input is long, so its result for a
    token depends on how many tokens follow.
    """
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
