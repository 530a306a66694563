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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from transformers import Cache, PreTrainedModel

from ralm.errors import ModelError
from ralm.records import FloatArray, IntArray, ScoringSequence

TOKENS_PER_BATCH: Final = {"cpu": 1, "cuda": 65_536}
"""Tokens of a batch, padding included. A CPU reads one sequence at a time: batching would only add padding."""
LOGITS_PER_BATCH: Final = {"cpu": 1 << 26, "cuda": 1 << 29}
"""Logits of one forward pass, held in the model's number format (256 MiB in float32, 1 GiB in bfloat16)."""
LOGITS_PER_CHUNK: Final = 1 << 23
"""Logits that are turned into float32 log-probabilities at once (32 MiB)."""
_CACHE_ARGUMENTS: Final = ("cache", "past_key_values")
"""Names of the argument of `forward` that takes a cache; transformers 5.24 renamed the second to the first."""

ReadLogits: TypeAlias = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]
"""Turns logits (P, V) and targets (P) into results, in parts: `target_log_probs` or `distributions`."""


@dataclass(eq=False)
class _TargetPositions:
    """P positions of a batch: the row and the position of each."""

    row_P: torch.Tensor
    position_P: torch.Tensor
    at_once: int
    """The number of positions whose logits this pass computes."""
    states_1PH: torch.Tensor | None = None
    """What the output layer was given, of all positions."""

    def of(self, states_BNX: torch.Tensor) -> torch.Tensor:
        device = states_BNX.device
        # kept on that device, which both the hook and the caller may need
        self.row_P, self.position_P = to_device(self.row_P, device), to_device(self.position_P, device)
        return states_BNX[self.row_P, self.position_P]

    def replace(self, states_BNH: torch.Tensor) -> torch.Tensor:
        """The states (1, C, H) that the output layer reads instead of these, which are kept."""
        self.states_1PH = self.of(states_BNH)[None]
        return self.states_1PH[:, : self.at_once]


class _ForwardPass(threading.local):
    """The shape of the input of this thread's forward pass, and what its output layer reads; None for other uses."""

    replace: tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]] | None = None


_FORWARD_PASS: Final = _ForwardPass()


class TargetLogits:
    """A model whose logits are computed at target positions alone; other uses of it are unaffected."""

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        head = model.get_output_embeddings()
        if head is None:
            raise ModelError(f"{name} has no output layer over a vocabulary: it is not a language model.")
        self.model = model
        self.name = name
        self.arguments = frozenset(inspect.signature(model.forward).parameters)
        """The names of the arguments of the model's `forward`."""
        self.takes_positions = "position_ids" in self.arguments
        self._cache_argument = next((name for name in _CACHE_ARGUMENTS if name in self.arguments), None)
        head.register_forward_pre_hook(_keep_targets)

    @property
    def device(self) -> torch.device:
        """The device that token ids are sent to."""
        device: torch.device = self.model.device
        return device

    @property
    def vocabulary(self) -> int:
        """The number of token ids of the model."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def tokens_per_batch(self) -> int:
        """The number of tokens that the device reads at once, padding included."""
        return TOKENS_PER_BATCH.get(self.device.type, TOKENS_PER_BATCH["cpu"])

    @property
    def positions_per_batch(self) -> int:
        """The number of positions whose logits the device computes at once."""
        return max(1, LOGITS_PER_BATCH.get(self.device.type, LOGITS_PER_BATCH["cpu"]) // self.vocabulary)

    def __call__(
        self,
        input_BN: torch.Tensor,
        row_P: torch.Tensor,
        position_P: torch.Tensor,
        cache: Cache | None = None,
        **padding: torch.Tensor,
    ) -> torch.Tensor:
        """The logits (P, V) after each target position; the model extends the `cache`. TypeError if it takes none."""
        options: dict[str, Any] = {"use_cache": cache is not None, **padding}
        if cache is not None:
            if self._cache_argument is None:
                raise TypeError(f"forward() takes none of the arguments {', '.join(_CACHE_ARGUMENTS)}")
            options[self._cache_argument] = cache
        targets = _TargetPositions(row_P, position_P, len(row_P))
        return self._of_targets(self._forward(input_BN, targets.replace, options).logits, targets)

    def parts(
        self, input_BN: torch.Tensor, row_P: torch.Tensor, position_P: torch.Tensor, at_once: int
    ) -> Iterator[torch.Tensor]:
        """The logits of the target positions in parts of `at_once`. The input is read once: the output layer reads the
        states of later parts in passes of two tokens, so a model does to their logits what it does to all."""
        targets = _TargetPositions(row_P, position_P, at_once)
        options = {"use_cache": False}
        logits_PV = self._of_targets(self._forward(input_BN, targets.replace, options).logits, targets)
        if len(logits_PV) == len(row_P):
            yield from torch.split(logits_PV, at_once)
            return
        yield logits_PV
        assert targets.states_1PH is not None, "fewer logits than targets without the hook"
        del logits_PV
        for states_1CH in torch.split(targets.states_1PH[:, at_once:], at_once, dim=1):
            yield self._forward(input_BN[:1, :2], lambda _: states_1CH, options).logits[0]  # noqa: B023  (called here)

    def continue_state(
        self,
        input_BN: torch.Tensor,
        row_P: torch.Tensor,
        position_P: torch.Tensor,
        state: Mapping[str, Any],
        **positions: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The logits (P, V), and the model's own state after all tokens: the outputs that its `forward` takes back. The
        model may change the `state` before, empty at first, in place. TypeError if it returns none."""
        targets = _TargetPositions(row_P, position_P, len(row_P))
        output = self._forward(input_BN, targets.replace, {"use_cache": True, **state, **positions})
        after = {name: value for name, value in output.items() if name in self.arguments}
        if not after:
            raise TypeError("forward() returns no state that it takes back")
        return self._of_targets(output.logits, targets), after

    def _forward(
        self, input_BN: torch.Tensor, replace: Callable[[torch.Tensor], torch.Tensor], options: Mapping[str, Any]
    ) -> Any:
        """The output of the model, whose output layer reads what `replace` makes of its states."""
        _FORWARD_PASS.replace = tuple(input_BN.shape), replace
        try:
            return self.model(input_ids=to_device(input_BN, self.device), **options)
        finally:
            _FORWARD_PASS.replace = None

    @staticmethod
    def _of_targets(logits: torch.Tensor, targets: _TargetPositions) -> torch.Tensor:
        """The logits (P, V) of the target positions; of all, if the model calls its output layer in another way."""
        if targets.states_1PH is None or logits.shape[:2] != (1, min(targets.at_once, len(targets.row_P))):
            return targets.of(logits)
        return logits[0]

    def check_numbers(self, log_probs: torch.Tensor) -> None:
        """Raise ModelError if a log-probability is NaN, so that no figure is made from it."""
        if bool(torch.isnan(log_probs).any()):
            dtype = str(self.model.dtype).removeprefix("torch.")
            remedy = "its weights are damaged" if dtype == "float32" else 'use `dtype="float32"` or `"bfloat16"`'
            raise ModelError(f"{self.name} gives log-probabilities that are not numbers in {dtype}: {remedy}.")


