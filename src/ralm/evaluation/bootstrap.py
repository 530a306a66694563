"""The bootstrap: how much a mean would vary if other documents had been drawn."""

from typing import Final

import numpy as np

from ralm.records import DoubleArray, FloatArray, IntArray

DRAWS: Final = 10_000
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
    """Means (float64, draws x R) of R columns over units drawn with replacement, as many as there are. A unit, such as
    a document, has the sum of its values in each column (U x R) and their count (U), or another sum for a ratio. All
    columns share the drawn units, so that their differences are paired. Equal arguments give equal draws."""
    units = len(counts_U)
    random = np.random.default_rng(seed)
    sums_DR, counts_D, times_D = _distinct(sums_UR, counts_U)
    means = np.empty((draws, sums_UR.shape[1]))
    for begin in range(0, draws, _AT_ONCE):
        size = min(_AT_ONCE, draws - begin)
        drawn = random.multinomial(units, times_D / units, size=size).astype(np.float64)
        means[begin : begin + size] = (drawn @ sums_DR) / (drawn @ counts_D)[:, None]
    return means


def _distinct(sums_UR: DoubleArray, counts_U: IntArray | DoubleArray) -> tuple[DoubleArray, DoubleArray, IntArray]:
    """The D distinct units in the order of their first, and how many of each there are: how often one of them is drawn
    does not depend on which it is. Where values are right or wrong, D is 2."""
    rows_UC: DoubleArray = np.column_stack([sums_UR, counts_U]).astype(np.float64)
    _, firsts_D, times_D = np.unique(rows_UC, axis=0, return_index=True, return_counts=True)
    order_D = np.argsort(firsts_D)
    rows_DC = rows_UC[firsts_D[order_D]]
    return rows_DC[:, :-1], rows_DC[:, -1], times_D[order_D]


def interval(values: DoubleArray) -> tuple[float, float]:
    """Return the values between which 95% of the drawn ones lie (percentile bootstrap)."""
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)
