"""Stream search: exact BM25 for consecutive queries that overlap, such as those of strides.

Each query is computed from the one before (`stream_kernel`); the state for that is kept here, for all partitions of the
passages. A batch of queries goes through one partition after the other, so that a partition's sums stay in cache.

Letters of shapes: Q queries, K hits per query, V terms of the index, T terms known to the stream, C rows of the code
table, P partitions.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Lock
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.batch import ALIGNED, BLOCK_BITS, SearchBatch, WeightedQueries
from ralm.retrieval.bm25.collection import PARTITION, SCORE_STEPS, Collection, Postings, Terms
from ralm.retrieval.bm25.kernels import UNIT, fill_points, kernel
from ralm.retrieval.bm25.stream_kernel import Queries, State, advance_partitions

STREAM_OVERLAP: Final = 0.5
"""The share of a query's terms that must occur in the query before."""
_PAIRS: Final = 64
"""How many queries of a batch are compared with the one before."""
_BATCH: Final = 256
"""Queries that go through a partition together."""
_TABLE_NUMBERS: Final = 1 << 23
"""Points that a stream keeps: 32 MiB."""
_MAX_STEPS: Final = 21_000
"""The bound of a query, in steps: a third of what 16 bits hold, since bounds grow while terms change."""


def follow_each_other(queries: WeightedQueries) -> bool:
    """Return whether most terms of the queries of a batch occur in the query before, judged by a sample."""
    count = len(queries.ends) - 1
    pairs = [(queries.part(i - 1, i).terms, queries.part(i, i + 1).terms) for i in range(1, count, -(-count // _PAIRS))]
    shared = sum(len({*before.tolist()} & {*terms.tolist()}) for before, terms in pairs)
    return shared >= STREAM_OVERLAP * sum(len(terms) for _, terms in pairs)


def has_room_for(queries: WeightedQueries) -> bool:
    """Return whether a stream can hold the bounds of all queries in 16 bits."""
    steps = np.cumsum(queries.counts * (queries.weights * SCORE_STEPS + 1))
    return bool((np.diff(np.concatenate([[0], steps])[queries.ends]) <= _MAX_STEPS).all())


class Stream:
    """A search for queries in order, each computed from the one before, by partitions; for one thread at a time."""

    def __init__(self, collection: Collection, k: int, partition: int = PARTITION) -> None:
        assert partition % ALIGNED == 0
        self._collection = collection
        self._k = k
        self._partition = partition
        self._reset(0)

    def _reset(self, terms: int) -> None:
        """Forget all terms and the last query; there is room for so many terms, and for as many more as are kept."""
        collection = self._collection
        partitions = max(1, -(-collection.passages // self._partition))
        codes, of_index = len(collection.impact_C), len(collection.arrays.offsets) - 1
        rows = max(terms, min(_TABLE_NUMBERS // max(1, codes), of_index))
        self._term_count = 0
        self._row_V = np.full(of_index, -1, np.int32)
        self._count_T = np.zeros(rows, np.int64)
        self._last = np.zeros(0, np.int32)
        self._terms = Terms(
            slices_TS=np.zeros((rows, partitions + 1), np.int64),
            points_TC=np.zeros((rows, codes), np.int32),
            words_T=np.zeros(rows, np.int64),
        )
        padded = -(-max(collection.passages, 1) // ALIGNED) * ALIGNED
        blocks = padded >> BLOCK_BITS
        self._state = State(
            sums_N=np.zeros(padded, np.int32),
            rare_B=np.zeros(blocks, np.uint16),
            common_B=np.zeros(blocks, np.uint16),
            bound_B=np.zeros(blocks, np.uint16),
            kept_PK=np.zeros((partitions, self._k), np.int64),
            kept_P=np.zeros(partitions, np.int64),
        )

    def fill(self, batch: SearchBatch) -> None:
        """Fill in the hits of the next queries, for which streams must have room (`has_room_for`)."""
        collection, ends = self._collection, batch.queries.ends
        self._learn(batch.queries.terms)
        rows = self._row_V[batch.queries.terms]
        queries = _differences(rows, ends, batch.queries.counts, self._count_T, self._last)
        self._last = rows[ends[-2] :]
        advance_partitions(
            collection.postings, self._terms, queries, self._state, batch.mask, self._partition,
            collection.passages, batch.heaps_QK,
        )  # fmt: skip

    def _learn(self, terms: NDArray[np.int64]) -> None:
        """Give each new term a row of the tables, after a reset if there are too few."""
        collection, new = self._collection, np.unique(terms[self._row_V[terms] < 0])
        if self._term_count + len(new) > len(self._count_T):
            new = np.unique(terms)
            self._reset(len(new))
        collection.arrays.check_terms(new, collection.passages)
        first = self._term_count
        self._term_count += len(new)
        self._row_V[new] = np.arange(first, self._term_count)
        idf = collection.idf(collection.frequency(new))
        _learn(new, first, idf, collection.impact_C, collection.postings, self._partition, self._terms)


@kernel
def _learn(
    terms: NDArray[np.int64],
    first: int,
    idf_T: NDArray[np.float64],
    impact_C: NDArray[np.float64],
    postings: Postings,
    partition: int,
    tables: Terms,
) -> None:
    """Fill the rows of the tables from `first` on with terms."""
    slices_TS, points_TC, words_T = tables
    for place in range(len(terms)):
        term, row = terms[place], first + place
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
    counts: NDArray[np.int64],
    count_T: NDArray[np.int64],
    before: NDArray[np.int32],
) -> Queries:
    """Return queries as rows and counts, with the changes from each to the next; `count_T` becomes that of the last."""
    change_ends = np.zeros(len(ends), np.int64)
    changed = np.empty(2 * len(rows) + len(before), np.int32)
    changes = np.empty(len(changed), np.int64)
    new_count_T = np.zeros(len(count_T), np.int64)
    m = 0
    for query in range(len(ends) - 1):
        terms, own_counts = rows[ends[query] : ends[query + 1]], counts[ends[query] : ends[query + 1]]
        new_count_T[terms] = own_counts
        m = _changes(before, new_count_T, count_T, changed, changes, m, -1)
        m = _changes(terms, new_count_T, count_T, changed, changes, m, 1)
        count_T[before] = 0
        count_T[terms] = own_counts
        new_count_T[terms] = 0
        before = terms
        change_ends[query + 1] = m
    return Queries(ends, rows, counts, change_ends, changed[:m], changes[:m])


@kernel
def _changes(
    rows: NDArray[np.int32],
    new_count_T: NDArray[np.int64],
    count_T: NDArray[np.int64],
    changed: NDArray[np.int32],
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
    count, k = batch.heaps_QK.shape
    runs = QueryRuns(count, threads)

    def search(thread: int) -> None:
        stream = Stream(collection, k)
        while piece := runs.take(thread):
            stream.fill(batch.part(piece.start, piece.stop))

    if threads == 1:
        search(0)
    else:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            list(pool.map(search, range(threads)))


class QueryRuns:
    """The numbers below `count` in long runs for threads; one that is done takes half of the longest run."""

    def __init__(self, count: int, threads: int, step: int = _BATCH) -> None:
        borders = [count * thread // threads for thread in range(threads + 1)]
        self._remaining = [range(begin, end) for begin, end in pairwise(borders)]
        self._step = step
        self._lock = Lock()

    def take(self, thread: int) -> range:
        """Return the next piece for a thread; empty when all numbers are taken."""
        with self._lock:
            if not self._remaining[thread]:
                longest = max(range(len(self._remaining)), key=lambda other: len(self._remaining[other]))
                run = self._remaining[longest]
                half = len(run) // 2 if len(run) > self._step else 0
                self._remaining[longest], self._remaining[thread] = run[:half], run[half:]
            remaining = self._remaining[thread]
            self._remaining[thread] = remaining[self._step :]
            return remaining[: self._step]
