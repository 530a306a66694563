"""The next token of a text: the options of generation, and the draw from the mixture of predictions (REPLUG, Eq. 2).

A model may predict its whole vocabulary, or list its top tokens only. In the second case the probability of a token in
the average over K documents has bounds, and a greedy token is drawn by them:

    L(y) = sum over d that list y of  lambda_d p_d(y)
    U(y) = L(y) + sum over d that do not of  lambda_d r_d,      r_d = min(p_d's k-th, 1 - sum of p_d's listed)

So L(y) <= p(y) <= U(y). It is certified if its L is at least the U of every other token, those that no document lists
included. Letters of shapes: K prompt prefixes, V vocabulary, C tokens that one lists, Y tokens that any of them lists.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from ralm.errors import UsageError
from ralm.options import Option, check_options, seed_option
from ralm.protocols import Continuations
from ralm.reading.mixture import mix
from ralm.reading.plan import BosOption, PlanOptions, QueryTokens, Stride
from ralm.reading.readers import MIN_TEMPERATURE
from ralm.records import NOT_LISTED, DoubleArray, Draw, Drawn, FloatArray, IntArray, NextTokens

_PLAN: Final = PlanOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is drawn from a distribution; `temperature` 0 is greedy, and `top_logprobs` changes no draw."""

    temperature: Annotated[float, Option("Temperature of the draws; 0 is greedy.", maximum=1 / MIN_TEMPERATURE)] = 0.0
    top_k: Annotated[int | None, Option("Draw from this many of the most likely tokens.", default_text="all")] = None
    top_p: Annotated[
        float,
        Option(
            "Draw from the most likely tokens that together have this probability.",
            minimum=0,
            maximum=1,
            above=True,
        ),
    ] = 1.0
    seed: Annotated[int, seed_option()] = 0
    top_logprobs: Annotated[int, Option("How many top tokens are recorded with each token.", minimum=0, flag="")] = 0

    def __post_init__(self) -> None:
        check_options(self)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise UsageError(
                f"`temperature` must be 0 (greedy) or at least {MIN_TEMPERATURE:g}, not {self.temperature}."
            )

    def draw(self, rows: Sequence[int], log_weights_K: DoubleArray, generator: np.random.Generator) -> Draw:
        """Return how the next token is drawn from the average of some texts; the generator gives the random number."""
        return Draw(
            rows=rows,
            log_weights_K=log_weights_K,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            top_logprobs=self.top_logprobs,
            number=generator.random() if self.temperature > 0 else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions(Sampling):
    """How to continue a text; lengths in tokens, retrieval options with the paper's values as defaults.

    Special tokens (`bos`) count towards `document_tokens`, and a prompt that already begins with them has them once.
    Every prompt has its own random generator, seeded with `seed`, so its text does not depend on other prompts.
    """

    new_tokens: Annotated[int, Option("Maximum number of tokens to write.")] = 64
    stride: Stride = _PLAN.stride
    query_tokens: QueryTokens = _PLAN.query_tokens
    document_tokens: Annotated[int, Option("Maximum number of tokens of a passage; longer ones are cut.")] = (
        _PLAN.document_tokens
    )
    max_length: Annotated[
        int | None,
        Option("Maximum number of tokens that the model reads at once, passage included.", default_text="the model's"),
    ] = None
    stop: Annotated[tuple[str, ...], Option("Stop before this string; repeatable.")] = ()
    bos: BosOption = _PLAN.bos

    @classmethod
    def of(cls, plan: PlanOptions, **more: Any) -> Self:
        """Return the options with the lengths of a plan, and `more` of generation."""
        lengths = ("stride", "query_tokens", "document_tokens", "max_length", "bos")
        return cls(**{**{name: getattr(plan, name) for name in lengths}, **more})


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Bounds of the log-probability of the listed tokens (ascending); `rest_K` bounds that of tokens not listed."""

    tokens_Y: IntArray
    log_probs_KY: DoubleArray
    listed_KY: NDArray[np.bool_]
    rest_K: DoubleArray
    log_weights_K: DoubleArray

    @property
    def lower_Y(self) -> DoubleArray:
        """The lower bound of each token (float64)."""
        return self._average(-np.inf)

    @property
    def upper_Y(self) -> DoubleArray:
        """The upper bound of each token (float64)."""
        return self._average(self.rest_K[:, None])

    @property
    def tail_bound(self) -> float:
        """The upper bound of a token that no document lists."""
        return float(mix(self.rest_K[:, None], self.log_weights_K)[0])

    @property
    def best(self) -> int:
        """The index in `tokens_Y` of the token with the highest lower bound; the first on a tie."""
        return int(self.lower_Y.argmax())

    @property
    def certified(self) -> bool:
        """Whether that token is certainly the most likely one of the vocabulary."""
        rivals_Y = np.delete(self.upper_Y, self.best)
        return bool(self.lower_Y[self.best] >= max(self.tail_bound, rivals_Y.max(initial=-np.inf)))

    @property
    def exact(self) -> bool:
        """Whether the log-probability of that token is known after every document."""
        return bool(self.listed_KY[:, self.best].all())

    @property
    def contenders(self) -> IntArray:
        """The tokens (int64) that may be the most likely: their upper bound reaches the highest lower bound."""
        return self.tokens_Y[self.upper_Y >= self.lower_Y[self.best]]

    def knowing(self, tokens_C: IntArray, log_probs_KC: FloatArray) -> "Bounds":
        """Return the bounds once the log-probabilities of some of the tokens are known after every document."""
        places = np.searchsorted(self.tokens_Y, tokens_C)
        log_probs_KY, listed_KY = self.log_probs_KY.copy(), self.listed_KY.copy()
        log_probs_KY[:, places], listed_KY[:, places] = log_probs_KC, True
        return replace(self, log_probs_KY=log_probs_KY, listed_KY=listed_KY)

    def _average(self, not_listed: float | DoubleArray) -> DoubleArray:
        return mix(np.where(self.listed_KY, self.log_probs_KY, not_listed), self.log_weights_K)


def draw_tokens(
    continuations: Continuations, texts: Sequence[IntArray], draws: Sequence[Draw], *, chosen: bool = False
) -> list[Drawn]:
    """Draw a token for each average, with `chosen` after asking for log-probabilities that are not listed."""
    on_device = getattr(continuations, "draw", None)  # of a local model: `ralm.lm.local.draw`
    if on_device is not None:
        drawn: list[Drawn] = on_device(texts, draws)
        return drawn
    listing: Any = continuations
    predictions = listing.next_tokens(texts)
    return [
        draw_token(
            predictions.of(draw.rows),
            draw,
            partial(listing.chosen, [texts[row] for row in draw.rows]) if chosen else None,
        )
        for draw in draws
    ]


def draw_token(predictions: NextTokens, draw: Draw, chosen: Callable[[IntArray], NextTokens] | None = None) -> Drawn:
    """Draw the next token from the mixture of K predictions (REPLUG, Eq. 2); `chosen` gives those not listed."""
    if predictions.tokens_BC is None:
        if draw.distribution is None:
            log_probs_V = mix(predictions.log_probs_BC, draw.log_weights_K).astype(np.float32)
        else:
            log_probs_V = draw.distribution(predictions.log_probs_BC)
        token = sample(log_probs_V, draw)
        top = top_tokens(log_probs_V, draw.top_logprobs)
        return Drawn(token, float(log_probs_V[token]), predictions.log_probs_BC[:, token], top)
    if len(predictions.log_probs_BC) == 1:
        return _draw_from_listed(predictions.log_probs_BC[0], predictions.tokens_BC[0], draw)
    if draw.temperature > 0:
        raise UsageError(
            f"the model lists only its {predictions.tokens_BC.shape[1]} top next tokens, so that nothing can be drawn "
            f"from the average over {len(predictions.tokens_BC)} passages: set `temperature` to 0, or read one passage."
        )
    return _greedy(bounds_of(predictions, draw.log_weights_K), chosen, draw.top_logprobs)


def _draw_from_listed(log_probs_C: FloatArray, tokens_C: IntArray, draw: Draw) -> Drawn:
    count = int((tokens_C != NOT_LISTED).sum())
    if draw.temperature > 0 and (draw.top_k or count + 1) > count:
        raise UsageError(
            f"the model lists only its {count} top next tokens: set `top_k` to {count} or less, or `temperature` to 0."
        )
    order = np.argsort(np.where(tokens_C == NOT_LISTED, np.iinfo(np.int64).max, tokens_C))[:count]
    place = int(order[sample(log_probs_C[order], draw)])
    top = top_tokens(log_probs_C[order], draw.top_logprobs, tokens_C[order])
    return Drawn(int(tokens_C[place]), float(log_probs_C[place]), log_probs_C[[place]], top)


def _greedy(bounds: Bounds, chosen: Callable[[IntArray], NextTokens] | None, top_logprobs: int) -> Drawn:
    """Return the token with the highest lower bound, after a request for all that may be more likely."""
    if chosen is not None and not (bounds.certified and bounds.exact):
        contenders = bounds.contenders[bounds.contenders >= 0]  # the end of a text may have no id
        bounds = bounds.knowing(contenders, chosen(contenders).log_probs_BC)
    best = bounds.best
    return Drawn(
        token=int(bounds.tokens_Y[best]),
        log_prob=float(bounds.lower_Y[best]),
        log_probs_K=bounds.log_probs_KY[:, best].astype(np.float32),
        bound_width=0.0 if bounds.exact else float(bounds.upper_Y[best] - bounds.lower_Y[best]),
        certified=bounds.certified,
        top_logprobs=top_tokens(bounds.lower_Y, top_logprobs, bounds.tokens_Y),
    )


def bounds_of(predictions: NextTokens, log_weights_K: DoubleArray) -> Bounds:
    """Return the bounds of the average of K predictions that list their top tokens."""
    assert predictions.tokens_BC is not None
    tokens_Y = np.unique(predictions.tokens_BC)
    tokens_Y = tokens_Y[tokens_Y != NOT_LISTED]
    log_probs_KY = np.full((len(log_weights_K), len(tokens_Y)), -np.inf)
    listed_KY = np.zeros(log_probs_KY.shape, dtype=bool)
    for row, (tokens_C, log_probs_C) in enumerate(zip(predictions.tokens_BC, predictions.log_probs_BC, strict=True)):
        there_C = tokens_C != NOT_LISTED
        places = np.searchsorted(tokens_Y, tokens_C[there_C])
        log_probs_KY[row, places] = log_probs_C[there_C]
        listed_KY[row, places] = True
    return Bounds(tokens_Y, log_probs_KY, listed_KY, predictions.tail_bound_B.astype(np.float64), log_weights_K)


def sample(log_probs_V: FloatArray, draw: Draw) -> int:
    """Draw a token id; at temperature 0 the most likely one, the first on a tie."""
    if draw.temperature == 0:
        return int(np.argmax(log_probs_V))
    scaled_V = log_probs_V.astype(np.float64) / draw.temperature
    weights_V = np.exp(scaled_V - scaled_V.max())
    tokens = np.arange(len(weights_V))
    if draw.top_k is not None and draw.top_k < len(weights_V):
        tokens = np.sort(_largest(weights_V, draw.top_k))
    if draw.top_p < 1:
        tokens = _nucleus(weights_V, tokens, draw.top_p)
    cumulated = np.cumsum(weights_V[tokens])
    # in the order of ids, so that a change in the last digits of the weights does not change the drawn token
    place = np.searchsorted(cumulated, draw.number * cumulated[-1], side="right")
    return int(tokens[min(place, len(tokens) - 1)])


def _nucleus(weights_V: DoubleArray, tokens: IntArray, top_p: float) -> IntArray:
    """Return the smallest set of largest weights among `tokens` whose sum reaches `top_p` of the total."""
    weights = weights_V[tokens]
    enough = top_p * weights.sum()
    # weights below (1 - top_p) of the mean sum to less than the part that is left out, so they are not sorted
    candidates = tokens[weights >= (1 - top_p) * weights.mean()]
    ordered = candidates[np.argsort(-weights_V[candidates], kind="stable")]
    return np.sort(ordered[: int(np.searchsorted(np.cumsum(weights_V[ordered]), enough)) + 1])


def top_tokens(
    log_probs_C: FloatArray | DoubleArray, count: int, tokens_C: IntArray | None = None
) -> tuple[tuple[int, float], ...]:
    """Return the ids and log-probabilities of the top tokens, best first; the ids `tokens_C` are in ascending order."""
    if count == 0:
        return ()
    best = _largest(log_probs_C, count)
    ids = best if tokens_C is None else tokens_C[best]
    return tuple(zip(ids.tolist(), log_probs_C[best].tolist(), strict=True))


def _largest(values_C: FloatArray | DoubleArray, count: int) -> IntArray:
    """Return the places of the largest values, largest first, equal ones in their order."""
    lowest = np.partition(values_C, -count)[-count] if count < len(values_C) else -np.inf
    places = np.flatnonzero(values_C >= lowest)
    return places[np.argsort(-values_C[places], kind="stable")][:count]
