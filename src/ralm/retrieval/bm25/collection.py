"""An index as BM25 searches it, the layout of its common terms, queries that are answered together, and masks.

Most postings belong to a few hundred common terms, so these are laid out such that one passage can be scored without
reading a list of postings. For each common term and each block of 16 passages, the layout holds the most that the term
can add to a passage of the block, as a byte. For each word of 64 passages it holds bits for the passages with the term,
and the number of the term's postings before the word.

Letters of shapes: V terms of the index, M common terms, N passages, B blocks of 16, W words, T terms of queries, S
slices of postings, C rows of the code table, Q queries, K hits per query.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from threading import Lock
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ralm.records import BoolArray, Hits
from ralm.retrieval.bm25 import formula, kernels
from ralm.retrieval.bm25.arrays import Arrays, PostingCodes, row_of

BLOCK_BITS: Final = 4
ALIGNED: Final = kernels.LANES * kernels.MARKS
"""The passages of a word of blocks; a partition has a whole number of these."""
WORD_BITS: Final = 6
WORD_BLOCKS: Final = 1 << (WORD_BITS - BLOCK_BITS)
STEP_BITS: Final = kernels.FRACTION_BITS - 6
"""Bounds are in steps of 1/64 of a score; a step is this many binary places of a fixed-point score."""
SCORE_STEPS: Final = 1 << kernels.FRACTION_BITS - STEP_BITS
"""The steps of a score of 1."""
COMMON_SHARE: Final = 48
"""A term is common if at least one in this many passages has it: its idf is below 4, so its steps fit into a byte."""
PARTITION: Final = 1 << 17
"""Passages of a partition: 512 KiB of sums, which fit into a core's own cache."""


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


class Postings(NamedTuple):
    """The postings of an index, those of term v from `offsets[v]` on, and the layout of the common terms.

    `row_V`: the row of each term among the common ones, -1 for a rare one. `most_M`: the most that one occurrence of
    the term in a query adds to any passage, in steps, rounded up. The other arrays have the rows one after the other,
    of `words` words each: `highest` the most that the term adds to a passage of each block, `present` a bit for each
    passage with the term, `before` the term's postings before each word. Without a layout, its arrays are empty.
    """

    offsets: NDArray[np.int64]
    passages: NDArray[np.int32]
    codes: PostingCodes
    row_V: NDArray[np.int32]
    most_M: NDArray[np.int64]
    words: int
    highest: NDArray[np.uint8]
    present: NDArray[np.uint64]
    before: NDArray[np.uint32]

    @classmethod
    def of(cls, arrays: Arrays) -> Self:
        """Return the postings of an index without a layout."""
        return cls(
            arrays.offsets, arrays.passages, arrays.posting_codes, np.zeros(0, np.int32), np.zeros(0, np.int64), 0,
            np.zeros(0, np.uint8), np.zeros(0, np.uint64), np.zeros(0, np.uint32),
        )  # fmt: skip


class Terms(NamedTuple):
    """Terms of queries.

    `slices_TS`: where their postings begin in each partition (S), or in all (S is 1). `points_TC`: what they add to a
    score by code. `words_T`: where a common term's words begin, -1 for a rare one.
    """

    slices_TS: NDArray[np.int64]
    points_TC: NDArray[np.int32]
    words_T: NDArray[np.int64]


