"""The bootstrap: how much a mean would vary if other documents had been drawn."""

from typing import Final

import numpy as np

from ralm.records import DoubleArray, FloatArray, IntArray

DRAWS: Final = 10_000
TARGETS_PER_DOCUMENT: Final = 512
"""Consecutive targets that count as a document if the beginnings of documents are not known."""
MIN_DOCUMENTS: Final = 10
"""Fewer documents give no interval of a gain."""
_LEVEL: Final = 0.95
_AT_ONCE: Final = 1_000


def sums_of_units(values_TR: FloatArray | DoubleArray, unit_T: IntArray) -> DoubleArray:
    """The sum of the values (T x R) in each unit (float64, U x R); `unit_T` is the number of each value's unit."""
    sums_UR = np.zeros((int(unit_T.max()) + 1, values_TR.shape[1]))
    np.add.at(sums_UR, unit_T, values_TR)
    return sums_UR


def bootstrap_means(
    sums_UR: DoubleArray, counts_U: IntArray | DoubleArray, *, draws: int = DRAWS, seed: int = 0
) -> DoubleArray:
    """Return means (float64, draws x R) over units drawn with replacement, from sums and counts of values by unit. All
    columns share the drawn units, so that their differences are paired."""
    units = len(counts_U)
    random = np.random.default_rng(seed)
    # how often a unit is drawn does not depend on which of several equal ones it is
    rows_UC: DoubleArray = np.column_stack([sums_UR, counts_U]).astype(np.float64)
    _, firsts_D, times_D = np.unique(rows_UC, axis=0, return_index=True, return_counts=True)
    order_D = np.argsort(firsts_D)
    rows_DC, times_D = rows_UC[firsts_D[order_D]], times_D[order_D]
    sums_DR, counts_D = rows_DC[:, :-1], rows_DC[:, -1]
    means = np.empty((draws, sums_UR.shape[1]))
    for begin in range(0, draws, _AT_ONCE):
        size = min(_AT_ONCE, draws - begin)
        drawn = random.multinomial(units, times_D / units, size=size).astype(np.float64)
        means[begin : begin + size] = (drawn @ sums_DR) / (drawn @ counts_D)[:, None]
    return means


def interval(values: DoubleArray) -> tuple[float, float]:
    """Return the values between which 95% of the drawn ones lie (percentile bootstrap)."""
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def gain_interval(log_probs_T: FloatArray, base_T: FloatArray, counted: int) -> tuple[float, float] | None:
    """Return the 95% interval of 1 - exp(nll / counted) / exp(nll of the base / counted), paired over documents of 512
    consecutive targets; None if there are fewer than `MIN_DOCUMENTS`."""
    document_T = np.arange(len(log_probs_T)) // TARGETS_PER_DOCUMENT
    if len(log_probs_T) == 0 or document_T[-1] + 1 < MIN_DOCUMENTS:
        return None
    change_T1 = (base_T.astype(np.float64) - log_probs_T)[:, None]
    drawn_D = bootstrap_means(sums_of_units(change_T1, document_T), np.bincount(document_T))[:, 0]
    return interval(-np.expm1(drawn_D * len(log_probs_T) / counted))
