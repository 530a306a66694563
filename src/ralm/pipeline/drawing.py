"""One token from the average of the predictions after several fronts.

    p(y | x) = sum over fronts d of  weight_d  p(y | [d; x])             (REPLUG, Eq. 2)

A model may predict its whole vocabulary, or list its likeliest tokens only. Then a greedy token of an average is drawn
by bounds (`ralm.reading.bounds`). Shapes: K fronts, V vocabulary, C tokens that are listed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ralm.errors import UsageError
from ralm.pipeline.options import Sampling
from ralm.reading.bounds import Bounds, bounds_of
from ralm.reading.ensemble import mixture, posterior
from ralm.reading.sampling import sample
from ralm.records import NOT_LISTED, DoubleArray, FloatArray, IntArray, NextTokens

_ALONE: Final[FloatArray] = np.ones(1, dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class DrawnToken:
    """A token, and what a `GeneratedToken` says of it."""

    token: int
    log_prob: float
    posteriors_K: FloatArray
    unlisted: float = 0.0
    certified: bool = True
    likeliest: tuple[tuple[int, float], ...] = ()


def draw_token(
    given: NextTokens,
    log_weights_K: DoubleArray,
    generator: np.random.Generator,
    sampling: Sampling,
    chosen: Callable[[IntArray], NextTokens] | None = None,
) -> DrawnToken:
    """The next token, drawn from the average of K predictions. `chosen` asks for the tokens of these ids in addition;
    it gives NaN where a log-probability cannot be had.

    Raises UsageError if a draw needs more than the tokens that are listed.
    """
    if given.tokens_BC is None:
        return _of_all(given.log_probs_BC, log_weights_K, generator, sampling)
    if len(log_weights_K) == 1:
        return _of_one(given.log_probs_BC[0], given.tokens_BC[0], generator, sampling)
    if sampling.temperature > 0:
        raise UsageError(
            f"the model lists only its {given.tokens_BC.shape[1]} likeliest next tokens, so that nothing can be drawn "
            f"from the average over {len(log_weights_K)} passages: set `temperature` to 0, or read one passage."
        )
    return _greedy(bounds_of(given, log_weights_K), chosen, sampling.likeliest)


def _of_all(
    log_probs_KV: FloatArray, log_weights_K: DoubleArray, generator: np.random.Generator, sampling: Sampling
) -> DrawnToken:
    log_probs_V = mixture(log_probs_KV, log_weights_K)
    token = _sampled(log_probs_V, generator, sampling)
    return DrawnToken(
        token,
        float(log_probs_V[token]),
        posterior(log_probs_KV[:, [token]], log_weights_K)[0],
        likeliest=likeliest(log_probs_V, sampling.likeliest),
    )


def _of_one(
    log_probs_C: FloatArray, tokens_C: IntArray, generator: np.random.Generator, sampling: Sampling
) -> DrawnToken:
    """A token of the only prediction, of those that are listed."""
    count = int((tokens_C != NOT_LISTED).sum())
    if sampling.temperature > 0 and (sampling.top_k or count + 1) > count:
        raise UsageError(
            f"the model lists only its {count} likeliest next tokens: set `top_k` to {count} or less, or `temperature` "
            "to 0."
        )
    order = np.argsort(np.where(tokens_C == NOT_LISTED, np.iinfo(np.int64).max, tokens_C))[:count]
    place = int(order[_sampled(log_probs_C[order], generator, sampling)])
    listed = likeliest(log_probs_C[order], sampling.likeliest, tokens_C[order])
    return DrawnToken(int(tokens_C[place]), float(log_probs_C[place]), _ALONE, likeliest=listed)


def _greedy(bounds: Bounds, chosen: Callable[[IntArray], NextTokens] | None, most: int) -> DrawnToken:
    """The token with the highest lower bound; with `chosen`, all that may be likelier are asked for first."""
    if chosen is not None and not (bounds.certified and bounds.exact):
        contenders = bounds.contenders[bounds.contenders >= 0]  # the end of a text may have no id
        log_probs_KC = chosen(contenders).log_probs_BC
        told_C = ~np.isnan(log_probs_KC).any(axis=0)
        bounds = bounds.knowing(contenders[told_C], log_probs_KC[:, told_C])
    best = bounds.best
    shares_K = posterior(bounds.log_probs_KY[:, [best]].astype(np.float32), bounds.log_weights_K)[0]
    return DrawnToken(
        token=int(bounds.tokens_Y[best]),
        log_prob=float(bounds.lower_Y[best]),
        posteriors_K=shares_K,
        unlisted=0.0 if bounds.exact else float(bounds.upper_Y[best] - bounds.lower_Y[best]),
        certified=bounds.certified,
        likeliest=likeliest(bounds.lower_Y, most, bounds.tokens_Y),
    )


def likeliest(
    log_probs_C: FloatArray | DoubleArray, most: int, tokens_C: IntArray | None = None
) -> tuple[tuple[int, float], ...]:
    """The ids and log-probabilities of at most `most` likeliest tokens, best first, of equal ones the lowest id first.

    `tokens_C` (int64) are the ids, in ascending order; None means all of a vocabulary.
    """
    if most == 0:
        return ()
    least = np.partition(log_probs_C, -most)[-most] if most < len(log_probs_C) else -np.inf
    places = np.flatnonzero(log_probs_C >= least)
    best = places[np.argsort(-log_probs_C[places], kind="stable")][:most]
    ids = best if tokens_C is None else tokens_C[best]
    return tuple(zip(ids.tolist(), log_probs_C[best].tolist(), strict=True))


def _sampled(log_probs: FloatArray, generator: np.random.Generator, sampling: Sampling) -> int:
    return sample(log_probs, generator, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
