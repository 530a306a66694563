"""The scoring engine: requests in, log-probabilities of their targets out, with only the work that is needed.

- Logits are computed at target positions alone.
- Requests whose tokens are a prefix of another's, or equal, are read off one forward pass. In blocked windows these are
  all strides of a block that read the same document.
- Sequences are batched by length and padded on the right: with a causal model nothing to the left can change, whatever
  the family does with positions.

Works on token ids and one transformers model; knows nothing of text, plans or passages.
Shapes: B sequences of a batch, N tokens, P positions whose next token is a target, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from transformers import PreTrainedModel

from ralm.progress import progress_bar
from ralm.records import FloatArray, IntArray, Request

REQUESTS_AT_ONCE: Final = 4096
"""Requests among which prefixes are looked for; their tokens are copied, so not those of a whole plan at once."""
TOKENS_A_BATCH: Final = {"cpu": 1, "cuda": 65_536}
"""Tokens of a batch, padding included. On a CPU a sequence at a time: batching adds nothing but padding there."""
LOGITS_AT_ONCE: Final = 1 << 26
"""Logits that are held in memory at once (256 MiB in float32)."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Tokens that are read once, and the requests that are read off them."""

    tokens: IntArray
    requests: list[tuple[int, int, int]] = field(default_factory=list)
    """For each request its number, and where in `tokens` its targets begin and end."""

    @property
    def positions(self) -> IntArray:
        """The positions (int64, ascending) whose next token is a target of some request."""
        return np.unique(np.concatenate([np.arange(begin - 1, end - 1) for _, begin, end in self.requests]))


def score(model: PreTrainedModel, requests: Sequence[Request]) -> list[FloatArray]:
    """For each request the natural log-probability (float32) of each of its targets, in order."""
    scored: list[FloatArray] = [np.empty(len(request.targets), dtype=np.float32) for request in requests]
    tokens = TOKENS_A_BATCH.get(model.device.type, TOKENS_A_BATCH["cpu"])
    positions = LOGITS_AT_ONCE // model.get_output_embeddings().weight.shape[0]
    with progress_bar("Scoring", total=len(requests)) as advance:
        for first in range(0, len(requests), REQUESTS_AT_ONCE):
            sequences = _merge_prefixes(requests[first : first + REQUESTS_AT_ONCE])
            for batch in _batches(sequences, tokens, positions):
                for number, log_probs in _score_batch(model, batch):
                    scored[first + number] = log_probs
                    advance()
    return scored


def _merge_prefixes(requests: Sequence[Request]) -> list[_Sequence]:
    """The distinct token sequences of the requests, without those that are a prefix of another.

    In lexicographic order a sequence stands before all that begin with it, and nothing else stands between them: so
    each need be compared with its successor alone, from the last to the first.
    """
    texts = [np.concatenate([request.document, request.context, request.targets]) for request in requests]
    keys = [tokens.astype(">u4").tobytes() for tokens in texts]
    sequences: list[_Sequence] = []
    longest = b""
    for number in sorted(range(len(requests)), key=keys.__getitem__, reverse=True):
        if not longest.startswith(keys[number]) or not sequences:
            sequences.append(_Sequence(tokens=texts[number]))
            longest = keys[number]
        end = len(texts[number])
        sequences[-1].requests.append((number, end - len(requests[number].targets), end))
    return sequences


def _batches(sequences: list[_Sequence], tokens: int, positions: int) -> Iterator[list[_Sequence]]:
    """Sequences of like length together, the longest first, each batch within so many tokens and target positions."""
    batch: list[_Sequence] = []
    read = 0
    for sequence in sorted(sequences, key=lambda sequence: -len(sequence.tokens)):
        count = len(sequence.positions)
        if batch and ((len(batch) + 1) * len(batch[0].tokens) > tokens or read + count > positions):
            yield batch
            batch, read = [], 0
        batch.append(sequence)
        read += count
    if batch:
        yield batch


def _score_batch(model: PreTrainedModel, batch: list[_Sequence]) -> Iterator[tuple[int, FloatArray]]:
    """The request numbers of a batch with the log-probabilities (float32) of their targets."""
    log_probs_P = _next_token_log_probs(model, batch)
    offset = 0
    for sequence in batch:
        positions = sequence.positions
        for number, begin, end in sequence.requests:
            first = offset + int(np.searchsorted(positions, begin - 1))
            yield number, log_probs_P[first : first + end - begin]
        offset += len(positions)


@torch.inference_mode()
def _next_token_log_probs(model: PreTrainedModel, batch: list[_Sequence]) -> FloatArray:
    """The log-probability (float32) of the token after each position of each sequence, from one forward pass."""
    input_BN = torch.zeros((len(batch), max(len(sequence.tokens) for sequence in batch) - 1), dtype=torch.long)
    for ids_N, sequence in zip(input_BN, batch, strict=True):
        ids_N[: len(sequence.tokens) - 1] = torch.from_numpy(sequence.tokens[:-1])
    row_P = np.repeat(np.arange(len(batch)), [len(sequence.positions) for sequence in batch])
    position_P = np.concatenate([sequence.positions for sequence in batch])
    target_P = np.concatenate([sequence.tokens[sequence.positions + 1] for sequence in batch])
    with _head_reads_only(model, torch.from_numpy(row_P), torch.from_numpy(position_P)):
        logits_PV = model(input_ids=input_BN.to(model.device), use_cache=False).logits[0].float()
    targets_P1 = torch.from_numpy(target_P).to(logits_PV.device)[:, None]
    log_probs_P = logits_PV.gather(-1, targets_P1)[:, 0] - logits_PV.logsumexp(-1)
    return log_probs_P.cpu().numpy()


@contextmanager
def _head_reads_only(model: PreTrainedModel, row_P: torch.Tensor, position_P: torch.Tensor) -> Iterator[None]:
    """While this lasts, the model computes logits (1, P, V) at the given rows and positions instead of (B, N, V).

    The states are picked right before the output layer, so whatever a family does to its logits afterwards (scaling,
    capping) is done to these too.
    """

    def pick(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        states_BNH = inputs[0]
        return (states_BNH[row_P.to(states_BNH.device), position_P.to(states_BNH.device)][None],)

    hook = model.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        yield
    finally:
        hook.remove()
