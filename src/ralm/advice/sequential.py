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
from typing import Final

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, stdtrit

from ralm.records import DoubleArray, IntArray

_LEVEL: Final = 0.05
"""The probability that a mean of 0 is ever taken for another one."""
FIRST_LOOK: Final = 16
"""Units of the first look: with fewer, the normal approximation is poor."""
_POWER: Final = 0.8
_GRID: Final = 801
_SYMMETRIC: Final = 1e-9


def looks(most: int) -> list[int]:
    """Return the numbers of units after which one looks: doubling from the first look to `most`."""
    doubled = (FIRST_LOOK << times for times in range(most.bit_length()))
    return [*(units for units in doubled if units < most), most]


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
        edge = brentq(_passing, 0.0, 12 * math.sqrt(units), (grid_G, density_G, spread, total - spent), xtol=1e-12)
        bounds.append(edge / math.sqrt(units))
        edges = np.linspace(-edge, edge, _GRID + 1)
        after_G = (edges[:-1] + edges[1:]) / 2
        steps_GG = (after_G[:, None] - grid_G[None, :]) / spread
        density_G = (np.exp(-(steps_GG**2) / 2) @ density_G) / spread / math.sqrt(2 * math.pi) * (edges[1] - edges[0])
        grid_G, before, spent = after_G, units, total
    return bounds


def _passing(edge: float, grid_G: DoubleArray, density_G: DoubleArray, spread: float, level: float) -> float:
    """The probability, above a level, that a sum from a grid passes an edge on either side after a step."""
    return float(density_G @ (ndtr((grid_G - edge) / spread) + ndtr((-edge - grid_G) / spread))) - level


def student_bound(bound: float, freedom: int) -> float:
    """Return the bound of Student's t that is passed as often as a bound of the standard normal, on either side."""
    return float(-stdtrit(freedom, ndtr(-bound)))


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
        bound = spending_bounds(looks(most), most)[-1] if most > FIRST_LOOK else -float(ndtri(_LEVEL / 2))
        return math.ceil(((bound + float(ndtri(_POWER))) * self.spread / self.gain) ** 2)


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
