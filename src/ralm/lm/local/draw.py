"""Draws the next tokens of many texts where the logits of a local model are; one small array is copied from there.

The twin in torch of `draw_token` in `ralm.reading.sampling`, whose results are the same up to rounding. Draws with the
same settings, which follow each other, are made together.

Shapes: B texts, G draws made together, K texts of each, V vocabulary, N top tokens, R rare tokens.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
import torch

from ralm.lm.local.engine import TargetLogits, to_device
from ralm.records import LOWEST, Draw, Drawn

_RARE: Final = 1e-30
"""Averages below this probability are taken in log space, where nothing underflows."""
_AT_ONCE: Final = {"cpu": 1 << 17, "cuda": 1 << 24}
"""Probabilities that are averaged at once: as many as the cache of a processor holds."""
_SORTED: Final = 1024
"""Tokens that are sorted at first to find those that together have probability `top_p`."""


def draw_from_logits(model: TargetLogits, logits_BV: torch.Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """Return what is drawn from the predictions of B texts; ModelError if they are NaN."""
    if not draws:
        return []
    if logits_BV.device.type == "mps":  # has no float64
        logits_BV = logits_BV.cpu()
    at_once = max(1, _AT_ONCE.get(logits_BV.device.type, _AT_ONCE["cpu"]) // logits_BV.shape[1])
    groups = [*_groups(draws, at_once)]
    parts = [_draw_group(model, logits_BV, group) for group in groups]
    values, begin, drawn = torch.cat([part.flatten() for part in parts]).cpu().numpy(), 0, list[Drawn]()
    for group, part in zip(groups, parts, strict=True):
        texts = len(group[0].rows)
        for row in values[begin : (begin := begin + part.numel())].reshape(part.shape):
            tokens_N, log_probs_N = np.split(row[2 + texts :], 2)
            top = tuple(zip(tokens_N.astype(np.int64).tolist(), log_probs_N.tolist(), strict=True))
            drawn.append(Drawn(int(row[0]), float(row[1]), row[2 : 2 + texts].astype(np.float32), top))
    return drawn


def _groups(draws: Sequence[Draw], at_once: int) -> Iterator[list[Draw]]:
    """Yield draws with the same settings that follow each other, at most so many."""
    for _, same in groupby(draws, _settings):
        group = [*same]
        yield from (group[first : first + at_once] for first in range(0, len(group), at_once))


def _settings(draw: Draw) -> tuple[Any, ...]:
    makes = draw.distribution is not None
    return len(draw.rows), draw.temperature, draw.top_k, draw.top_p, draw.top_logprobs, draw.alpha, makes


def _draw_group(model: TargetLogits, logits_BV: torch.Tensor, group: Sequence[Draw]) -> torch.Tensor:
    """Return (float64, G x (2 + K + 2 N)) each draw's token, its log-probabilities, the top tokens, and theirs."""
    first, rows = group[0], [row for draw in group for row in draw.rows]
    adjacent = rows == [*range(rows[0], rows[0] + len(rows))]
    logits = logits_BV[rows[0] : rows[0] + len(rows)] if adjacent else logits_BV[rows]
    logits_GKV = logits.reshape(len(group), len(first.rows), -1)
    if len(first.rows) == 1:
        log_probs_GV = logits_GKV[:, 0].log_softmax(-1, dtype=torch.float32)
        normaliser_GK = logits_GKV.amax(-1).double() - log_probs_GV.amax(-1, keepdim=True)
    else:
        log_weights_GK = _on(logits_BV.device, [draw.log_weights_K for draw in group])
        log_probs_GV, normaliser_GK = _average(logits_GKV, log_weights_GK)
    model.check_numbers(normaliser_GK)  # one NaN makes all probabilities of a text NaN
    if first.alpha is not None:
        plain_GV = (logits_GKV[:, -1].double() - normaliser_GK[:, -1:]).clamp_min(LOWEST)
        contrast_GV = (1 + first.alpha) * log_probs_GV.double() - first.alpha * plain_GV
        log_probs_GV = contrast_GV.log_softmax(-1).float()
    elif first.distribution is not None:
        log_probs_GKV = logits_GKV.log_softmax(-1, dtype=torch.float32).cpu().numpy()
        made = [draw.distribution(log_probs_GKV[place]) for place, draw in enumerate(group) if draw.distribution]
        log_probs_GV = to_device(torch.from_numpy(np.stack(made)), logits_BV.device)
    token_G1 = _sample(log_probs_GV, group)
    logits_GK1 = logits_GKV.gather(-1, token_G1[:, None].expand(-1, len(first.rows), -1))
    log_probs_GK = logits_GK1[..., 0].double() - normaliser_GK
    columns = [token_G1, log_probs_GV.gather(-1, token_G1), log_probs_GK, *_top(log_probs_GV, first.top_logprobs)]
    return torch.cat([column.double() for column in columns], dim=-1)


