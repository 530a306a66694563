"""Scores sequences with one or several copies of a transformers model.

- The output layer is computed only at target positions: the vocabulary is the widest layer of most models, and the
  logits of a whole window cost more memory than everything else. The model's own code computes it, from states that are
  picked where its body returns them, so soft caps and scales of logits are applied.
- Sequences are batched by length and padded on the right: padding cannot change anything to its left in a causal model,
  however the model family counts positions.
- Each copy reads batches in its own thread. After its device runs out of memory, its batches are half as large. A GPU
  works on a batch while the next is prepared; results are copied to pinned memory behind the batch that gives them.

Shapes: B sequences of a batch, N tokens, P targets, each read from the position before it, C positions of a chunk, H
hidden size, V vocabulary, X any size.
"""

import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from functools import update_wrapper
from itertools import cycle
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from transformers import Cache, PreTrainedModel

from ralm.errors import ModelError
from ralm.records import FloatArray, IntArray, ScoringSequence

TOKENS_PER_BATCH: Final = {"cpu": 1, "cuda": 65_536}
"""Tokens of a batch, padding included. A CPU reads one sequence at a time: batching would only add padding."""
LOGITS_PER_BATCH: Final = {"cpu": 1 << 26, "cuda": 1 << 29}
"""Logits of one forward pass, held in the model's number format (256 MiB in float32, 1 GiB in bfloat16)."""
LOGITS_PER_CHUNK: Final = {"cpu": 1 << 23, "cuda": 1 << 27}
"""Logits that are turned into float32 log-probabilities at once (32 MiB, 512 MiB)."""
_FLOAT32_TOLERANCE: Final = 1e-3
"""How much the logits of two ways to read may differ by rounding, as a fraction of their size."""
_TOLERANCE: Final = 0.3
"""The same in other number formats: a family that reads its layers many times rounds to 0.2."""
# Private: transformers' argument of `forward`, which 5.24 renamed; test_library_mismatch.py.
_CACHE_ARGUMENTS: Final = ("cache", "past_key_values")
"""Names of the argument of `forward` that takes a cache; transformers 5.24 renamed the second to the first."""

ReadLogits: TypeAlias = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]
"""Turns logits (P, V) and targets (P) into results, in chunks: `target_log_probs` or `distributions`."""


@dataclass(eq=False)
class _Targets:
    """P positions of a batch, the row and the position of each; a pass computes the logits from `begin` to `end`."""

    row_P: torch.Tensor
    position_P: torch.Tensor
    begin: int
    end: int
    output: Any = None
    """What the body returned, with the states (1, P, H) of the targets alone."""

    def pick(self, tensor_BNX: torch.Tensor) -> torch.Tensor:
        device = tensor_BNX.device
        return tensor_BNX[to_device(self.row_P, device), to_device(self.position_P, device)]


class _Thread(threading.local):
    """The targets that this thread reads a model for; None for other uses of the model."""

    targets: _Targets | None = None


_THREAD: Final = _Thread()


class _Body:
    """The forward method of a model's body (all layers before its output layer), which returns states of targets."""

    def __init__(self, module: torch.nn.Module) -> None:
        update_wrapper(self, module.forward)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        targets, read = _THREAD.targets, self.__wrapped__  # type: ignore[attr-defined]  # update_wrapper sets it
        if targets is None:
            return read(*inputs, **options)
        if targets.output is None:
            output = read(*inputs, **options)
            targets.output = _with_states(output, targets.pick(output[0])[None])
        return _with_states(targets.output, targets.output[0][:, targets.begin : targets.end])


def _with_states(output: Any, states: torch.Tensor) -> Any:
    """Return a copy of what the body of a model returned, with other states."""
    output = copy(output)
    output[next(iter(output))] = states
    return output