class CommonQueryTerms(NamedTuple):
    """The common terms of a query: the first `size` of the arrays, since slices make a stream 3% slower."""

    size: int
    terms: NDArray[np.int64]
    words: NDArray[np.int64]
    times: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Collection:
    """The arrays of so many passages as they are searched: the impact of each code, and the postings."""

    arrays: Arrays
    passages: int
    impact_C: NDArray[np.float64]
    postings: Postings

    @property
    def is_laid_out(self) -> bool:
        """Return whether there is a layout of the common terms."""
        return len(self.postings.row_V) > 0

    def weighted(self, queries: Sequence[Sequence[int]]) -> WeightedQueries:
        """Return queries given as term numbers with the weights of their terms."""
        ends = np.zeros(len(queries) + 1, np.int64)
        np.cumsum([*map(len, queries)], out=ends[1:])
        terms = np.fromiter(chain.from_iterable(queries), np.int64, ends[-1])
        ends, distinct, counts, frequency = _distinct(terms, ends, self.arrays.offsets)
        return WeightedQueries(ends, distinct, counts, self.idf(frequency))

    def frequency(self, terms: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return in how many passages terms occur."""
        return self.arrays.offsets[terms + 1] - self.arrays.offsets[terms]

    def idf(self, frequency: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights of terms that occur in so many passages."""
        return formula.idf(frequency, int(self.arrays.totals[1]))

    @cached_property
    def common_terms(self) -> NDArray[np.int64]:
        """Return the common terms, laid out or not."""
        return np.flatnonzero(np.diff(self.arrays.offsets) * COMMON_SHARE >= self.passages)

    def laid_out(self) -> "Collection":
        """Return the same with a layout of the common terms, which reads their postings once, on all cores."""
        terms, words = self.common_terms, -(-self.passages >> WORD_BITS)
        row_V = np.full(len(self.arrays.offsets) - 1, -1, np.int32)
        row_V[terms] = np.arange(len(terms))
        highest_MB = np.zeros((len(terms), words * WORD_BLOCKS), np.uint8)
        present_MW = np.zeros((len(terms), words), np.uint64)
        before_MW = np.zeros((len(terms), words), np.uint32)
        self.arrays.check_terms(terms, self.passages)
        idf_M = self.idf(self.frequency(terms))

        def lay_out(row: int) -> None:
            rows = highest_MB[row], present_MW[row], before_MW[row]
            _lay_out(self.postings, terms[row], idf_M[row], self.impact_C, *rows)

        with ThreadPoolExecutor(max_workers=formula.cores()) as pool:
            list(pool.map(lay_out, range(len(terms))))
        layout = self.postings._replace(
            row_V=row_V,
            most_M=highest_MB.max(axis=1, initial=0).astype(np.int64),
            words=words,
            highest=highest_MB.reshape(-1),
            present=present_MW.reshape(-1),
            before=before_MW.reshape(-1),
        )
        return replace(self, postings=layout)


class Layout:
    """A collection that is laid out once queries have read as many postings as that reads; for several threads."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._unread = -1
        self._lock = Lock()

    def collection(self) -> Collection:
        """Return the collection with the layout; the first call makes it."""
        with self._lock:
            if not self._collection.is_laid_out:
                self._collection = self._collection.laid_out()
            return self._collection

    def collection_for(self, queries: WeightedQueries) -> Collection:
        """Return the collection, laid out if queries pay for it; nobody waits while another thread does it."""
        collection = self._collection
        if collection.is_laid_out or self._lock.locked():
            return collection
        frequency = collection.frequency(queries.terms)
        is_common = frequency * COMMON_SHARE >= collection.passages
        if self._unread < 0:
            self._unread = int(collection.frequency(collection.common_terms).sum())
        self._unread = max(0, self._unread - int((frequency * queries.counts)[is_common].sum()))
        return collection if self._unread else self.collection()


@kernels.kernel
def _distinct(
    terms: NDArray[np.int64], ends: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the ends of queries, their distinct terms by rising frequency, counts in the query, and frequencies."""
    keys, new_ends = np.empty(len(terms), np.int64), np.zeros(len(ends), np.int64)
    distinct, counts, frequency = np.empty_like(keys), np.empty_like(keys), np.empty_like(keys)
    n = 0
    for query in range(len(ends) - 1):
        begin, end = ends[query], ends[query + 1]
        for i in range(begin, end):
            keys[i] = offsets[terms[i] + 1] - offsets[terms[i]] << kernels.NUMBER_BITS | terms[i]
        keys[begin:end].sort()
        for i in range(begin, end):
            if i > begin and keys[i] == keys[i - 1]:
                counts[n - 1] += 1
            else:
                distinct[n], counts[n], frequency[n] = keys[i] & kernels.MAX_SCORE, 1, keys[i] >> kernels.NUMBER_BITS
                n += 1
        new_ends[query + 1] = n
    return new_ends, distinct[:n], counts[:n], frequency[:n]


@kernels.kernel
def _lay_out(
    postings: Postings,
    term: int,
    weight: float,
    impact_C: NDArray[np.float64],
    highest_B: NDArray[np.uint8],
    present_W: NDArray[np.uint64],
    before_W: NDArray[np.uint32],
) -> None:
    """Lay out the postings of one term."""
    points_C = np.empty(len(impact_C), np.int32)
    kernels.fill_points(weight, impact_C, kernels.UNIT, points_C)
    codes, escaped, escaped_rows = postings.codes
    for posting in range(postings.offsets[term], postings.offsets[term + 1]):
        passage = postings.passages[posting]
        block, word = passage >> BLOCK_BITS, passage >> WORD_BITS
        highest_B[block] = max(highest_B[block], rounded_up(points_C[row_of(codes, escaped, escaped_rows, posting)]))
        present_W[word] |= np.uint64(1) << np.uint64(passage & 63)
        if word + 1 < len(before_W):
            before_W[word + 1] += np.uint32(1)
    for word in range(1, len(before_W)):
        before_W[word] += before_W[word - 1]


@kernels.kernel
def rounded_up(points: int) -> int:
    """Return points as steps, rounded up."""
    return -(-points >> STEP_BITS)


@kernels.kernel
def add_row(sums: NDArray[np.uint16], row: NDArray[np.uint8], times: np.uint16) -> None:
    """Add a row so many times; a loop over plain slices is compiled to vector instructions."""
    for i in range(len(row)):
        sums[i] += np.uint16(np.uint16(row[i]) * times)


@kernels.kernel
def reach_threshold(
    postings: Postings,
    common: CommonQueryTerms,
    bits_B: NDArray[np.uint16],
    block: int,
    sums_N: NDArray[np.int32],
    first: int,
    lanes: NDArray[np.int32],
    threshold: int,
) -> int:
    """Return which passages of a block of a mask may reach the threshold, as bits, and write all bounds into `lanes`.

    Their sums are those from `first` on. The callers offer the passages: a kernel that does that too is not inlined,
    and makes a search several times slower.
    """
    candidates = kernels.bound_lanes(
        sums_N, first, STEP_BITS, lanes, common.words, common.times, common.size, postings.highest, postings.present,
        block, rounded_up(threshold),
    )  # fmt: skip
    return candidates & np.uint64(bits_B[block]) if len(bits_B) else candidates


@kernels.kernel
def common_score(postings: Postings, terms: Terms, common: CommonQueryTerms, passage: int) -> int:
    """Return what the common terms add to a passage's score."""
    word = passage >> WORD_BITS
    bit = np.uint64(1) << np.uint64(passage & 63)
    codes, escaped, escaped_rows = postings.codes
    score = np.int64(0)
    for i in range(common.size):
        at = common.words[i] + word
        present = postings.present[at]
        if present & bit:
            # The posting's position: those before the word, and one for each earlier passage of the word with the term.
            term = common.terms[i]
            posting = (
                terms.slices_TS[term, 0] + postings.before[at] + kernels.count_bits(present & (bit - np.uint64(1)))
            )
            score += terms.points_TC[term, row_of(codes, escaped, escaped_rows, posting)] * np.int64(common.times[i])
    return int(score)


@kernels.kernel
def may_be_found(mask: MaskBits, passage: int) -> bool:
    """Return whether a passage may be a hit."""
    return not len(mask.bits_B) or bool((mask.bits_B[passage >> BLOCK_BITS] >> (passage & 15)) & 1)
