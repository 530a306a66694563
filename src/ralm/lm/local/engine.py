"""Scores sequences with one or several copies of a transformers model.

- The output layer is computed only at target positions: the vocabulary is the widest layer of most models, and the
  logits of a whole window cost more memory than everything else.
- Sequences are batched by length and padded on the right: padding cannot change anything to its left in a causal model,
  however the model family counts positions.
- Each copy reads batches in its own thread. After its device runs out of memory, its batches are half as large. A GPU
  works on a batch while the next is prepared and the results of the previous one are fetched.

Shapes: B sequences of a batch, N tokens, P targets, each read from the position before it, C positions of a chunk, H
hidden size, V vocabulary, X any size.
"""

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from transformers import Cache, PreTrainedModel

from ralm.errors import ModelError
from ralm.records import FloatArray, ScoringSequence


@dataclass(eq=False)
class TargetPositions:
    """P positions of a batch of B x N tokens: the row and the position of each."""

    shape: tuple[int, int]
    row_P: torch.Tensor
    position_P: torch.Tensor

    def of(self, states_BNX: torch.Tensor) -> torch.Tensor:
        """The states (P, X) at the targets positions."""
        row_P, position_P = self._on(states_BNX.device)
        return states_BNX[row_P, position_P]

    def _on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows and positions on a device; they stay on the last one."""
        self.row_P, self.position_P = sent(self.row_P, device), sent(self.position_P, device)
        return self.row_P, self.position_P


class _OfThread(threading.local):
    targets: TargetPositions | None = None


_OF_THREAD = _OfThread()


@contextmanager
def logits_at(targets: TargetPositions) -> Iterator[None]:
    """Within, models that this thread calls know which positions are targets."""
    _OF_THREAD.targets = targets
    try:
        yield
    finally:
        _OF_THREAD.targets = None


def current_targets() -> TargetPositions | None:
    """The positions that are targets of the model that this thread calls; None if all may be."""
    return _OF_THREAD.targets


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor, sent to a device; a GPU copies it from main memory while it still works on the previous batch."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


_CACHE_ARGUMENTS: Final = ("cache", "past_key_values")
"""Names of the argument of `forward` that takes a cache; transformers 5.24 renamed the second to the first."""


class ChosenLogits:
    """A model whose logits are computed only at targets positions.

    Other uses of the model are not affected: calls that do not come through this object and calls from other threads
    work as before.
    """

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        head = model.get_output_embeddings()
        if head is None:
            raise ModelError(f"{name} has no output layer over a vocabulary: it is not a language model.")
        self.model = model
        self.name = name
        self.arguments = frozenset(inspect.signature(model.forward).parameters)
        """The names of the arguments of the model's `forward`."""
        self._cache_argument = next((name for name in _CACHE_ARGUMENTS if name in self.arguments), None)
        head.register_forward_pre_hook(self._pick)

    @property
    def device(self) -> torch.device:
        """The device that token ids are sent to."""
        device: torch.device = self.model.device
        return device

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def __call__(
        self,
        input_BN: torch.Tensor,
        row_P: torch.Tensor,
        position_P: torch.Tensor,
        cache: Cache | None = None,
        **padding: torch.Tensor,
    ) -> torch.Tensor:
        """The logits (P, V), in the model's number format, after each targets position.

        The model reads and extends the `cache`, if there is one. TypeError if its `forward` takes none.
        """
        targets = TargetPositions((input_BN.shape[0], input_BN.shape[1]), row_P, position_P)
        options: dict[str, Any] = {"use_cache": cache is not None, **padding}
        if cache is not None:
            options[self._name_of_cache()] = cache
        with logits_at(targets):
            logits: torch.Tensor = self.model(input_ids=sent(input_BN, self.device), **options).logits
        if logits.shape[:2] != (1, len(row_P)):  # the model does not call its output layer in the usual way
            return targets.of(logits)
        return logits[0]

    def _name_of_cache(self) -> str:
        if self._cache_argument is None:
            raise TypeError(f"forward() takes none of the arguments {', '.join(_CACHE_ARGUMENTS)}")
        return self._cache_argument

    def _pick(self, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor] | None:
        """Replace the states (B, N, H) with the targets ones (1, P, H)."""
        targets = current_targets()
        if targets is None or inputs[0].shape[:2] != targets.shape:
            return None
        return (targets.of(inputs[0])[None],)

    def check_numbers(self, log_probs: torch.Tensor) -> None:
        """Raise ModelError if a log-probability is NaN, so that no figure is made from it."""
        if bool(torch.isnan(log_probs).any()):
            dtype = str(self.model.dtype).removeprefix("torch.")
            remedy = "its weights are damaged" if dtype == "float32" else 'use `dtype="float32"` or `"bfloat16"`'
            raise ModelError(f"{self.name} gives log-probabilities that are not numbers in {dtype}: {remedy}.")