class TargetLogits:
    """A model whose logits are computed at targets alone, or, with a warning, everywhere if a trial finds no body."""

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        self.model = model
        self.name = name
        self.arguments = frozenset(inspect.signature(model.forward).parameters)
        """The names of the arguments of the model's `forward`."""
        self.takes_positions = "position_ids" in self.arguments
        self._cache_argument = next((name for name in _CACHE_ARGUMENTS if name in self.arguments), None)
        self._picks = self._find_body()

    @property
    def device(self) -> torch.device:
        """The device that token ids are sent to."""
        return torch.device(self.model.device)

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
        """Return the logits (P, V) after each target; the model extends the `cache`. TypeError if it takes none."""
        options: dict[str, Any] = {"use_cache": cache is not None, **padding}
        if cache is not None:
            if self._cache_argument is None:
                raise TypeError(f"forward() takes none of the arguments {', '.join(_CACHE_ARGUMENTS)}")
            options[self._cache_argument] = cache
        return self._forward(input_BN, _Targets(row_P, position_P, 0, len(row_P)), options)[0]

    def parts(
        self, input_BN: torch.Tensor, row_P: torch.Tensor, position_P: torch.Tensor, at_once: int
    ) -> Iterator[torch.Tensor]:
        """Yield the logits of the target positions, `at_once` at a time; the body of the model reads the input once."""
        targets = _Targets(row_P, position_P, 0, at_once if self._picks else len(row_P))
        while targets.begin < len(row_P):
            yield from torch.split(self._forward(input_BN, targets, {"use_cache": False})[0], at_once)
            targets.begin, targets.end = targets.end, targets.end + at_once

    def continue_state(
        self,
        input_BN: torch.Tensor,
        row_P: torch.Tensor,
        position_P: torch.Tensor,
        state: Mapping[str, Any],
        **positions: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the logits (P, V) and the model's own state after all tokens; `state` may be changed in place."""
        targets = _Targets(row_P, position_P, 0, len(row_P))
        logits_PV, output = self._forward(input_BN, targets, {"use_cache": True, **state, **positions})
        after = {name: value for name, value in output.items() if name in self.arguments}
        if not after:
            raise TypeError("forward() returns no state that it takes back")
        return logits_PV, after

    def _forward(self, input_BN: torch.Tensor, targets: _Targets, options: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the logits (C, V) of a part of the targets, and all that the model returns."""
        _THREAD.targets = targets if self._picks else None
        try:
            output = self.model(input_ids=to_device(input_BN, self.device), **options)
        finally:
            _THREAD.targets = None
        return (output.logits[0] if self._picks else targets.pick(output.logits)), output

    @torch.inference_mode()
    def _find_body(self) -> bool:
        """Return whether a part of the model is its body: from its states, tokens have the logits of a whole pass."""
        text = trial_text(self.model), torch.tensor([1, 0, 1, 0]), torch.tensor([3, 2, 0, 3])
        self._picks = False
        expected_PV = self(*text)
        self._picks = True
        for module in self.model.modules():
            if module is self.model or not isinstance(module, PreTrainedModel):
                continue
            if isinstance(module.forward, _Body):
                return True  # of another `TargetLogits` of this model
            module.forward = _Body(module)
            try:
                if agree(torch.cat([*self.parts(*text, at_once=3)]), expected_PV, self.model.dtype):
                    return True
            except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
                pass  # what this module returns is not what the output layer reads
            module.forward = module.forward.__wrapped__
        logging.getLogger(__name__).warning(
            "%s: states of the family %s cannot be picked, so scoring computes the logits of all positions.",
            self.name,
            self.model.config.model_type,
        )
        return False

    def check_numbers(self, log_probs: torch.Tensor) -> None:
        """Raise ModelError if a log-probability is NaN, so that no figure is made from it."""
        if bool(torch.isnan(log_probs).any()):
            dtype = str(self.model.dtype).removeprefix("torch.")
            remedy = "its weights are damaged" if dtype == "float32" else 'use `dtype="float32"` or `"bfloat16"`'
            raise ModelError(f"{self.name} gives log-probabilities that are not numbers in {dtype}: {remedy}.")


def trial_text(model: PreTrainedModel) -> torch.Tensor:
    """Return a few ordinary tokens (2 x 4), which two ways to read must give the same logits."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return (torch.arange(8).view(2, 4) + vocabulary // 4) % vocabulary


def agree(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether logits of a model in a number format are the same but for rounding."""
    apart = actual.float() - expected.float()
    tolerance = _FLOAT32_TOLERANCE if dtype == torch.float32 else _TOLERANCE
    return not bool(apart.norm() > tolerance * expected.float().norm())


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor on a device; a GPU copies it from main memory while it still works on the previous batch."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def pad_right(texts: Sequence[IntArray]) -> torch.Tensor:
    """Return texts (int64, B x N), padded on the right, where no token sees the padding."""
    input_BN = torch.zeros((len(texts), max(map(len, texts))), dtype=torch.long)
    for ids_N, text in zip(input_BN, texts, strict=True):
        ids_N[: len(text)] = torch.from_numpy(text)
    return input_BN


class _Started(NamedTuple):
    """Results of a batch in main memory, in parts; on a GPU they are there after the event."""

    parts: list[torch.Tensor]
    copied: torch.cuda.Event | None


class Replica:
    """A copy of a model that remembers how much its device can read at once."""

    def __init__(self, logits: TargetLogits) -> None:
        self.logits = logits
        self.tokens = logits.tokens_per_batch
        """The number of tokens that are read at once, padding included."""
        self._positions = logits.positions_per_batch

    def start(self, batch: Sequence[ScoringSequence], read: ReadLogits) -> _Started:
        """Start reading a batch, the longest first. ModelError if one sequence does not fit."""
        try:
            return self._read(batch, read)
        except torch.OutOfMemoryError:
            pass  # leave the handler, so that the memory of the failed pass is freed
        torch.cuda.empty_cache()
        # from now on half as much is read at once
        if len(batch) > 1:
            middle = len(batch) // 2
            self.tokens = min(self.tokens, middle * len(batch[0]))
            first, second = self.start(batch[:middle], read), self.start(batch[middle:], read)
            return _Started(first.parts + second.parts, second.copied)
        at_once = min(self._positions, len(batch[0].targets_P))
        if at_once == 1:
            raise ModelError(
                f"{self.logits.name} runs out of memory on {self.logits.device} with one sequence of {len(batch[0])} "
                'tokens: lower `max_length`, use `dtype="bfloat16"`, or spread the model with `device="map"`.'
            )
        self._positions = at_once // 2
        return self.start(batch, read)

    def fetch(self, batch: Sequence[ScoringSequence], started: _Started) -> list[FloatArray]:
        """Wait for the batch; return the results (float32) of each sequence. ModelError if one is NaN."""
        if started.copied is not None:
            started.copied.synchronize()
        results = torch.cat(started.parts)
        self.logits.check_numbers(results)
        ends = np.cumsum([len(sequence.targets_P) for sequence in batch])
        return np.split(results.numpy(), ends[:-1])

    @torch.inference_mode()
    def _read(self, batch: Sequence[ScoringSequence], read: ReadLogits) -> _Started:
        input_BN = pad_right([sequence.tokens_N[:-1] for sequence in batch])
        row_P = np.repeat(np.arange(len(batch)), [len(sequence.targets_P) for sequence in batch])
        position_P = np.concatenate([sequence.targets_P for sequence in batch]) - 1
        target_P = np.concatenate([sequence.tokens_N[sequence.targets_P] for sequence in batch])
        logits = self.logits.parts(input_BN, torch.from_numpy(row_P), torch.from_numpy(position_P), self._positions)
        targets = torch.split(torch.from_numpy(target_P), self._positions)
        parts, device = [], torch.device("cpu")
        for logits_CV, target_C in zip(logits, targets, strict=True):
            device = logits_CV.device
            parts += [part.to("cpu", non_blocking=device.type == "cuda") for part in read(logits_CV, target_C)]
        return _Started(parts, torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None)


def target_log_probs(logits_PV: torch.Tensor, targets_P: torch.Tensor) -> list[torch.Tensor]:
    """Return the log-softmax (float32) at the targets, a chunk of positions at a time."""
    targets_P1 = to_device(targets_P, logits_PV.device)[:, None]
    rows = _rows_per_chunk(logits_PV)
    chunks = []
    for logits_CV, target_C1 in zip(torch.split(logits_PV, rows), torch.split(targets_P1, rows), strict=True):
        logits_CV = logits_CV.float()
        chunks.append(logits_CV.gather(-1, target_C1)[:, 0] - logits_CV.logsumexp(-1))
    return chunks


def distributions(logits_PV: torch.Tensor, targets_P: torch.Tensor) -> list[torch.Tensor]:  # noqa: ARG001
    """Return the log-softmax (float32) over the vocabulary, a chunk of positions at a time."""
    return [logits_CV.float().log_softmax(-1) for logits_CV in torch.split(logits_PV, _rows_per_chunk(logits_PV))]


def _rows_per_chunk(logits_PV: torch.Tensor) -> int:
    return max(1, LOGITS_PER_CHUNK.get(logits_PV.device.type, LOGITS_PER_CHUNK["cpu"]) // logits_PV.shape[1])


_Work: TypeAlias = tuple[Replica, Sequence[ScoringSequence], Future[_Started] | _Started]


class Engine:
    """A model, or several copies of it, that scores sequences."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._by_length = bool(length_thresholds(replicas[0].logits.model.config))

    def score(self, sequences: Sequence[ScoringSequence], read: ReadLogits = target_log_probs) -> Iterator[FloatArray]:
        """Yield the results (float32) of `read` at each sequence's targets, in order; best with the longest first."""
        for replica, batch, start in self._started(sequences, read):
            yield from replica.fetch(batch, start.result() if isinstance(start, Future) else start)

    def _batches(self, sequences: Sequence[ScoringSequence]) -> Iterator[Sequence[ScoringSequence]]:
        """Yield sequences in order, in batches of as many as can be padded to the first and read together."""
        batch: list[ScoringSequence] = []
        for sequence in sequences:
            if batch:
                fitting = len(sequence) == len(batch[0]) if self._by_length else len(sequence) <= len(batch[0])
                if not fitting or (len(batch) + 1) * len(batch[0]) > min(replica.tokens for replica in self._replicas):
                    yield batch
                    batch = []
            batch.append(sequence)
        if batch:
            yield batch

    def _started(self, sequences: Sequence[ScoringSequence], read: ReadLogits) -> Iterator[_Work]:
        """Yield batches to be fetched, on a GPU once the next is started; several replicas take them in turn."""
        started: deque[_Work] = deque()
        several = len(self._replicas) > 1
        ahead = 2 * len(self._replicas) if several or self._replicas[0].logits.device.type == "cuda" else 1
        with ExitStack() as stack:
            threads = [(replica, stack.enter_context(ThreadPoolExecutor(max_workers=1))) for replica in self._replicas]
            for batch, (replica, thread) in zip(self._batches(sequences), cycle(threads), strict=False):
                start = thread.submit(replica.start, batch, read) if several else replica.start(batch, read)
                started.append((replica, batch, start))
                if len(started) == ahead:
                    yield started.popleft()
            yield from started


def length_thresholds(config: Any) -> list[int]:
    """Return the lengths beyond which a model reads all tokens differently (LongRoPE of Phi-3), usually none."""
    # Private: names of settings; tests of Phi-3.
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
