"""What is known of an average over documents if each document lists its likeliest tokens only.

    L(y) = sum over d that list y of  lambda_d p_d(y)
    U(y) = L(y) + sum over d that do not of  lambda_d r_d,      r_d = min(p_d's k-th, 1 - sum of p_d's listed)

So L(y) <= p(y) <= U(y) for the average p of REPLUG, Eq. 2. A greedy token is certified if L of it is at least U of
every other token, those that no document lists included. Works on log-probabilities; knows nothing of models.

Letters of shapes: K documents, C tokens that a document lists, Y tokens that any document lists.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ralm.reading.ensemble import log_sum_exp
from ralm.records import NOT_LISTED, DoubleArray, FloatArray, IntArray, NextTokens


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Bounds of the natural log-probability of tokens under an average of K documents.

    `tokens_Y` (int64, ascending) are the tokens that any document lists; `log_probs_KY` (float64) are their
    log-probabilities behind each document, and `listed_KY` says where they are known. `rest_K` (float64) is the most
    that a token that a document does not list can have there, `log_weights_K` the weights of the documents.
    """

    tokens_Y: IntArray
    log_probs_KY: DoubleArray
    listed_KY: NDArray[np.bool_]
    rest_K: DoubleArray
    log_weights_K: DoubleArray

    @property
    def lower_Y(self) -> DoubleArray:
        """The least that each token can have (float64)."""
        return self._average(-np.inf)

    @property
    def upper_Y(self) -> DoubleArray:
        """The most that each token can have (float64)."""
        return self._average(self.rest_K[:, None])

    @property
    def unlisted(self) -> float:
        """The most that a token can have that no document lists."""
        return float(log_sum_exp(self.rest_K + self.log_weights_K))

    @property
    def best(self) -> int:
        """The place of the token with the highest lower bound; of equal ones the first."""
        return int(self.lower_Y.argmax())

    @property
    def certified(self) -> bool:
        """Whether that token is the likeliest of the vocabulary, whatever the documents do not tell."""
        others = np.delete(self.upper_Y, self.best)
        return bool(self.lower_Y[self.best] >= max(self.unlisted, others.max(initial=-np.inf)))

    @property
    def exact(self) -> bool:
        """Whether the log-probability of that token is known behind every document."""
        return bool(self.listed_KY[:, self.best].all())

    @property
    def contenders(self) -> IntArray:
        """The tokens (int64) that may be the likeliest: their upper bound reaches the highest lower bound."""
        return self.tokens_Y[self.upper_Y >= self.lower_Y[self.best]]

    def knowing(self, tokens_C: IntArray, log_probs_KC: FloatArray) -> "Bounds":
        """The bounds once the log-probabilities of some of the tokens are known behind every document."""
        places = np.searchsorted(self.tokens_Y, tokens_C)
        log_probs_KY, listed_KY = self.log_probs_KY.copy(), self.listed_KY.copy()
        log_probs_KY[:, places], listed_KY[:, places] = log_probs_KC, True
        return replace(self, log_probs_KY=log_probs_KY, listed_KY=listed_KY)

    def _average(self, not_listed: float | DoubleArray) -> DoubleArray:
        log_probs_KY = np.where(self.listed_KY, self.log_probs_KY, not_listed)
        return log_sum_exp(log_probs_KY + self.log_weights_K[:, None], axis=0)


def bounds_of(given: NextTokens, log_weights_K: DoubleArray) -> Bounds:
    """The bounds of the average of K predictions that list their likeliest tokens."""
    assert given.tokens_BC is not None
    tokens_Y = np.unique(given.tokens_BC)
    tokens_Y = tokens_Y[tokens_Y != NOT_LISTED]
    log_probs_KY = np.full((len(log_weights_K), len(tokens_Y)), -np.inf)
    listed_KY = np.zeros(log_probs_KY.shape, dtype=bool)
    for row, (tokens_C, log_probs_C) in enumerate(zip(given.tokens_BC, given.log_probs_BC, strict=True)):
        there_C = tokens_C != NOT_LISTED
        places = np.searchsorted(tokens_Y, tokens_C[there_C])
        log_probs_KY[row, places] = log_probs_C[there_C]
        listed_KY[row, places] = True
    return Bounds(tokens_Y, log_probs_KY, listed_KY, given.tail_bound_B.astype(np.float64), log_weights_K)