def _on(device: torch.device, values: Sequence[Any]) -> torch.Tensor:
    """Return numbers of the host on a device, as float64."""
    return to_device(torch.from_numpy(np.array(values, dtype=np.float64)), device)


def _average(logits_GKV: torch.Tensor, log_weights_GK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the averages (float32, G x V) of K predictions (REPLUG, Eq. 2), and the log of each normaliser (G x K)."""
    weights_GK, normalisers = log_weights_GK.exp().float(), list[torch.Tensor]()
    average_GV = torch.zeros_like(logits_GKV[:, 0], dtype=torch.float32)
    for place in range(logits_GKV.shape[1]):
        probs_GV = logits_GKV[:, place].softmax(-1, dtype=torch.float32)
        normalisers.append(logits_GKV[:, place].amax(-1).double() - probs_GV.amax(-1).double().log())
        average_GV += probs_GV.mul_(weights_GK[:, place, None])
    normaliser_GK = torch.stack(normalisers, dim=1)
    log_probs_GV = average_GV.log()
    draw_R, token_R = (average_GV < _RARE).nonzero(as_tuple=True)
    joint_RK = logits_GKV[draw_R, :, token_R].double() - normaliser_GK[draw_R] + log_weights_GK[draw_R]
    log_probs_GV[draw_R, token_R] = joint_RK.logsumexp(-1).float()
    return log_probs_GV, normaliser_GK


def _sample(log_probs_GV: torch.Tensor, group: Sequence[Draw]) -> torch.Tensor:
    """Return the token of each draw (int64, G x 1), as `sample` in `ralm.reading.sampling` draws it."""
    first, vocabulary = group[0], log_probs_GV.shape[1]
    if first.temperature == 0:
        return log_probs_GV.argmax(-1, keepdim=True)
    numbers_G1 = _on(log_probs_GV.device, [[draw.number] for draw in group])
    weights_GV = (log_probs_GV.double() - log_probs_GV.amax(-1, keepdim=True)).div_(first.temperature).exp_()
    top_k = min(first.top_k or vocabulary, vocabulary)
    if top_k == vocabulary and first.top_p == 1:
        return _drawn(weights_GV, numbers_G1)
    token_GN, weights_GN = _likely(log_probs_GV, weights_GV, top_k, first.top_p)
    token_GN, order_GN = token_GN.sort(-1)
    return token_GN.gather(-1, _drawn(weights_GN.gather(-1, order_GN), numbers_G1))


def _drawn(weights_GN: torch.Tensor, numbers_G1: torch.Tensor) -> torch.Tensor:
    """Return the places that random numbers from 0 to 1 select among weights."""
    cumulated_GN = weights_GN.cumsum(-1)
    return torch.searchsorted(cumulated_GN, numbers_G1 * cumulated_GN[:, -1:], right=True)


def _likely(
    log_probs_GV: torch.Tensor, weights_GV: torch.Tensor, top_k: int, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return likely tokens (G x N) and their weights, 0 outside the smallest set that has `top_p` of all weight."""
    vocabulary = log_probs_GV.shape[1]
    count = top_k if top_k < vocabulary else min(_SORTED, vocabulary)
    token_GN = _most_likely(log_probs_GV, count)
    weights_GN = weights_GV.gather(-1, token_GN)
    enough_G1 = top_p * (weights_GN if top_k < vocabulary else weights_GV).sum(-1, keepdim=True)
    while count < top_k and bool((weights_GN.sum(-1, keepdim=True) < enough_G1).any()):
        count = min(8 * count, vocabulary)
        token_GN = _most_likely(log_probs_GV, count)
        weights_GN = weights_GV.gather(-1, token_GN)
    if top_p < 1:
        before_GN = torch.nn.functional.pad(weights_GN.cumsum(-1)[:, :-1], (1, 0))
        weights_GN = weights_GN.where(before_GN < enough_G1, 0)
    return token_GN, weights_GN


def _most_likely(log_probs_GV: torch.Tensor, count: int) -> torch.Tensor:
    """Return the most likely tokens (int64, G x N), best first, equally likely ones in the order of ids."""
    below_GV = log_probs_GV.amax(-1, keepdim=True) - log_probs_GV
    # the bits of floats that are not negative are in their order; below them, the ids order equal ones
    ids_V = torch.arange(log_probs_GV.shape[1], device=log_probs_GV.device)
    keys_GV = (below_GV.view(torch.int32).long() << 32) | ids_V
    return keys_GV.topk(count, largest=False).values & 0xFFFFFFFF


def _top(log_probs_GV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids of the top tokens and their log-probabilities (G x N), best first."""
    if count == 0:
        return log_probs_GV[:, :0], log_probs_GV[:, :0]
    token_GN = _most_likely(log_probs_GV, min(count, log_probs_GV.shape[1]))
    return token_GN, log_probs_GV.gather(-1, token_GN)
