"""An index as BM25 searches it, and the layout of its common terms.

Most postings belong to a few hundred common terms, so these are laid out such that one passage can be scored without
reading a list of postings. For each common term and each block of 16 passages, the layout holds the most that the term
can add to a passage of the block, as a byte. For each word of 64 passages it holds bits for the passages with the term,
and the number of the term's postings before the word.

Letters of shapes: V terms of the index, M common terms, B blocks, W words, T terms of queries, S slices of postings, C
rows of the code table, N passages of a partition.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25 import formula, kernels
from ralm.retrieval.bm25.arrays import Arrays, PostingCodes, row_of
from ralm.retrieval.bm25.batch import BLOCK_BITS

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


class CommonTerms(NamedTuple):
    """The layout of common terms; without any, all arrays are empty.

    `row_V` (int32): the row of each term among the common ones, -1 for a rare one. `highest_MB` (uint8): the most that
    one occurrence of the term in a query adds to a passage of each block, in steps, rounded up. `present_MW` (uint64):
    a bit for each passage with the term. `before_MW` (uint32): the term's postings before each word. B is 4 W.
    """

    row_V: NDArray[np.int32]
    highest_MB: NDArray[np.uint8]
    present_MW: NDArray[np.uint64]
    before_MW: NDArray[np.uint32]


_NONE: Final = CommonTerms(
    np.zeros(0, np.int32), np.zeros((0, 0), np.uint8), np.zeros((0, 0), np.uint64), np.zeros((0, 0), np.uint32)
)


class Postings(NamedTuple):
    """The postings of an index, those of term v from `offsets[v]` on, and the layout of the common terms, row after
    row: `words` words each. `most_M`: the most that a term adds to any passage, in steps."""

    offsets: NDArray[np.int64]
    passages: NDArray[np.int32]
    codes: PostingCodes
    row_V: NDArray[np.int32]
    most_M: NDArray[np.int64]
    words: int
    highest: NDArray[np.uint8]
    present: NDArray[np.uint64]
    before: NDArray[np.uint32]


class Terms(NamedTuple):
    """Terms of queries. `slices_TS`: where their postings begin in each partition (S), or in all (S is 1).
    `points_TC`: what they add to a score by code. `words_T`: where a common term's words begin, -1 for a rare one."""

    slices_TS: NDArray[np.int64]
    points_TC: NDArray[np.int32]
    words_T: NDArray[np.int64]


