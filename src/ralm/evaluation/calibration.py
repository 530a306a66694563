"""Calibration: whether a model is right as often as it is confident.

Letters of shapes: U choices that were made, C options of a choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBin:
    """The choices whose confidence is above `low` and at most `high`: their count, their mean confidence, and the share
    that is right; both 0 if there are none."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def calibration_bins(
    confidences_U: NDArray[np.float64], right_U: NDArray[np.bool_], bins: int = 10
) -> list[CalibrationBin]:
    """The choices by their confidence, a probability above 0, in `bins` bins of the same width."""
    edges = np.arange(bins + 1) / bins
    bin_U = np.clip(np.searchsorted(edges, confidences_U, side="left") - 1, 0, bins - 1)
    found = []
    for number in range(bins):
        in_it_U = bin_U == number
        count = int(in_it_U.sum())
        found.append(
            CalibrationBin(
                low=float(edges[number]),
                high=float(edges[number + 1]),
                count=count,
                confidence=float(confidences_U[in_it_U].mean()) if count else 0.0,
                accuracy=float(right_U[in_it_U].mean()) if count else 0.0,
            )
        )
    return found


def expected_calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """The distance of confidence and accuracy, averaged over all choices: sum of count / all x |accuracy -
    confidence|."""
    total = sum(one.count for one in bins)
    return sum(one.count * abs(one.accuracy - one.confidence) for one in bins) / total if total else 0.0


def brier_score(probabilities_C: NDArray[np.float64], right: int) -> float:
    """The squared distance of probabilities to those of the right answer: 0 at best, 2 at worst."""
    truth_C = np.zeros_like(probabilities_C)
    truth_C[right] = 1.0
    return float(((probabilities_C - truth_C) ** 2).sum())
