"""Tests whether a mean gain is above or below 0 at several looks, at a level that holds over all looks.

The level is spent in proportion to the units seen, alpha(t) = alpha t, one of the spending functions of Lan and DeMets
(Biometrika 70, 1983). The bounds follow from the joint normal distribution of the means at the looks (Armitage,
McPherson and Rowe, 1969); Student's t takes the place of the normal at each look (Jennison and Turnbull, 2000, section
3.8). Means and bounds give repeated confidence intervals (Jennison and Turnbull, 1989): all of them hold together. For
skewed gains each end moves outwards to where Hall's transformation has it (Journal of the Royal Statistical Society B
54, 1992): t alone takes a mean of 0 for another one in 9% of exponential samples, the wider of both in 5%.

Letters of shapes: U units, K looks, G points of a grid.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Final

import numpy as np

from ralm.records import DoubleArray, IntArray

_LEVEL: Final = 0.05
"""The probability that a mean of 0 is ever taken for another one."""
FIRST_LOOK: Final = 16
"""Units of the first look: with fewer, the normal approximation is poor."""
_POWER: Final = 0.8
_GRID: Final = 801
_ANGLES: Final = 100_001
_HALVINGS: Final = 50
_SYMMETRIC: Final = 1e-9
_NORMAL: Final = NormalDist()
_below: Final = np.vectorize(_NORMAL.cdf, otypes=[float])


def looks(most: int) -> list[int]:
    """Return the numbers of units after which one looks: doubling from the first look to `most`."""
    found, units = [], FIRST_LOOK
    while units < most:
        found.append(units)
        units *= 2
    return [*found, most]


def spending_bounds(units_K: Sequence[int], most: int, *, last: bool = False) -> list[float]:
    """Return the bound of the standardised mean at each look; the `last` one spends what is left of the level."""
    spent_K = [_LEVEL * units / most for units in units_K]
    if last:
        spent_K[-1] = _LEVEL
    bounds: list[float] = []
    grid_G, density_G = np.zeros(1), np.ones(1)
    before, spent = 0, 0.0
    for units, total in zip(units_K, spent_K, strict=True):
        spread = math.sqrt(units - before)
        low, high = 0.0, 12 * math.sqrt(units)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            outside_G = 1 - (_below((middle - grid_G) / spread) - _below((-middle - grid_G) / spread))
            low, high = (middle, high) if float(density_G @ outside_G) > total - spent else (low, middle)
        bounds.append(high / math.sqrt(units))
        edges = np.linspace(-high, high, _GRID + 1)
        after_G = (edges[:-1] + edges[1:]) / 2
        steps_GG = (after_G[:, None] - grid_G[None, :]) / spread
        density_G = (np.exp(-(steps_GG**2) / 2) @ density_G) / spread / math.sqrt(2 * math.pi) * (edges[1] - edges[0])
        grid_G, before, spent = after_G, units, total
    return bounds


@cache
def student_bound(bound: float, freedom: int) -> float:
    """The bound of Student's t that is passed as often as a bound of the standard normal, on either side."""
    angles = np.linspace(0, math.pi / 2, _ANGLES)  # t = sqrt(freedom) tan(angle)
    density = np.cos(angles) ** (freedom - 1)
    above = np.concatenate([[0], np.cumsum((density[1:] + density[:-1])[::-1] / 2)])[::-1]
    place = np.interp(-math.erfc(bound / math.sqrt(2)), -above / above[0], angles)
    return math.sqrt(freedom) * math.tan(float(place))


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialGain:
    """A mean gain per token with its interval; `spread` is the standard deviation of one unit's part in it."""

    gain: float
    low: float
    high: float
    units: int
    spread: float

    def needed(self, most: int) -> int | None:
        """Units that would show a gain of this size with a probability of 80%; None if it is 0."""
        if not self.gain:
            return None
        bound = spending_bounds(looks(most), most)[-1] if most > FIRST_LOOK else _NORMAL.inv_cdf(1 - _LEVEL / 2)
        return math.ceil(((bound + _NORMAL.inv_cdf(_POWER)) * self.spread / self.gain) ** 2)


def sequential_gain(sums_U: DoubleArray, counts_U: IntArray | DoubleArray, bound: float) -> SequentialGain:
    """The sum of gains over the count of tokens of at least two units, with the interval for a normal bound."""
    units = len(sums_U)
    gain = float(sums_U.sum() / counts_U.sum())
    parts_U = (sums_U - gain * counts_U) / counts_U.mean()
    spread = float(parts_U.std(ddof=1))
    skewness = float(((parts_U - parts_U.mean()) ** 3).mean()) / spread**3 if spread else 0.0
    ends = skewed_bounds(student_bound(bound, units - 1), units, skewness)
    low, high = (gain - end * spread / math.sqrt(units) for end in ends)
    return SequentialGain(gain=gain, low=low, high=high, units=units, spread=spread)


def skewed_bounds(bound: float, units: int, skewness: float) -> tuple[float, float]:
    """Return the standard errors from a mean to its ends: of Student's t, or of Hall's transformation if further."""
    slope = skewness / (3 * math.sqrt(units))
    if abs(slope) < _SYMMETRIC:
        return bound, -bound
    low, high = ((math.cbrt(1 + 3 * slope * (end - slope / 2)) - 1) / slope for end in (bound, -bound))
    return max(bound, low), min(-bound, high)
