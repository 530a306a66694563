"""Contrast with the prediction without passages: CAD (Shi et al., 2023, arXiv 2305.14739), for generation.

    softmax( (1 + a) log p - a log p_0 )

p is the average over the passages of a row (REPLUG, Eq. 2), with one passage its prediction as in the paper, and p_0
the prediction without passages. No token is cut, so that every text has a probability. V is the size of the vocabulary.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np

from ralm.options import Option, Part
from ralm.reading.mixture import log_softmax
from ralm.records import DoubleArray

_LOWEST: Final = -1e4
"""A log-probability for impossible tokens of p_0, whose logarithm would turn a sum into NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast(Part):
    """softmax((1 + `alpha`) log p - `alpha` log p_0): CAD (arXiv 2305.14739). Raises UsageError if `alpha` is out of
    range."""

    named: ClassVar = ("mixer", "contrast")

    alpha: Annotated[float, Option("Weight of what passages change.", maximum=100)] = 0.5

    def log_probs(self, average_V: DoubleArray, plain_V: DoubleArray) -> DoubleArray:
        """Return the contrasted log-probabilities (float64, V) of the next token."""
        contrasted_V = (1 + self.alpha) * average_V - self.alpha * np.maximum(plain_V, _LOWEST)
        return log_softmax(contrasted_V)
