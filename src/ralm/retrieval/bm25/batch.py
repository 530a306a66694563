"""Queries of BM25 that are answered together, and the passages that must not be hits.

Letters of shapes: Q queries, K hits per query, F lists of forbidden passages, N passages, B blocks of 16, W words of 64
blocks.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ralm.records import BoolArray, Hits, IntArray
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
_NO_PASSAGES: Final = np.zeros(0, np.int64)


class Forbidden(NamedTuple):
    """Passages that must not be hits: for each query those of one list, and for all queries those outside a mask.

    The lists are concatenated in `passages` and end at `ends_F`; numbers rise within each. `list_Q` is the number of
    the list of each query, -1 for none.
    """

    ends_F: NDArray[np.int64]
    passages: NDArray[np.int64]
    list_Q: NDArray[np.int64]
    mask: MaskBits

    @classmethod
    def none(cls, queries: int) -> Self:
        """Forbid nothing."""
        return cls(_NO_PASSAGES, _NO_PASSAGES, np.full(queries, -1, np.int64), EVERY)

    @classmethod
    def of(cls, lists: Sequence[Iterable[int]], list_Q: NDArray[np.int64]) -> Self:
        """Forbid lists of passage numbers, in any order; `list_Q` says which of them applies to each query, -1 for
        none."""
        assert (list_Q < len(lists)).all(), "a query refers to a list that does not exist"
        sorted_lists = [_rising(numbers) for numbers in lists]
        ends = np.cumsum([0, *map(len, sorted_lists)], dtype=np.int64)
        return cls(ends, np.concatenate([*sorted_lists, _NO_PASSAGES]), list_Q, EVERY)

    def within(self, mask: MaskBits) -> Self:
        """Forbid the same lists, and the passages outside a mask."""
        return self._replace(mask=mask)

    def for_queries(self, first: int, last: int) -> Self:
        """Return what is forbidden for the queries from `first` to `last`."""
        return self._replace(list_Q=self.list_Q[first:last])


def _rising(numbers: Iterable[int]) -> IntArray:
    """Return different numbers (int64), rising; an array that rises already stays as it is."""
    array = numbers if isinstance(numbers, np.ndarray) else np.fromiter(numbers, np.int64)
    array = array.astype(np.int64, copy=False)
    return array if (array[1:] > array[:-1]).all() else np.unique(array)


class WeightedQueries(NamedTuple):
    """Queries as distinct terms with counts and weights; those of query q are `ends[q]` to `ends[q + 1]`, by rising
    frequency."""

    ends: NDArray[np.int64]
    terms: NDArray[np.int64]
    counts: NDArray[np.int64]
    weights: NDArray[np.float64]

    def part(self, first: int, last: int) -> "WeightedQueries":
        """Return the queries from `first` to `last`."""
        ends = self.ends[first : last + 1]
        own = slice(ends[0], ends[-1])
        return WeightedQueries(ends - ends[0], self.terms[own], self.counts[own], self.weights[own])


class SearchBatch(NamedTuple):
    """Queries, the passages that must not be hits, a heap for the keys of the hits of each query, and the score of one
    of its points."""

    queries: WeightedQueries
    forbidden: Forbidden
    heaps_QK: NDArray[np.int64]
    unit_Q: NDArray[np.float64]

    @classmethod
    def of(cls, queries: WeightedQueries, k: int, forbidden: Forbidden) -> Self:
        """Return queries without hits."""
        count = len(queries.ends) - 1
        return cls(queries, forbidden, np.zeros((count, k), np.int64), np.full(count, kernels.UNIT))

    def part(self, first: int, last: int) -> "SearchBatch":
        """Return the queries from `first` to `last`."""
        rows, queries, forbidden = slice(first, last), self.queries, self.forbidden
        return SearchBatch(
            queries.part(first, last), forbidden.for_queries(first, last), self.heaps_QK[rows], self.unit_Q[rows]
        )

    def hits(self) -> Hits:
        """Return the passages in the heaps, best first, and empty these."""
        return Hits(*kernels.drained(self.heaps_QK, self.unit_Q))


class Allowed(NamedTuple):
    """The passages that may be hits of one query: those of a mask that are not in a list."""

    listed: NDArray[np.int64]
    mask: MaskBits


@kernels.kernel
def allowed_for(forbidden: Forbidden, query: int) -> Allowed:
    """Return the passages that may be hits of a query."""
    number, listed = forbidden.list_Q[query], forbidden.passages[:0]
    if number >= 0:
        listed = forbidden.passages[forbidden.ends_F[number] : forbidden.ends_F[number + 1]]
    return Allowed(listed, forbidden.mask)


@kernels.kernel
def may_be_found(allowed: Allowed, passage: int) -> bool:
    """Return whether a passage may be a hit."""
    bits_B = allowed.mask.bits_B
    if len(bits_B) and not (bits_B[passage >> BLOCK_BITS] >> (passage & 15)) & 1:
        return False
    return not is_in(allowed.listed, passage)


@kernels.kernel
def is_in(numbers: NDArray[np.int64], number: int) -> bool:
    """Return whether a number is in a rising array."""
    place = np.searchsorted(numbers, number) if len(numbers) else 0
    return bool(place < len(numbers) and numbers[place] == number)
