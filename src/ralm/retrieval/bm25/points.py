"""Scores as fixed-point integers: one formula shared by scans, streams and the layout of common terms.

Integers are summed exactly, so the order does not matter, and every way of searching gives the same hits.

Letters of shapes: C rows of the code table.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.compiled import kernel

FRACTION_BITS: Final = 20
"""Binary places of a fixed-point score: finer than Lucene's float32 for any score above 1."""
UNIT: Final = 2.0**-FRACTION_BITS
"""The score of one point, unless a query is so long that its scores would overflow."""


@kernel
def fill_points(weight: float, impact_C: NDArray[np.float64], unit: float, points_C: NDArray[np.int32]) -> None:
    """Write what one occurrence of a query term of this weight adds, for each code.

    It is at least 1, since a passage with the term is a hit; 0 if the impact is 0, which no posting has. `unit` must be
    a power of two, so that dividing by it is exact.
    """
    for code in range(len(impact_C)):
        points_C[code] = max(1, np.rint(weight * impact_C[code] / unit)) if impact_C[code] > 0 else 0
