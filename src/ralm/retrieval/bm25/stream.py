"""Stream search: exact BM25 for queries that overlap from one to the next, as those of strides do.

Each query is worked out from the one before (`ralm.retrieval.bm25.sweep`); what that needs is kept here, for all
partitions of the passages. A batch of queries goes through one partition after the other, so that a partition's sums
stay in cache; a batch of one is the way of generation, where the next query is not known yet.

Letters of shapes: Q queries, K hits a query, T terms known to the stream, C rows of the code table, P partitions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numba as nb
import numpy as np
from numpy.typing import NDArray

from ralm.records import NO_PASSAGE
from ralm.retrieval.bm25.arrays import Arrays
from ralm.retrieval.bm25.common_terms import BLOCK, RANGE, CommonTerms, bound_units, fixed_points
from ralm.retrieval.bm25.formula import FRACTION_BITS
from ralm.retrieval.bm25.sweep import Postings, Queries, Scratch, State, Terms, sweep

PARTITION: Final = 1 << 18
"""Passages of a partition: 512 KiB of sums, which fit into a core's own cache."""
BATCH: Final = 256
"""Queries that go through a partition together."""
HEAVIEST: Final = 500.0
"""The highest sum of idf that a query may have: its bounds have to fit into 16 bits."""
_KEPT: Final = 4
_TABLE_NUMBERS: Final = 1 << 23
_FIRST_ROWS: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Collection:
    """What streams over one index share: its arrays, the constants, and the bounds of the common terms."""

    arrays: Arrays
    passages: int
    idf_of: NDArray[np.float64]
    impact_C: NDArray[np.float64]
    common: CommonTerms