TOKENS_A_BATCH: Final = {"cpu": 1, "cuda": 65_536}
"""Tokens of a batch, padding included. A CPU reads one sequence at a time: batching would only add padding."""
LOGITS_A_BATCH: Final = {"cpu": 1 << 26, "cuda": 1 << 29}
"""Logits of one forward pass, held in the model's number format (256 MiB in float32, 1 GiB in bfloat16)."""
LOGITS_A_CHUNK: Final = 1 << 23
"""Logits that are turned into float32 log-probabilities at once (32 MiB)."""


ReadLogits: TypeAlias = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]
"""What is read of logits (P, V) and targets (P): `target_log_probs` or `distributions`, in parts."""


class InFlight:
    """A batch that the device is working on: what is read (float32) of all its targets, in parts."""

    def __init__(self, batch: Sequence[ScoringSequence], logits: ChosenLogits, parts: Sequence[torch.Tensor]) -> None:
        self.parts = parts
        self._batch = batch
        self._logits = logits

    def fetch(self) -> list[FloatArray]:
        """Wait for the device; returns what is read of each pass. ModelError if a figure is NaN."""
        log_probs = torch.cat([part.cpu() for part in self.parts])
        self._logits.check_numbers(log_probs)
        ends = np.cumsum([len(one.targets_P) for one in self._batch])
        return np.split(log_probs.numpy(), ends[:-1])