class CommonQueryTerms(NamedTuple):
    """The common terms of a query: rows of the tables, where their words begin, and how often they occur in it."""

    terms: NDArray[np.int64]
    words: NDArray[np.int64]
    times: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Collection:
    """The arrays of so many passages as they are searched: the impact of each code, and the layout of common terms."""

    arrays: Arrays
    passages: int
    impact_C: NDArray[np.float64]
    common: CommonTerms = _NONE

    @property
    def is_laid_out(self) -> bool:
        """Whether there is a layout of the common terms."""
        return len(self.common.row_V) > 0

    @cached_property
    def postings(self) -> Postings:
        """The postings in the form that kernels take."""
        arrays, common = self.arrays, self.common
        return Postings(
            arrays.offsets,
            arrays.passages,
            arrays.posting_codes,
            common.row_V,
            common.highest_MB.max(axis=1, initial=0).astype(np.int64),
            common.present_MW.shape[1],
            common.highest_MB.reshape(-1),
            common.present_MW.reshape(-1),
            common.before_MW.reshape(-1),
        )

    def frequency(self, terms: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return in how many passages terms occur."""
        return self.arrays.offsets[terms + 1] - self.arrays.offsets[terms]

    def idf(self, frequency: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights of terms that occur in so many passages."""
        return formula.idf(frequency, int(self.arrays.totals[1]))

    @cached_property
    def common_terms(self) -> NDArray[np.int64]:
        """The common terms, laid out or not."""
        return np.flatnonzero(np.diff(self.arrays.offsets) * COMMON_SHARE >= self.passages)

    def laid_out(self) -> "Collection":
        """Return the same with a layout of the common terms, which reads their postings once, on all cores."""
        arrays, terms, words = self.arrays, self.common_terms, -(-self.passages >> WORD_BITS)
        common = CommonTerms(
            np.full(len(arrays.offsets) - 1, -1, np.int32),
            np.zeros((len(terms), words * WORD_BLOCKS), np.uint8),
            np.zeros((len(terms), words), np.uint64),
            np.zeros((len(terms), words), np.uint32),
        )
        common.row_V[terms] = np.arange(len(terms))
        arrays.check_terms(terms, self.passages)
        idf_M = self.idf(self.frequency(terms))

        def lay_out(row: int) -> None:
            points_C = np.empty(len(self.impact_C), np.int32)
            kernels.fill_points(idf_M[row], self.impact_C, kernels.UNIT, points_C)
            begin, end = arrays.offsets[terms[row]], arrays.offsets[terms[row] + 1]
            rows = common.highest_MB[row], common.present_MW[row], common.before_MW[row]
            _lay_out(arrays.passages, arrays.posting_codes, begin, end, steps(points_C).astype(np.uint8), *rows)

        with ThreadPoolExecutor(max_workers=formula.cores()) as pool:
            list(pool.map(lay_out, range(len(terms))))
        return replace(self, common=common)


def steps(points: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return points as steps, rounded up."""
    return -(-points >> STEP_BITS)


class Layout:
    """Lays out the common terms of a collection once queries have read as many of their postings as that reads.

    Safe to use from several threads.
    """

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

    def collection_for(self, queries: Sequence[Sequence[int]]) -> Collection:
        """Return the collection for queries, with the layout if they pay for it; nobody waits while another thread
        makes it."""
        collection = self._collection
        if collection.is_laid_out or self._lock.locked():
            return collection
        frequency = collection.frequency(np.fromiter(chain.from_iterable(queries), np.int64))
        if self._unread < 0:
            self._unread = int(collection.frequency(collection.common_terms).sum())
        self._unread = max(0, self._unread - int(frequency[frequency * COMMON_SHARE >= collection.passages].sum()))
        return collection if self._unread else self.collection()


@kernels.kernel
def _lay_out(
    passages: NDArray[np.int32],
    codes: PostingCodes,
    begin: int,
    end: int,
    steps_C: NDArray[np.uint8],
    highest_B: NDArray[np.uint8],
    present_W: NDArray[np.uint64],
    before_W: NDArray[np.uint32],
) -> None:
    """Lay out the postings of one term."""
    rows, escaped, escaped_rows = codes
    for posting in range(begin, end):
        passage = passages[posting]
        block, word = passage >> BLOCK_BITS, passage >> WORD_BITS
        highest_B[block] = max(highest_B[block], steps_C[row_of(rows, escaped, escaped_rows, posting)])
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
def reach_threshold(
    postings: Postings,
    common: CommonQueryTerms,
    count: int,
    bits_B: NDArray[np.uint16],
    block: int,
    sums_N: NDArray[np.int32],
    first: int,
    lanes: NDArray[np.int32],
    threshold: int,
) -> int:
    """Return which passages of a block of a mask may reach the threshold, as bits, and write bounds of all into
    `lanes`; their sums are those from `first` on."""
    candidates = kernels.bound_lanes(
        sums_N, first, STEP_BITS, lanes, common.words, common.times, count, postings.highest, postings.present, block,
        rounded_up(threshold),
    )  # fmt: skip
    return candidates & np.uint64(bits_B[block]) if len(bits_B) else candidates


@kernels.kernel
def common_score(postings: Postings, terms: Terms, common: CommonQueryTerms, count: int, passage: int) -> int:
    """Return what `count` common terms add to a passage's score."""
    word = passage >> WORD_BITS
    bit = np.uint64(1) << np.uint64(passage & 63)
    codes, escaped, escaped_rows = postings.codes
    score = np.int64(0)
    for i in range(count):
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