class Stream:
    """Answers queries in order, each from the one before; for one thread at a time.

    `k` hits a query; `partition` passages at a time (a multiple of 64; any gives the same hits).
    """

    def __init__(self, collection: Collection, k: int, partition: int = PARTITION) -> None:
        assert partition % BLOCK == 0
        self._collection = collection
        self._k = k
        self._bases = np.arange(0, collection.passages, partition, dtype=np.int64)
        self._sizes = np.minimum(partition, collection.passages - self._bases)
        self._kept = k + _KEPT
        self._postings = Postings(collection.arrays.passages, collection.arrays.codes)
        self._scratch = _scratch(int(self._sizes.max()), self._kept)
        self._begin()

    def search(self, queries: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The hits of queries given as term numbers, repeats included: passages (int64) and scores (float32), Q x K.

        No query may be heavier than `HEAVIEST`.
        """
        numbers_QK = np.full((len(queries), self._k), NO_PASSAGE, np.int64)
        points_QK = np.zeros((len(queries), self._k), np.int32)
        for first in range(0, len(queries), BATCH):
            some = slice(first, first + BATCH)
            self._search(queries[some], numbers_QK[some], points_QK[some])
        return numbers_QK, (points_QK * 2.0**-FRACTION_BITS).astype(np.float32)

    def _search(
        self, queries: Sequence[Sequence[int]], numbers_QK: NDArray[np.int64], points_QK: NDArray[np.int32]
    ) -> None:
        """Answer a batch, partition by partition."""
        self._learn({term for query in queries for term in query})
        rows = np.array([self._row_of[term] for query in queries for term in query], np.int64)
        ends = np.cumsum([0, *(len(query) for query in queries)])
        batch = Queries(*_differences(rows, ends, self._frequency_T, self._standing_T))
        found_Q = np.zeros(len(queries), np.int64)
        for partition, base in enumerate(self._bases.tolist()):
            scratch = self._scratch._replace(scores=self._scratch.scores[: int(self._sizes[partition])])
            state = self._states[partition]
            sweep(self._postings, self._terms, batch, state, scratch, partition, base, numbers_QK, points_QK, found_Q)

    def _begin(self) -> None:
        """Know no terms, and stand before the first query."""
        self._row_of: dict[int, int] = {}
        self._frequency_T = np.zeros(0, np.int64)
        self._standing_T = np.zeros(0, np.int64)
        self._terms = Terms(
            slices_TS=np.zeros((0, len(self._bases) + 1), np.int64),
            points_TC=np.zeros((0, len(self._collection.impact_C)), np.int32),
            bounds_TC=np.zeros((0, len(self._collection.impact_C)), np.uint16),
            common_T=np.zeros(0, np.int64),
            highest_DR=self._collection.common.highest_DR,
            skips_DB=self._collection.common.skips_DB,
        )
        self._states = [_state(int(size), self._kept) for size in self._sizes]

    def _learn(self, terms: set[int]) -> None:
        """Make tables for terms that are new; forget all, and begin anew, where they would grow too large."""
        new = sorted(terms - self._row_of.keys())
        if not new:
            return
        if self._row_of and (len(self._row_of) + len(new)) * len(self._collection.impact_C) > _TABLE_NUMBERS:
            self._begin()
            new = sorted(terms)
        first = len(self._row_of)
        self._make_room(first + len(new))
        rows = slice(first, first + len(new))
        numbers = np.array(new, np.int64)
        tables, offsets = self._terms, self._collection.arrays.offsets
        tables.points_TC[rows] = fixed_points(self._collection.idf_of[numbers], self._collection.impact_C)
        tables.bounds_TC[rows] = bound_units(tables.points_TC[rows])
        for row, term in enumerate(new, first):
            self._row_of[term] = row
            tables.slices_TS[row] = self._slices(term)
            tables.common_T[row] = self._collection.common.place_of.get(term, -1)
            self._frequency_T[row] = offsets[term + 1] - offsets[term]

    def _make_room(self, rows: int) -> None:
        """Have tables of at least so many rows, twice as many as before where they have to grow."""
        if rows <= len(self._standing_T):
            return
        more = max(rows, 2 * len(self._standing_T), _FIRST_ROWS) - len(self._standing_T)
        self._terms = self._terms._replace(
            slices_TS=_longer(self._terms.slices_TS, more),
            points_TC=_longer(self._terms.points_TC, more),
            bounds_TC=_longer(self._terms.bounds_TC, more),
            common_T=_longer(self._terms.common_T, more),
        )
        self._frequency_T = _longer(self._frequency_T, more)
        self._standing_T = _longer(self._standing_T, more)

    def _slices(self, term: int) -> NDArray[np.int64]:
        """Where a term's postings of each partition begin, and where the last end."""
        begin, end = (int(self._collection.arrays.offsets[term + i]) for i in (0, 1))
        inside = np.searchsorted(self._collection.arrays.passages[begin:end], self._bases)
        return np.append(inside + begin, end)


def _longer(table: NDArray[Any], rows: int) -> NDArray[Any]:
    """A table with so many more rows of zeros."""
    return np.concatenate([table, np.zeros((rows, *table.shape[1:]), table.dtype)])


def _state(passages: int, kept: int) -> State:
    ranges = -(-passages // RANGE)
    return State(
        sums=np.zeros(ranges * RANGE, np.uint16),
        rare_R=np.zeros(ranges, np.uint16),
        common_R=np.zeros(ranges, np.uint16),
        bound_R=np.zeros(ranges, np.uint16),
        kept_H=np.zeros(kept, np.int64),
        kept_scores_H=np.zeros(kept, np.int32),
        kept=np.zeros(1, np.int64),
    )


def _scratch(passages: int, kept: int) -> Scratch:
    return Scratch(
        flagged=np.zeros(-(-passages // RANGE), np.int64),
        bounds=np.zeros(RANGE, np.int64),
        common=np.zeros(4096, np.int64),
        scores=np.zeros(passages, np.int32),
        fresh_H=np.zeros(kept, np.int64),
        fresh_scores_H=np.zeros(kept, np.int32),
    )


@nb.njit(cache=True, nogil=True)
def _differences(
    rows: NDArray[np.int64], ends: NDArray[np.int64], frequency_T: NDArray[np.int64], standing_T: NDArray[np.int64]
) -> tuple[
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
]:
    """Queries as distinct terms, rare ones first, with counts, and what changes from each to the next, removals first.

    `standing_T` is how often each term stands in the query before the first, and then in the last.
    """
    queries = len(ends) - 1
    before = np.flatnonzero(standing_T)
    term_ends, change_ends = np.zeros(queries + 1, np.int64), np.zeros(queries + 1, np.int64)
    terms, counts = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    changed = np.empty(2 * len(rows) + len(before), np.int64)
    changes = np.empty(len(changed), np.int64)
    wanted_T = np.zeros(len(standing_T), np.int64)
    n = m = 0
    for query in range(queries):
        begin = n
        n = _distinct(rows[ends[query] : ends[query + 1]], frequency_T, wanted_T, terms, begin)
        counts[begin:n] = wanted_T[terms[begin:n]]
        m = _changes(before, wanted_T, standing_T, changed, changes, m, -1)
        m = _changes(terms[begin:n], wanted_T, standing_T, changed, changes, m, 1)
        standing_T[before] = 0
        before = terms[begin:n].copy()
        standing_T[before] = counts[begin:n]
        wanted_T[before] = 0
        term_ends[query + 1], change_ends[query + 1] = n, m
    return term_ends, terms[:n], counts[:n], change_ends, changed[:m], changes[:m]


@nb.njit(cache=True, nogil=True)
def _distinct(
    rows: NDArray[np.int64],
    frequency_T: NDArray[np.int64],
    wanted_T: NDArray[np.int64],
    terms: NDArray[np.int64],
    begin: int,
) -> int:
    """Put a query's distinct rows into `terms` from `begin` on, by rising frequency, and count them in `wanted_T`."""
    end = begin
    for row in rows:
        if wanted_T[row] == 0:
            place = end
            while place > begin and frequency_T[terms[place - 1]] > frequency_T[row]:
                terms[place] = terms[place - 1]
                place -= 1
            terms[place] = row
            end += 1
        wanted_T[row] += 1
    return end


@nb.njit(cache=True, nogil=True)
def _changes(
    rows: NDArray[np.int64],
    wanted_T: NDArray[np.int64],
    standing_T: NDArray[np.int64],
    changed: NDArray[np.int64],
    changes: NDArray[np.int64],
    m: int,
    sign: int,
) -> int:
    """Note the rows whose count rises (sign 1) or falls (-1)."""
    for row in rows:
        change = wanted_T[row] - standing_T[row]
        if change * sign > 0:
            changed[m], changes[m] = row, change
            m += 1
    return m
