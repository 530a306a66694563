"""Options."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np

from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options, seed_option
from ralm.reading.bounds import Bounds, bounds_of
from ralm.reading.ensemble import COLDEST, mixture, posterior
from ralm.reading.plan import BosOption, QueryTokens, Stride
from ralm.records import NOT_LISTED, DoubleArray, FloatArray, IntArray, NextTokens

_DRAWN = Needs("a `temperature` above 0", lambda options: options.temperature > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is drawn from a distribution.

    `temperature` 0 is greedy; otherwise tokens are drawn from the `top_k` likeliest (None: all), and of these from the
    likeliest that together have probability `top_p`, by a random generator that `seed` decides. `likeliest` is how many
    of the likeliest tokens are recorded with each token that is drawn; it changes no draw.

    Raises UsageError if a value is out of range.
    """

    temperature: Annotated[float, Option("Temperature of the draws; 0 is greedy.", maximum=1 / COLDEST)] = 0.0
    top_k: Annotated[
        int | None, Option("Draw from this many of the likeliest tokens.", default_text="all", needs=_DRAWN)
    ] = None
    top_p: Annotated[
        float,
        Option(
            "Draw from the likeliest tokens that together have this probability.",
            minimum=0,
            maximum=1,
            above=True,
            needs=_DRAWN,
        ),
    ] = 1.0
    seed: Annotated[int, seed_option(_DRAWN)] = 0
    likeliest: Annotated[int, Option("How many likeliest tokens are recorded with each token.", minimum=0, flag="")] = 0

    def __post_init__(self) -> None:
        check_options(self)
        if 0 < self.temperature < COLDEST:
            raise UsageError(f"`temperature` must be 0 (greedy) or at least {COLDEST:g}, not {self.temperature}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions(Sampling):
    """How to continue a text; lengths in tokens, retrieval options with the paper's values as defaults.

    Tokens are drawn as `Sampling` says. Generation ends after `new_tokens` tokens, at the model's
    end-of-text token, or before the first of the `stop` strings. `max_length` None is the model's own. `bos` says which
    special tokens every reading begins with, with a document and without (see `beginning.Bos`). They count towards
    `document_tokens`, and a prompt that already begins with them has them once. Every prompt has its own random
    generator, seeded with `seed`, so its text does not depend on the other prompts.

    Raises UsageError if a value is out of range.
    """

    new_tokens: Annotated[int, Option("Most tokens to write.")] = 64
    stride: Stride = 4
    query_tokens: QueryTokens = 32
    document_tokens: Annotated[int, Option("Most tokens of a passage; longer ones are cut.")] = 256
    max_length: Annotated[
        int | None, Option("Most tokens that the model reads at once, passage included.", default_text="the model's")
    ] = None
    stop: Annotated[tuple[str, ...], Option("Stop before this string; repeatable.")] = ()
    bos: BosOption = "auto"

    def __post_init__(self) -> None:
        Sampling.__post_init__(self)
        if "" in self.stop:
            raise UsageError("`stop` must not be empty.")


def sample(
    log_probs_V: FloatArray,
    generator: np.random.Generator,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> int:
    """A token id: the likeliest at temperature 0 (the first of equals), else drawn by top-k and nucleus sampling.

    The nucleus is the smallest set of likeliest tokens whose probability reaches `top_p`, after temperature and
    relative to the `top_k` likeliest tokens.
    """
    if temperature == 0:
        return int(np.argmax(log_probs_V))
    scaled_V = log_probs_V.astype(np.float64) / temperature
    weights_V = np.exp(scaled_V - scaled_V.max())
    tokens = np.arange(len(weights_V)) if top_k is None else _likeliest(weights_V, top_k)
    if top_p < 1:
        tokens = _nucleus(weights_V, tokens, top_p)
    cumulated = np.cumsum(weights_V[tokens])
    # in the order of ids, so that a change in the last digits of the weights does not change the drawn token
    place = np.searchsorted(cumulated, generator.random() * cumulated[-1], side="right")
    return int(tokens[min(place, len(tokens) - 1)])


def _likeliest(weights_V: DoubleArray, count: int) -> IntArray:
    """The ids of the `count` largest weights."""
    if count >= len(weights_V):
        return np.arange(len(weights_V))
    return np.sort(np.argpartition(weights_V, -count)[-count:])


def _nucleus(weights_V: DoubleArray, tokens: IntArray, top_p: float) -> IntArray:
    """The smallest set of largest weights among `tokens` whose sum reaches `top_p` of the total.

    Weights below (1 - top_p) of the mean sum to less than the part that is left out, so they are not sorted.
    """
    weights = weights_V[tokens]
    enough = top_p * weights.sum()
    candidates = tokens[weights >= (1 - top_p) * weights.mean()]
    ordered = candidates[np.argsort(-weights_V[candidates], kind="stable")]
    return np.sort(ordered[: int(np.searchsorted(np.cumsum(weights_V[ordered]), enough)) + 1])


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
