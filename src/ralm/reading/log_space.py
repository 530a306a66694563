"""Sums and weights of probabilities in log space, where the smallest ones do not become 0."""

import numpy as np

from ralm.records import DoubleArray


def log_sum_exp(values: DoubleArray, axis: int = -1) -> DoubleArray:
    """Return log(sum(exp)) over an axis; minus infinity if all values are."""
    highest = values.max(axis=axis)
    highest = np.where(np.isneginf(highest), 0.0, highest)  # -inf minus -inf would be NaN
    with np.errstate(divide="ignore"):
        return np.asarray(highest + np.log(np.exp(values - np.expand_dims(highest, axis)).sum(axis=axis)))


def log_softmax(values: DoubleArray) -> DoubleArray:
    """Return the logarithms of probabilities in proportion to exp(values) over the last axis."""
    return np.asarray(values - log_sum_exp(values)[..., None])
