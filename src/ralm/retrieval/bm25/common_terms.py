"""What a stream search knows of the commonest terms ahead: the most that each can add in every range of passages.

A common term stands in most ranges of `RANGE` passages, so its postings are never walked through for a query: sums of
these bounds say which ranges are worth a look. Everything is in bound units, `1 / 2 ** (FRACTION_BITS - UNIT_BITS)` of
a score, rounded up.

Letters of shapes: D common terms, R ranges, B blocks of ranges, C rows of the code table.
"""

from dataclasses import dataclass
from typing import Any, Final

import numba as nb
import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.arrays import Arrays
from ralm.retrieval.bm25.formula import FRACTION_BITS

RANGE: Final = 8
"""Passages of a range."""
BLOCK: Final = 64
"""Passages of a block, for which a common term's postings can be found without a search."""
UNIT_BITS: Final = FRACTION_BITS - 5
"""A bound unit in binary places of a fixed-point score: 1/32, so that the sums of a query fit into 16 bits."""
_COMMON: Final = 64
"""A term is common if it stands in one passage of so many."""


@dataclass(frozen=True, slots=True, eq=False)
class CommonTerms:
    """`place_of` finds the row of a term; `highest_DR` (uint8) is the most it adds to a passage of each range;
    `skips_DB` (uint32) how many of its postings lie before each block."""

    place_of: dict[int, int]
    highest_DR: NDArray[np.uint8]
    skips_DB: NDArray[np.uint32]


def find_common_terms(
    arrays: Arrays, passages: int, idf_of: NDArray[np.float64], impact_C: NDArray[np.float64]
) -> CommonTerms:
    """Read the postings of the common terms once.

    `idf_of` has the idf (float64) of every term. A term that is common has an idf below 5, so a byte holds its bounds.
    """
    ranges = -(-passages // RANGE)
    frequencies = np.diff(arrays.offsets)
    terms = np.flatnonzero(frequencies * _COMMON >= passages)
    highest_DR = np.zeros((len(terms), ranges), np.uint8)
    skips_DB = np.zeros((len(terms), -(-passages // BLOCK) + 1), np.uint32)
    bounds_DC = bound_units(fixed_points(idf_of[terms], impact_C)).astype(np.uint8)
    _read(arrays.offsets, arrays.passages, arrays.codes, terms, bounds_DC, highest_DR, skips_DB)
    return CommonTerms({int(term): place for place, term in enumerate(terms)}, highest_DR, skips_DB)


def fixed_points(idf_T: NDArray[np.float64], impact_C: NDArray[np.float64]) -> NDArray[np.int32]:
    """What one occurrence of each term in the query adds (int32, T x C), at least 1: a passage that has it is a hit."""
    return np.maximum(1, np.rint(idf_T[:, None] * impact_C * 2.0**FRACTION_BITS)).astype(np.int32)


def bound_units(points: NDArray[np.int32]) -> NDArray[np.int32]:
    """Points in bound units, rounded up."""
    return (points + ((1 << UNIT_BITS) - 1)) >> UNIT_BITS


@nb.njit(cache=True, nogil=True)
def _read(
    offsets: NDArray[np.int64],
    passages: NDArray[np.int32],
    codes: NDArray[np.unsignedinteger[Any]],
    terms: NDArray[np.int64],
    bounds_DC: NDArray[np.uint8],
    highest_DR: NDArray[np.uint8],
    skips_DB: NDArray[np.uint32],
) -> None:
    for place in range(len(terms)):
        first, last = offsets[terms[place]], offsets[terms[place] + 1]
        block = 0
        for posting in range(first, last):
            passage = passages[posting]
            bound = bounds_DC[place, codes[posting]]
            if bound > highest_DR[place, passage // RANGE]:
                highest_DR[place, passage // RANGE] = bound
            while block <= passage // BLOCK:
                skips_DB[place, block] = posting - first
                block += 1
        while block < skips_DB.shape[1]:
            skips_DB[place, block] = last - first
            block += 1
