"""Reduces distributions to a few numbers on the device: of each sequence, or of several at the same targets.

For several, the model reads all sequences first, and only what its output layer is given at the targets is kept. The
logits of a group's targets are then computed in chunks, those of its K sequences together. Letters of shapes: K
sequences of a group, C targets of a chunk, P positions, S numbers of a target, V vocabulary, X hidden size, or V for a
model whose logits are kept.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import torch

from ralm.lm.local.engine import LOGITS_PER_CHUNK, Replica, Scored, to_device
from ralm.protocols import TargetGroups
from ralm.records import FloatArray, ScoringSequence, TargetGroup

_LOWEST: Final = torch.finfo(torch.float32).min
_Piece: TypeAlias = tuple[int, int, int]
"""The number of a group, and the first and one past the last of some of its targets."""


def read_jobs(
    replica: Replica,
    take: Callable[[], tuple[int, TargetGroups] | None],
    batches: Callable[[Sequence[ScoringSequence]], Iterable[Sequence[ScoringSequence]]],
) -> Iterator[Scored]:
    """The results of job after job, as `ModelTraits.grouped` gives them, read by one replica."""
    while (job := take()) is not None:
        number, (sequences, groups) = job
        with torch.inference_mode():
            states_PX = torch.cat([part for batch in batches(sequences) for part in replica.start(batch, None)])
            results = reduced(states_PX, sequences, groups, replica.logits.of_states, replica.logits.vocabulary)
        for group, numbers in zip(groups, results, strict=True):
            replica.logits.check_numbers(torch.from_numpy(numbers[:, : len(group.sequences_K)]))
        yield number, results


def summaries(logits_PV: torch.Tensor, targets_P: torch.Tensor) -> list[torch.Tensor]:
    """The log-softmax at the targets, the entropy in nats, and the highest log-softmax (float32, P x 3), a chunk of
    positions at a time."""
    rows = max(1, LOGITS_PER_CHUNK // logits_PV.shape[1])
    chunks = []
    for logits_CV, own_C in zip(torch.split(logits_PV, rows), torch.split(targets_P, rows), strict=True):
        log_probs_CV = logits_CV.float().log_softmax(-1)
        entropy_C = -(log_probs_CV.exp() * log_probs_CV.clamp_min(_LOWEST)).sum(-1)  # 0 times -inf would be NaN
        chosen_C = log_probs_CV.gather(-1, to_device(own_C, log_probs_CV.device)[:, None])[:, 0]
        chunks.append(torch.stack([chosen_C, entropy_C, log_probs_CV.amax(-1)], dim=1))
    return chunks


def from_distributions(
    distributions: Callable[[Sequence[ScoringSequence]], Iterable[FloatArray]], jobs: Iterable[TargetGroups]
) -> Iterator[list[FloatArray]]:
    """As `ModelTraits.grouped`, by a model that gives whole distributions."""
    for sequences, groups in jobs:
        log_probs_PV = torch.cat([as_tensor(one) for one in distributions(sequences)])
        yield reduced(log_probs_PV, sequences, groups, lambda given: given, log_probs_PV.shape[1])


def as_tensor(log_probs: FloatArray) -> torch.Tensor:
    """An array as a tensor (float32) that shares its memory where it can."""
    return torch.from_numpy(np.require(log_probs, np.float32, "W"))


def reduced(
    states_PX: torch.Tensor,
    sequences: Sequence[ScoringSequence],
    groups: Sequence[TargetGroup],
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    vocabulary: int,
) -> list[FloatArray]:
    """The log-probabilities of the targets of each group, and the numbers of its `reduce` (float32, T x (K + S))."""
    begins = np.cumsum([0, *(len(one.targets_P) for one in sequences)])
    found: list[list[torch.Tensor]] = [[] for _ in groups]
    for pieces in _chunks(groups, max(1, LOGITS_PER_CHUNK // vocabulary)):
        rows = []
        for number, first, end in pieces:
            group = groups[number]
            places_KC = (begins[group.sequences_K] + group.firsts_K)[:, None] + np.arange(first, end)
            rows.append(torch.from_numpy(places_KC.ravel()))
        logits_PV = logits_of(states_PX[to_device(torch.cat(rows), states_PX.device)])
        for (number, first, end), own_PV in zip(
            pieces, torch.split(logits_PV, [len(one) for one in rows]), strict=True
        ):
            group = groups[number]
            log_probs_KCV = own_PV.float().log_softmax(-1).view(-1, end - first, own_PV.shape[1])
            longest = sequences[group.sequences_K[0]]
            ids_C = longest.tokens_N[longest.targets_P[group.firsts_K[0] + first : group.firsts_K[0] + end]]
            targets_C = to_device(torch.from_numpy(ids_C), own_PV.device)
            chosen_KC1 = log_probs_KCV.gather(-1, targets_C.expand(len(log_probs_KCV), -1)[..., None])
            numbers_CS = group.reduce(log_probs_KCV, targets_C)
            found[number].append(torch.cat([chosen_KC1[..., 0].T, numbers_CS], dim=1))
    return [torch.cat(parts).cpu().numpy() for parts in found]


def _chunks(groups: Sequence[TargetGroup], rows: int) -> Iterator[list[_Piece]]:
    """The targets of all groups in order, as many at a time as have at most `rows` logits over the vocabulary, at least
    one target."""
    pieces: list[_Piece] = []
    left = rows
    for number, group in enumerate(groups):
        count, first = len(group.sequences_K), 0
        while first < group.targets:
            if pieces and left < count:
                yield pieces
                pieces, left = [], rows
            end = min(group.targets, first + max(1, left // count))
            pieces.append((number, first, end))
            left, first = left - (end - first) * count, end
    if pieces:
        yield pieces