class Replica:
    """A copy of a model that remembers how much its device can read at once."""

    def __init__(self, logits: ChosenLogits) -> None:
        kind = logits.device.type
        self.logits = logits
        self._tokens = TOKENS_A_BATCH.get(kind, TOKENS_A_BATCH["cpu"])
        self._positions = max(1, LOGITS_A_BATCH.get(kind, LOGITS_A_BATCH["cpu"]) // logits.vocabulary)

    @property
    def overlaps(self) -> bool:
        """Whether the device works asynchronously."""
        return self.logits.device.type == "cuda"

    def fits(self, batch: Sequence[ScoringSequence], one: ScoringSequence) -> bool:
        """Whether a pass, no longer than the batch's first, may be read together with the batch."""
        padded = (len(batch) + 1) * len(batch[0])
        targets = sum(len(other.targets_P) for other in batch) + len(one.targets_P)
        return padded <= self._tokens and targets <= self._positions

    def start(self, batch: Sequence[ScoringSequence], read: ReadLogits) -> InFlight:
        """Start reading a batch, the longest pass first, in smaller parts if it does not fit.

        Raises ModelError if a single sequence does not fit.
        """
        return InFlight(batch, self.logits, self._started(batch, read))

    def _started(self, batch: Sequence[ScoringSequence], read: ReadLogits) -> list[torch.Tensor]:
        """What is read of the targets of a batch, in as many parts as needed."""
        if len(batch) == 1 and len(batch[0].targets_P) > self._positions:
            return [part for half in _halves(batch[0]) for part in self._started([half], read)]
        try:
            return self._read(batch, read)
        except torch.OutOfMemoryError:
            pass  # leave the handler, so that the memory of the failed pass is freed
        return [part for smaller in self._after_running_out(batch) for part in self._started(smaller, read)]

    def _after_running_out(self, batch: Sequence[ScoringSequence]) -> list[Sequence[ScoringSequence]]:
        """The two halves of a batch; from now on half as much is read at once."""
        if self.logits.device.type == "cuda":
            torch.cuda.empty_cache()
        if len(batch) > 1:
            middle = len(batch) // 2
            self._tokens = min(self._tokens, middle * len(batch[0]))
            return [batch[:middle], batch[middle:]]
        if len(batch[0].targets_P) > 1:
            self._positions = max(1, len(batch[0].targets_P) // 2)
            return [[half] for half in _halves(batch[0])]
        raise ModelError(
            f"{self.logits.name} runs out of memory on {self.logits.device} with one sequence of {len(batch[0])} "
            'tokens: lower `max_length`, use `dtype="bfloat16"`, or spread the model with `device="map"`.'
        )

    @torch.inference_mode()
    def _read(self, batch: Sequence[ScoringSequence], read: ReadLogits) -> list[torch.Tensor]:
        """What is read of each target of each pass, in chunks, from one forward pass."""
        input_BN = torch.zeros((len(batch), max(len(one) for one in batch)), dtype=torch.long)
        for ids_N, one in zip(input_BN, batch, strict=True):
            ids_N[: len(one)] = torch.from_numpy(one.tokens_N[:-1])
        row_P = np.repeat(np.arange(len(batch)), [len(one.targets_P) for one in batch])
        position_P = np.concatenate([one.targets_P for one in batch]) - 1
        target_P = np.concatenate([one.tokens_N[one.targets_P] for one in batch])
        rows, positions, targets = (torch.from_numpy(index) for index in (row_P, position_P, target_P))
        logits_PV = self.logits(input_BN, rows, positions)
        return read(logits_PV, targets)


def _halves(one: ScoringSequence) -> list[ScoringSequence]:
    """Two passes over the same tokens, with half of the targets each."""
    middle = len(one.targets_P) // 2
    return [
        ScoringSequence(one.tokens_N, one.targets_P[:middle]),
        ScoringSequence(one.tokens_N, one.targets_P[middle:]),
    ]


def target_log_probs(logits_PV: torch.Tensor, targets_P: torch.Tensor) -> list[torch.Tensor]:
    """The log-softmax (float32) at the targets, a chunk of positions at a time."""
    targets_P1 = sent(targets_P, logits_PV.device)[:, None]
    rows = max(1, LOGITS_A_CHUNK // logits_PV.shape[1])
    chunks = []
    for first in range(0, len(targets_P), rows):
        logits_CV = logits_PV[first : first + rows].float()
        chunks.append(logits_CV.gather(-1, targets_P1[first : first + rows])[:, 0] - logits_CV.logsumexp(-1))
    return chunks


def distributions(logits_PV: torch.Tensor, targets_P: torch.Tensor) -> list[torch.Tensor]:  # noqa: ARG001
    """The log-softmax (float32) over the vocabulary, a chunk of positions at a time."""
    rows = max(1, LOGITS_A_CHUNK // logits_PV.shape[1])
    return [logits_CV.float().log_softmax(-1).cpu() for logits_CV in torch.split(logits_PV, rows)]


_Batch: TypeAlias = tuple[int, Sequence[ScoringSequence]]
"""The number of a batch, from 0, and its passes."""
_Scored: TypeAlias = tuple[int, list[FloatArray]]


class Engine:
    """Scores passes with one model or several copies of it."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._by_length = bool(lengths_read_apart(replicas[0].logits.model.config))

    def score(self, passes: Sequence[ScoringSequence], read: ReadLogits = target_log_probs) -> Iterator[FloatArray]:
        """For each pass, in order, what is read of each of its targets: by default its natural log-probability
        (float32).

        Consecutive passes are read together if the first is the longest. Raises ModelError if a single pass is too
        large for the device, or the model returns NaN.
        """
        batches = enumerate(self._batches(passes))
        if len(self._replicas) == 1:
            scored = _served(self._replicas[0], lambda: next(batches, None), read)
        else:
            scored = _in_order(_served_by_all(self._replicas, batches, read))
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


def _served(replica: Replica, take: Callable[[], _Batch | None], read: ReadLogits) -> Iterator[_Scored]:
    """Batch after batch, read by one replica; a GPU starts each batch before the previous one is fetched, so it never
    waits."""
    before: tuple[int, InFlight] | None = None
    while (batch := take()) is not None:
        started: tuple[int, InFlight] | None = (batch[0], replica.start(batch[1], read))
        if replica.overlaps:
            started, before = before, started
        if started is not None:
            yield started[0], started[1].fetch()
    if before is not None:
        yield before[0], before[1].fetch()


def _served_by_all(replicas: Sequence[Replica], batches: Iterator[_Batch], read: ReadLogits) -> Iterator[_Scored]:
    """All batches in the order in which replicas finish them; an idle replica takes the next, the first error stops
    all."""
    lock, finished = Lock(), SimpleQueue[_Scored | BaseException | None]()
    stopped = False

    def take() -> _Batch | None:
        with lock:
            return None if stopped else next(batches, None)

    def serve(replica: Replica) -> None:
        try:
            for scored in _served(replica, take, read):
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
