"""One copy of a model on one device: passes in, log-probabilities out, in batches that fit into its memory.

- Logits are computed only at target positions (`ralm.lm.local.head`), and never more at once than fit.
- Sequences are padded on the right: padding cannot change anything to its left in a causal model, however the model
  family counts positions.
- After a device runs out of memory, its batches are half as large.
- A GPU works on a batch while the next is prepared and the results of the previous one are fetched.

Works on token ids; knows nothing of requests.
Shapes: B sequences of a batch, N tokens, P targets, each read from the position before it, C positions of a chunk, V
vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import torch

from ralm.errors import ModelError
from ralm.lm.local.head import ChosenLogits
from ralm.lm.local.wanted import sent
from ralm.records import FloatArray, ScoringSequence

TOKENS_A_BATCH: Final = {"cpu": 1, "cuda": 65_536}
"""Tokens of a batch, padding included. A CPU reads one sequence at a time: batching would only add padding."""
LOGITS_A_BATCH: Final = {"cpu": 1 << 26, "cuda": 1 << 29}
"""Logits of one forward pass, held in the model's number format (256 MiB in float32, 1 GiB in bfloat16)."""
LOGITS_A_CHUNK: Final = 1 << 23
"""Logits that are turned into float32 log-probabilities at once (32 MiB)."""


Wanted: TypeAlias = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]
"""What is wanted of logits (P, V) and targets (P): `target_log_probs` or `distributions`, in parts."""


class InFlight:
    """A batch that the device is working on: what is wanted (float32) of all its targets, in parts."""

    def __init__(self, batch: Sequence[ScoringSequence], logits: ChosenLogits, parts: Sequence[torch.Tensor]) -> None:
        self.parts = parts
        self._batch = batch
        self._logits = logits

    def fetch(self) -> list[FloatArray]:
        """Wait for the device; returns what is wanted of each pass. ModelError if a figure is NaN."""
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

    def start(self, batch: Sequence[ScoringSequence], wanted: Wanted) -> InFlight:
        """Start reading a batch, the longest pass first, in smaller parts if it does not fit.

        Raises ModelError if a single sequence does not fit.
        """
        return InFlight(batch, self.logits, self._started(batch, wanted))

    def _started(self, batch: Sequence[ScoringSequence], wanted: Wanted) -> list[torch.Tensor]:
        """What is wanted of the targets of a batch, in as many parts as needed."""
        if len(batch) == 1 and len(batch[0].targets_P) > self._positions:
            return [part for half in _halves(batch[0]) for part in self._started([half], wanted)]
        try:
            return self._read(batch, wanted)
        except torch.OutOfMemoryError:
            pass  # leave the handler, so that the memory of the failed pass is freed
        return [part for smaller in self._after_running_out(batch) for part in self._started(smaller, wanted)]

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
    def _read(self, batch: Sequence[ScoringSequence], wanted: Wanted) -> list[torch.Tensor]:
        """What is wanted of each target of each pass, in chunks, from one forward pass."""
        input_BN = torch.zeros((len(batch), max(len(one) for one in batch)), dtype=torch.long)
        for ids_N, one in zip(input_BN, batch, strict=True):
            ids_N[: len(one)] = torch.from_numpy(one.tokens_N[:-1])
        row_P = np.repeat(np.arange(len(batch)), [len(one.targets_P) for one in batch])
        position_P = np.concatenate([one.targets_P for one in batch]) - 1
        target_P = np.concatenate([one.tokens_N[one.targets_P] for one in batch])
        rows, positions, targets = (torch.from_numpy(index) for index in (row_P, position_P, target_P))
        logits_PV = self.logits(input_BN, rows, positions)
        return wanted(logits_PV, targets)


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