def _keep_targets(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor] | None:
    """Replace the states (B, N, H) that an output layer reads with those at target positions (1, P, H)."""
    if _FORWARD_PASS.replace is None:
        return None
    shape, replace = _FORWARD_PASS.replace
    return (replace(inputs[0]),) if inputs[0].shape[:2] == shape else None


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on a device; a GPU copies it from main memory while it still works on the previous batch."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def pad_right(texts: Sequence[IntArray]) -> torch.Tensor:
    """Texts (int64, B x N), padded on the right, where no token sees the padding."""
    input_BN = torch.zeros((len(texts), max(map(len, texts))), dtype=torch.long)
    for ids_N, text in zip(input_BN, texts, strict=True):
        ids_N[: len(text)] = torch.from_numpy(text)
    return input_BN


class Replica:
    """A copy of a model that remembers how much its device can read at once."""

    def __init__(self, logits: TargetLogits) -> None:
        self.logits = logits
        self._tokens = logits.tokens_per_batch
        self._positions = logits.positions_per_batch

    def fits(self, batch: Sequence[ScoringSequence], sequence: ScoringSequence) -> bool:
        """Whether a sequence, no longer than the batch's first, may be read together with the batch."""
        padded = (len(batch) + 1) * len(batch[0])
        targets = sum(len(one.targets_P) for one in batch) + len(sequence.targets_P)
        return padded <= self._tokens and targets <= self._positions

    def start(self, batch: Sequence[ScoringSequence], read: ReadLogits) -> list[torch.Tensor]:
        """Start reading a batch, the longest first; returns results in parts. ModelError if one sequence does not
        fit."""
        try:
            return self._read(batch, read)
        except torch.OutOfMemoryError:
            pass  # leave the handler, so that the memory of the failed pass is freed
        if self.logits.device.type == "cuda":
            torch.cuda.empty_cache()
        # from now on half as much is read at once
        if len(batch) > 1:
            middle = len(batch) // 2
            self._tokens = min(self._tokens, middle * len(batch[0]))
            return self.start(batch[:middle], read) + self.start(batch[middle:], read)
        at_once = min(self._positions, len(batch[0].targets_P))
        if at_once == 1:
            raise ModelError(
                f"{self.logits.name} runs out of memory on {self.logits.device} with one sequence of {len(batch[0])} "
                'tokens: lower `max_length`, use `dtype="bfloat16"`, or spread the model with `device="map"`.'
            )
        self._positions = at_once // 2
        return self.start(batch, read)

    def fetch(self, batch: Sequence[ScoringSequence], parts: Sequence[torch.Tensor]) -> list[FloatArray]:
        """Wait for the device; returns the results (float32) of each sequence. ModelError if one is NaN."""
        results = torch.cat([part.cpu() for part in parts])
        self.logits.check_numbers(results)
        ends = np.cumsum([len(one.targets_P) for one in batch])
        return np.split(results.numpy(), ends[:-1])

    @torch.inference_mode()
    def _read(self, batch: Sequence[ScoringSequence], read: ReadLogits) -> list[torch.Tensor]:
        input_BN = pad_right([one.tokens_N[:-1] for one in batch])
        row_P = np.repeat(np.arange(len(batch)), [len(one.targets_P) for one in batch])
        position_P = np.concatenate([one.targets_P for one in batch]) - 1
        target_P = np.concatenate([one.tokens_N[one.targets_P] for one in batch])
        parts = self.logits.parts(input_BN, torch.from_numpy(row_P), torch.from_numpy(position_P), self._positions)
        targets = torch.split(torch.from_numpy(target_P), self._positions)
        return [result for logits_PV, some in zip(parts, targets, strict=True) for result in read(logits_PV, some)]


