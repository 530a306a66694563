"""Bounds of an average over documents (the mixture of REPLUG, Eq. 2), if each prediction lists only its top tokens.

    L(y) = sum over d that list y of  lambda_d p_d(y)
    U(y) = L(y) + sum over d that do not of  lambda_d r_d,      r_d = min(p_d's k-th, 1 - sum of p_d's listed)

So L(y) <= p(y) <= U(y). A greedy token is certified if its L is at least the U of every other token, those that no
document lists included. Letters of shapes: K documents, C tokens that a document lists, Y tokens that any of them
lists.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ralm.reading.mixture import mix
from ralm.records import NOT_LISTED, DoubleArray, FloatArray, IntArray, NextTokens


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
