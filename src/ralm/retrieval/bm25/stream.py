"""Stream search: exact BM25 for consecutive queries that overlap, such as those of strides.

Each query is computed from the one before (`stream_kernel`); the state for that is kept here, for all partitions of the
passages. A batch of queries goes through one partition after the other, so that a partition's sums stay in cache.

Letters of shapes: Q queries, K hits per query, V terms of the index, T terms known to the stream, C rows of the code
table, P partitions.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.batch import ALIGNED, BLOCK_BITS, SearchBatch
from ralm.retrieval.bm25.collection import PARTITION, SCORE_STEPS, Collection, Postings, Terms
from ralm.retrieval.bm25.kernels import UNIT, drain_heaps, fill_points, kernel
from ralm.retrieval.bm25.stream_kernel import Queries, State, advance_partitions

STREAM_OVERLAP: Final = 0.5
"""The share of a query's terms that must occur in the query before."""
_PAIRS: Final = 64
"""How many queries of a batch are compared with the one before."""
_BATCH: Final = 256
"""Queries that go through a partition together."""
_TABLE_NUMBERS: Final = 1 << 23
"""Points that a stream keeps: 32 MiB."""
_FIRST_ROWS: Final = 1 << 12
_MAX_STEPS: Final = 21_000
"""The bound of a query, in steps: a third of what 16 bits hold, since bounds grow while terms change."""


