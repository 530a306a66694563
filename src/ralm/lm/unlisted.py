"""How likely a next token can be that a model does not list among the likeliest.

r = min(the k-th likeliest, 1 - sum of those that are listed)
"""

from typing import Final

import numpy as np

from ralm.records import NOT_LISTED, DoubleArray, FloatArray, NextTokens

_ROUNDING: Final = 1e-6
"""What float32 log-probabilities may be wrong by in a sum of probabilities."""


def rest_of(given: NextTokens) -> FloatArray:
    """The most that the natural log-probability of a token that is not listed can be (float32, B)."""
    if given.rest_B is not None:
        return given.rest_B
    assert given.tokens_BC is not None
    listed_BC = given.tokens_BC != NOT_LISTED
    lowest_B = np.where(listed_BC, given.log_probs_BC, 0.0).min(axis=1)
    return np.minimum(lowest_B, log_rest(np.where(listed_BC, given.log_probs_BC, -np.inf))).astype(np.float32)


def log_rest(log_probs_BC: FloatArray) -> DoubleArray:
    """The natural logarithm (float64, B) of the probability that listed tokens leave to all others, rounded up."""
    left_B = 1 - np.exp(log_probs_BC.astype(np.float64)).sum(axis=1)
    return np.asarray(np.log(np.clip(left_B, 0, 1) + _ROUNDING))