def target_log_probs(logits_PV: torch.Tensor, targets_P: torch.Tensor) -> list[torch.Tensor]:
    """The log-softmax (float32) at the targets, a chunk of positions at a time."""
    targets_P1 = to_device(targets_P, logits_PV.device)[:, None]
    rows = max(1, LOGITS_PER_CHUNK // logits_PV.shape[1])
    chunks = []
    for first in range(0, len(targets_P), rows):
        logits_CV = logits_PV[first : first + rows].float()
        chunks.append(logits_CV.gather(-1, targets_P1[first : first + rows])[:, 0] - logits_CV.logsumexp(-1))
    return chunks


def distributions(logits_PV: torch.Tensor, targets_P: torch.Tensor) -> list[torch.Tensor]:  # noqa: ARG001
    """The log-softmax (float32) over the vocabulary, a chunk of positions at a time."""
    rows = max(1, LOGITS_PER_CHUNK // logits_PV.shape[1])
    return [logits_CV.float().log_softmax(-1).cpu() for logits_CV in torch.split(logits_PV, rows)]


class Engine:
    """Scores sequences with one model or several copies of it."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._by_length = bool(length_thresholds(replicas[0].logits.model.config))

    def score(self, sequences: Sequence[ScoringSequence], read: ReadLogits = target_log_probs) -> Iterator[FloatArray]:
        """For each sequence, in order and as soon as known, the results (float32) of `read` at its targets; sequences
        are read together if the first is the longest. ModelError if one is too large, or the model returns NaN."""
        batches = self._batches(sequences)
        for results in self._alone(batches, read) if len(self._replicas) == 1 else self._in_turn(batches, read):
            yield from results

    def _batches(self, sequences: Sequence[ScoringSequence]) -> Iterator[Sequence[ScoringSequence]]:
        """Sequences in order, in batches of as many as can be padded to the first and read together."""
        batch: list[ScoringSequence] = []
        for one in sequences:
            if batch:
                fitting = len(one) == len(batch[0]) if self._by_length else len(one) <= len(batch[0])
                if not fitting or not all(replica.fits(batch, one) for replica in self._replicas):
                    yield batch
                    batch = []
            batch.append(one)
        if batch:
            yield batch

    def _alone(self, batches: Iterator[Sequence[ScoringSequence]], read: ReadLogits) -> Iterator[list[FloatArray]]:
        """The results of each batch, read in this thread. A GPU starts a batch before the previous one is fetched."""
        [replica] = self._replicas
        started: deque[tuple[Sequence[ScoringSequence], list[torch.Tensor]]] = deque()
        for batch in batches:
            started.append((batch, replica.start(batch, read)))
            if replica.logits.device.type != "cuda" or len(started) > 1:
                yield replica.fetch(*started.popleft())
        for batch, parts in started:
            yield replica.fetch(batch, parts)

    def _in_turn(self, batches: Iterator[Sequence[ScoringSequence]], read: ReadLogits) -> Iterator[list[FloatArray]]:
        """The results of each batch. The replicas take batches in turn, each in a thread where the next batch waits."""
        started: deque[tuple[Replica, Sequence[ScoringSequence], Future[list[torch.Tensor]]]] = deque()
        with ExitStack() as stack:
            threads = [(one, stack.enter_context(ThreadPoolExecutor(max_workers=1))) for one in self._replicas]
            for batch, (replica, thread) in zip(batches, cycle(threads), strict=False):
                started.append((replica, batch, thread.submit(replica.start, batch, read)))
                if len(started) == 2 * len(threads):
                    first, its_batch, parts = started.popleft()
                    yield first.fetch(its_batch, parts.result())
            for replica, batch, parts in started:
                yield replica.fetch(batch, parts.result())


def length_thresholds(config: Any) -> list[int]:
    """The lengths beyond which a model reads all tokens differently (LongRoPE of Phi-3); empty for most models."""
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
