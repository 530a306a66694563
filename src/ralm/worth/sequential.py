"""Tests whether mean gains are above or below 0 at several looks, at a level that holds over all looks and claims.

The level is spent in proportion to the units seen (Lan and DeMets, Biometrika 70, 1983). Bounds follow from the joint
normal distribution of the means at the looks (Armitage, McPherson and Rowe, 1969), with Student's t in place of the
normal at each (Jennison and Turnbull, 2000, section 3.8), and all intervals hold together. For skewed gains each end
moves outwards to where Hall's transformation has it (Journal of the Royal Statistical Society B 54, 1992): t alone
takes a mean of 0 for another one in 9% of exponential samples, the wider of both in 5%.

A verdict can make three false claims: the gain without near duplicates is above 0, it is below 0, the gain with them is
above 0. Each has a third of the level (Bonferroni). If one gain was tested only after the other, each would have the
whole level; but near duplicates matter where the first gain is not shown, and may hide it by much in few documents.

Letters of shapes: U units, K looks, G points of a grid.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, stdtrit

from ralm.evaluation.intervals import LEVEL, MIN_UNITS, Estimate, Units
from ralm.records import DoubleArray

CLAIM: Final = LEVEL / 3
"""The probability of each of the three false claims."""
FIRST_LOOK: Final = 16
"""Units of the first look: with fewer, the normal approximation is poor."""
_GRID: Final = 801
_SYMMETRIC: Final = 1e-9
_ROUNDING: Final = 1e-9
"""Nats per token: gains that spread less are equal."""


def looks(most: int) -> list[int]:
    """Return the numbers of units after which one looks: doubling from the first look to `most`."""
    doubled = (FIRST_LOOK << times for times in range(most.bit_length()))
    return [*(units for units in doubled if units < most), most]


def spending_bounds(units_K: Sequence[int], most: int, *, last: bool = False, level: float = 2 * CLAIM) -> list[float]:
    """Return the two-sided bound of the standardised mean at each look; the `last` spends the rest of the level."""
    spent_K = [level * units / most for units in units_K]
    if last:
        spent_K[-1] = level
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
    """Return the probability, above a level, that a sum from a grid passes an edge on either side after a step."""
    return float(density_G @ (ndtr((grid_G - edge) / spread) + ndtr((-edge - grid_G) / spread))) - level


def student_bound(bound: float, freedom: int) -> float:
    """Return the bound of Student's t that is passed as often as a bound of the standard normal, on either side."""
    return float(-stdtrit(freedom, ndtr(-bound)))


def repeated_interval(units: Units, bound: float) -> Estimate:
    """Return the mean gain with its interval for a bound of the standardised mean."""
    count = len(units.counts_U)
    spread = float((units.deviations_U * count).std(ddof=1)) if count > 1 else 0.0
    if count < MIN_UNITS or spread < _ROUNDING:
        return Estimate(value=units.mean, units=count)
    skewness = float(((units.deviations_U * count) ** 3).mean()) / spread**3
    ends = skewed_bounds(student_bound(bound, count - 1), count, skewness)
    low, high = (units.mean - end * spread / math.sqrt(count) for end in ends)
    return Estimate(value=units.mean, units=count, low=low, high=high)


def skewed_bounds(bound: float, units: int, skewness: float) -> tuple[float, float]:
    """Return the standard errors from a mean to its ends: of Student's t, or of Hall's transformation if further."""
    slope = skewness / (3 * math.sqrt(units))
    if abs(slope) < _SYMMETRIC:
        return bound, -bound
    low, high = ((math.cbrt(1 + 3 * slope * (end - slope / 2)) - 1) / slope for end in (bound, -bound))
    return max(bound, low), min(-bound, high)