def follow_each_other(queries: Sequence[Sequence[int]]) -> bool:
    """Whether most terms of the queries of a batch occur in the query before, judged by a sample."""
    pairs = [(set(queries[i - 1]), set(queries[i])) for i in range(1, len(queries), -(-len(queries) // _PAIRS))]
    shared = sum(len(before & query) for before, query in pairs)
    return shared >= STREAM_OVERLAP * sum(len(query) for _, query in pairs)


def has_room_for(collection: Collection, queries: Sequence[Sequence[int]]) -> bool:
    """Return whether a stream can hold the bounds of all queries in 16 bits."""
    sizes_Q = np.fromiter(map(len, queries), np.int64, len(queries))
    terms = np.fromiter(chain.from_iterable(queries), np.int64, sizes_Q.sum())
    rows = np.repeat(np.arange(len(queries)), sizes_Q)
    idf_Q = np.bincount(rows, weights=collection.idf(collection.frequency(terms)), minlength=len(queries))
    return bool((idf_Q * SCORE_STEPS + sizes_Q <= _MAX_STEPS).all())


class Stream:
    """Searches for queries in order, each computed from the one before; for one thread at a time.

    `k`: hits per query. `partition`: passages at a time, a multiple of 1,024, which does not affect the hits.
    """

    def __init__(self, collection: Collection, k: int, partition: int = PARTITION) -> None:
        assert partition % ALIGNED == 0
        self._collection = collection
        self._k = k
        self._partition = partition
        self._max_rows = _TABLE_NUMBERS // max(1, len(collection.impact_C))
        self._reset()

    def _reset(self) -> None:
        """Forget all terms and the last query."""
        collection, rows = self._collection, max(1, min(_FIRST_ROWS, self._max_rows))
        partitions = max(1, -(-collection.passages // self._partition))
        self._known = 0
        self._row_V = np.full(len(collection.arrays.offsets) - 1, -1, np.int32)
        self._frequency_T = np.zeros(rows, np.int64)
        self._count_T = np.zeros(rows, np.int64)
        self._last = np.zeros(0, np.int64)
        self._terms = Terms(
            slices_TS=np.zeros((rows, partitions + 1), np.int64),
            points_TC=np.zeros((rows, len(collection.impact_C)), np.int32),
            words_T=np.zeros(rows, np.int64),
        )
        self._state = _state(collection.passages, partitions, self._k)

    def fill(self, batch: SearchBatch) -> None:
        """Fill in the hits of the next queries, for which streams must have room (`has_room_for`)."""
        collection, sizes = self._collection, [len(query) for query in batch.queries]
        terms = np.fromiter(chain.from_iterable(batch.queries), np.int64, sum(sizes))
        ends = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        self._learn(terms)
        queries = _differences(self._row_V[terms], ends, self._frequency_T, self._count_T, self._last)
        self._last = queries.terms[queries.ends_W[-2] :]
        heaps_QK = np.zeros(batch.numbers_QK.shape, np.int64)
        found_Q = np.zeros(len(sizes), np.int64)
        advance_partitions(
            collection.postings, self._terms, queries, self._state, batch.forbidden, self._partition,
            collection.passages, heaps_QK, found_Q,
        )  # fmt: skip
        drain_heaps(heaps_QK, found_Q, batch.numbers_QK, batch.scores_QK, np.full(len(sizes), UNIT))

    def _learn(self, terms: NDArray[np.int64]) -> None:
        """Give each new term a row of the tables, after a reset if they would become too large."""
        unknown = self._row_V[terms] < 0
        if not unknown.any():
            return
        new = np.unique(terms[unknown])
        rows = self._known + len(new)
        if self._known and rows > max(len(self._count_T), self._max_rows):
            self._reset()
            self._learn(terms)
        else:
            self._make_room(rows)
            self._fill_rows(new)

    def _make_room(self, rows: int) -> None:
        """Enlarge the tables if they have fewer rows."""
        room = len(self._count_T)
        if rows > room:
            room = max(rows, min(2 * room, self._max_rows))
            self._frequency_T = _enlarge(self._frequency_T, room)
            self._count_T = _enlarge(self._count_T, room)
            self._terms = Terms(*(_enlarge(table, room) for table in self._terms))

    def _fill_rows(self, terms: NDArray[np.int64]) -> None:
        """Fill the next rows of the tables with new terms."""
        collection, rows = self._collection, slice(self._known, self._known + len(terms))
        collection.arrays.check_terms(terms, collection.passages)
        self._row_V[terms] = np.arange(rows.start, rows.stop)
        self._frequency_T[rows] = collection.frequency(terms)
        _learn(
            terms, rows.start, collection.idf(self._frequency_T[rows]), collection.impact_C, collection.postings,
            self._partition, self._terms,
        )  # fmt: skip
        self._known = rows.stop


def _enlarge(table: NDArray[Any], rows: int) -> NDArray[Any]:
    """A table with this many rows, more than before; the new ones are zero."""
    return np.concatenate([table, np.zeros((rows - len(table), *table.shape[1:]), table.dtype)])


def _state(passages: int, partitions: int, k: int) -> State:
    """The state before the first query."""
    padded = -(-max(passages, 1) // ALIGNED) * ALIGNED
    blocks = padded >> BLOCK_BITS
    return State(
        sums_N=np.zeros(padded, np.int32),
        rare_B=np.zeros(blocks, np.uint16),
        common_B=np.zeros(blocks, np.uint16),
        bound_B=np.zeros(blocks, np.uint16),
        kept_PK=np.zeros((partitions, k), np.int64),
        kept_P=np.zeros(partitions, np.int64),
    )


@kernel
def _learn(
    terms: NDArray[np.int64],
    known: int,
    idf_T: NDArray[np.float64],
    impact_C: NDArray[np.float64],
    postings: Postings,
    partition: int,
    tables: Terms,
) -> None:
    """Fill the rows of the tables from `known` on with terms."""
    slices_TS, points_TC, words_T = tables
    for place in range(len(terms)):
        term, row = terms[place], known + place
        begin, end, common = postings.offsets[term], postings.offsets[term + 1], postings.row_V[term]
        words_T[row] = np.int64(common) * postings.words if common >= 0 else -1
        fill_points(idf_T[place], impact_C, UNIT, points_TC[row])
        slices_TS[row, 0] = begin
        for number in range(1, slices_TS.shape[1]):
            begin += np.searchsorted(postings.passages[begin:end], number * partition)
            slices_TS[row, number] = begin


@kernel
def _differences(
    rows: NDArray[np.int32],
    ends: NDArray[np.int64],
    frequency_T: NDArray[np.int64],
    count_T: NDArray[np.int64],
    before: NDArray[np.int64],
) -> Queries:
    """Queries given as rows of terms, with the changes from each query to the next.

    `before` holds the terms of the query before the first one. `count_T` holds how often each term occurs in that
    query, and afterwards in the last one.
    """
    queries = len(ends) - 1
    term_ends, change_ends = np.zeros(queries + 1, np.int64), np.zeros(queries + 1, np.int64)
    terms, counts = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    changed = np.empty(2 * len(rows) + len(before), np.int64)
    changes = np.empty(len(changed), np.int64)
    new_count_T = np.zeros(len(count_T), np.int64)
    n = m = 0
    for query in range(queries):
        begin = n
        n = _distinct(rows[ends[query] : ends[query + 1]], frequency_T, new_count_T, terms, begin)
        counts[begin:n] = new_count_T[terms[begin:n]]
        m = _changes(before, new_count_T, count_T, changed, changes, m, -1)
        m = _changes(terms[begin:n], new_count_T, count_T, changed, changes, m, 1)
        count_T[before] = 0
        before = terms[begin:n]
        count_T[before] = counts[begin:n]
        new_count_T[before] = 0
        term_ends[query + 1], change_ends[query + 1] = n, m
    return Queries(term_ends, terms[:n], counts[:n], change_ends, changed[:m], changes[:m])


@kernel
def _distinct(
    rows: NDArray[np.int32],
    frequency_T: NDArray[np.int64],
    new_count_T: NDArray[np.int64],
    terms: NDArray[np.int64],
    begin: int,
) -> int:
    """Insert a query's distinct rows into `terms` from `begin` on, by rising frequency; count them in `new_count_T`."""
    end = begin
    for row in rows:
        if new_count_T[row] == 0:
            place = end
            while place > begin and frequency_T[terms[place - 1]] > frequency_T[row]:
                terms[place] = terms[place - 1]
                place -= 1
            terms[place] = row
            end += 1
        new_count_T[row] += 1
    return end


@kernel
def _changes(
    rows: NDArray[np.int64],
    new_count_T: NDArray[np.int64],
    count_T: NDArray[np.int64],
    changed: NDArray[np.int64],
    changes: NDArray[np.int64],
    m: int,
    sign: int,
) -> int:
    """Record the rows whose count rises (sign 1) or falls (-1)."""
    for row in rows:
        change = new_count_T[row] - count_T[row]
        if change * sign > 0:
            changed[m], changes[m] = row, change
            m += 1
    return m


def search_streams(collection: Collection, batch: SearchBatch, threads: int) -> None:
    """Fill in the hits of queries, for which streams must have room, with this many threads."""
    runs = QueryRuns(len(batch.queries), threads)

    def search(thread: int) -> None:
        stream = Stream(collection, batch.numbers_QK.shape[1])
        while piece := runs.take(thread):
            stream.fill(batch.part(piece.start, piece.stop))

    if threads == 1:
        search(0)
    else:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            list(pool.map(search, range(threads)))


class QueryRuns:
    """Divides the numbers below `count` among threads, each of which begins with one run of consecutive numbers.

    Streams are fastest on consecutive queries, so runs are long. Texts differ in cost, so a thread that is done takes
    over the second half of the longest run.
    """

    def __init__(self, count: int, threads: int, step: int = _BATCH) -> None:
        borders = [count * thread // threads for thread in range(threads + 1)]
        self._remaining = [range(begin, end) for begin, end in pairwise(borders)]
        self._step = step
        self._lock = Lock()

    def take(self, thread: int) -> range:
        """The next piece for a thread; empty when all numbers are taken."""
        with self._lock:
            if not self._remaining[thread]:
                longest = max(range(len(self._remaining)), key=lambda other: len(self._remaining[other]))
                run = self._remaining[longest]
                half = len(run) // 2 if len(run) > self._step else 0
                self._remaining[longest], self._remaining[thread] = run[:half], run[half:]
            own = self._remaining[thread]
            self._remaining[thread] = own[self._step :]
            return own[: self._step]
