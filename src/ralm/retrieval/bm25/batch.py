"""Queries of BM25 that are answered together, and the mask of the passages that may be hits.

Letters of shapes: Q queries, K hits per query, N passages, B blocks of 16, W words of 64 blocks.
"""

from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ralm.records import BoolArray, Hits
from ralm.retrieval.bm25 import kernels

BLOCK_BITS: Final = 4
ALIGNED: Final = kernels.LANES * kernels.MARKS
"""The passages of a word of blocks; a partition has a whole number of these."""


class MaskBits(NamedTuple):
    """A mask as bits: of the passages of each block (uint16), and of the blocks that have any, by word (uint64).

    Empty arrays are the mask of all passages.
    """

    bits_B: NDArray[np.uint16]
    open_W: NDArray[np.uint64]

    @classmethod
    def of(cls, mask_N: BoolArray) -> Self:
        """Return the bits of a mask, padded to whole words."""
        padded = np.zeros(-(-len(mask_N) // ALIGNED) * ALIGNED, np.bool_)
        padded[: len(mask_N)] = mask_N
        bits_B = np.packbits(padded, bitorder="little").view(np.dtype("<u2")).astype(np.uint16, copy=False)
        open_W = np.packbits(bits_B != 0, bitorder="little").view(np.dtype("<u8")).astype(np.uint64, copy=False)
        return cls(bits_B, open_W)


EVERY: Final = MaskBits(np.zeros(0, np.uint16), np.zeros(0, np.uint64))
"""The mask of all passages."""


class WeightedQueries(NamedTuple):
    """Queries as distinct terms by rising frequency; those of query q are from `ends[q]` to `ends[q + 1]`."""

    ends: NDArray[np.int64]
    terms: NDArray[np.int64]
    counts: NDArray[np.int64]
    weights: NDArray[np.float64]

    def part(self, first: int, last: int) -> "WeightedQueries":
        """Return the queries from `first` to `last`."""
        ends = self.ends[first : last + 1]
        span = slice(ends[0], ends[-1])
        return WeightedQueries(ends - ends[0], self.terms[span], self.counts[span], self.weights[span])


class SearchBatch(NamedTuple):
    """Queries, the mask of the passages that may be hits, heaps for the keys of hits, and the score of a point."""

    queries: WeightedQueries
    mask: MaskBits
    heaps_QK: NDArray[np.int64]
    unit_Q: NDArray[np.float64]

    @classmethod
    def of(cls, queries: WeightedQueries, k: int, mask: MaskBits) -> Self:
        """Return queries without hits."""
        count = len(queries.ends) - 1
        return cls(queries, mask, np.zeros((count, k), np.int64), np.full(count, kernels.UNIT))

    def part(self, first: int, last: int) -> "SearchBatch":
        """Return the queries from `first` to `last`."""
        rows = slice(first, last)
        return SearchBatch(self.queries.part(first, last), self.mask, self.heaps_QK[rows], self.unit_Q[rows])

    def hits(self) -> Hits:
        """Return the passages in the heaps, best first, and empty these."""
        return Hits(*kernels.drained(self.heaps_QK, self.unit_Q))


@kernels.kernel
def may_be_found(mask: MaskBits, passage: int) -> bool:
    """Return whether a passage may be a hit."""
    return not len(mask.bits_B) or bool((mask.bits_B[passage >> BLOCK_BITS] >> (passage & 15)) & 1)
