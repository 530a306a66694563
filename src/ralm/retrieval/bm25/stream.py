"""Stream search: exact BM25 for consecutive queries that overlap, such as those of strides.

Each query is computed from the one before (`stream_kernel`); the state for that is kept here, for every segment of the
index and all partitions of its passages. A batch of queries goes through one partition after the other, so that a
partition's sums stay in cache.

Letters of shapes: Q queries, K hits per query, V terms of the lexicon, T terms known to the stream, C rows of the code
table, P partitions.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, pairwise
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ralm.errors import DamagedFolderError
from ralm.retrieval.bm25.collection import (
    BLOCK_BITS,
    PARTITION,
    BackgroundTask,
    Collection,
    CommonTerms,
    Lexicon,
    SearchedSegment,
    find_common_terms,
)
from ralm.retrieval.bm25.formula import cores
from ralm.retrieval.bm25.kernels import UNIT, drain_heaps, fill_points, kernel
from ralm.retrieval.bm25.lookup import search_lookups
from ralm.retrieval.bm25.scan import Forbidden, SearchBatch
from ralm.retrieval.bm25.stream_kernel import ALIGNED, Postings, Queries, State, Terms, advance_partitions

STREAM_OVERLAP: Final = 0.5
"""The share of a query's terms that must occur in the query before."""
_PAIRS: Final = 64
"""How many queries of a batch are compared with the one before."""
_BATCH: Final = 256
"""Queries that go through a partition together."""
_TABLE_NUMBERS: Final = 1 << 23
"""Points that a stream keeps: 32 MiB."""
_FIRST_ROWS: Final = 1 << 12


def follow_each_other(queries: Sequence[Sequence[int]]) -> bool:
    """Whether most terms of the queries of a batch occur in the query before, judged by a sample."""
    pairs = [(set(queries[i - 1]), set(queries[i])) for i in range(1, len(queries), -(-len(queries) // _PAIRS))]
    shared = sum(len(before & query) for before, query in pairs)
    return shared >= STREAM_OVERLAP * sum(len(query) for _, query in pairs)


class Stream:
    """Searches for queries in order, each computed from the one before; for one thread at a time.

    `k`: hits per query. `partition`: passages at a time, a multiple of 1,024, which does not affect the hits.
    """

    def __init__(self, collection: Collection, k: int, partition: int = PARTITION) -> None:
        assert partition % ALIGNED == 0
        self._collection = collection
        self._k = k
        self._partition = partition
        self._reset()

    def _reset(self) -> None:
        """Forget all terms and the last query."""
        rows = max(1, min(_FIRST_ROWS, self._max_rows))
        self._known = 0
        self._row_V = np.full(len(self._collection.lexicon.idf_V), -1, np.int32)
        self._frequency_T = np.zeros(rows, np.int64)
        self._count_T = np.zeros(rows, np.int64)
        self._last = np.zeros(0, np.int64)
        self._segments = [
            _SegmentStream(segment, common, rows, self._k, self._partition)
            for segment, common in zip(self._collection.segments, self._collection.common, strict=True)
        ]

    @property
    def _max_rows(self) -> int:
        return _TABLE_NUMBERS // self._collection.codes

    def fill(self, batch: SearchBatch) -> None:
        """Fill in the hits of the next queries, which the collection must support (`Collection.supports`)."""
        sizes = [len(query) for query in batch.queries]
        terms = np.fromiter(chain.from_iterable(batch.queries), np.int64, sum(sizes))
        ends = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        self._learn(terms)
        queries = _differences(self._row_V[terms], ends, self._frequency_T, self._count_T, self._last)
        self._last = queries.terms[queries.ends_W[-2] :]
        heaps_QK = np.zeros(batch.numbers_QK.shape, np.int64)
        found_Q = np.zeros(len(sizes), np.int64)
        for segment in self._segments:
            segment.advance(queries, batch.forbidden, heaps_QK, found_Q)
        drain_heaps(heaps_QK, found_Q, batch.numbers_QK, batch.scores_QK, np.full(len(sizes), UNIT))

    def _learn(self, terms: NDArray[np.int64]) -> None:
        """Give each new term a row of the tables, after a reset if they would become too large."""
        lexicon = self._collection.lexicon
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
            self._row_V[new] = np.arange(self._known, rows)
            self._frequency_T[self._known : rows] = lexicon.frequency_V[new]
            for place, segment in enumerate(self._segments):
                segment.learn(self._known, lexicon.terms_SV[place, new], lexicon.idf_V[new])
            self._known = rows

    def _make_room(self, rows: int) -> None:
        """Enlarge the tables if they have fewer rows."""
        room = len(self._count_T)
        if rows > room:
            room = max(rows, min(2 * room, self._max_rows))
            self._frequency_T = _enlarge(self._frequency_T, room)
            self._count_T = _enlarge(self._count_T, room)
            for segment in self._segments:
                segment.make_room(room)


class _SegmentStream:
    """The state of a stream over one segment, with tables of `rows` rows for terms."""

    def __init__(self, segment: SearchedSegment, common: CommonTerms, rows: int, k: int, partition: int) -> None:
        partitions = max(1, -(-segment.passages // partition))
        self._segment = segment
        self._common = common
        self._partition = partition
        self._postings = Postings.of(segment.arrays, common)
        self._terms = Terms(
            slices_TS=np.zeros((rows, partitions + 1), np.int64),
            points_TC=np.zeros((rows, len(segment.impact_C)), np.int32),
            words_T=np.zeros(rows, np.int64),
        )
        self._state = _state(segment.passages, partitions, k)

    def make_room(self, rows: int) -> None:
        """Make room for this many rows."""
        self._terms = Terms(*(_enlarge(table, rows) for table in self._terms))

    def learn(self, known: int, terms: NDArray[np.int64], idf: NDArray[np.float64]) -> None:
        """Fill the rows from `known` on with these terms of the segment; -1 for a term that it does not have."""
        segment, tables = self._segment, self._terms
        segment.arrays.check_terms(terms[terms >= 0], segment.passages)
        _learn(
            terms, known, segment.arrays.offsets, segment.arrays.passages, idf, segment.impact_C, self._common.row_V,
            self._common.present_MW.shape[1], self._partition, tables.slices_TS, tables.points_TC, tables.words_T,
        )  # fmt: skip

    def advance(
        self, queries: Queries, forbidden: Forbidden, heaps_QK: NDArray[np.int64], found_Q: NDArray[np.int64]
    ) -> None:
        """Offer the best passages of the segment to the heap of each query."""
        segment = self._segment
        advance_partitions(
            self._postings, self._terms, queries, self._state,
            forbidden.in_segment(segment.first_word, segment.passages), self._partition, segment.passages,
            segment.first, heaps_QK, found_Q,
        )  # fmt: skip


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
    offsets: NDArray[np.int64],
    passages: NDArray[np.int32],
    idf: NDArray[np.float64],
    impact_C: NDArray[np.float64],
    common_V: NDArray[np.int32],
    words: int,
    partition: int,
    slices_TS: NDArray[np.int64],
    points_TC: NDArray[np.int32],
    words_T: NDArray[np.int64],
) -> None:
    """Fill the rows of the tables from `known` on with new terms; the row of an absent term has no postings."""
    for place in range(len(terms)):
        term, row = terms[place], known + place
        words_T[row] = -1
        if term < 0:
            continue
        begin, end = offsets[term], offsets[term + 1]
        if common_V[term] >= 0:
            words_T[row] = np.int64(common_V[term]) * words
        fill_points(idf[place], impact_C, UNIT, points_TC[row])
        slices_TS[row, 0] = begin
        for number in range(1, slices_TS.shape[1]):
            begin += np.searchsorted(passages[begin:end], number * partition)
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


class CollectionLoader:
    """Makes the collection on first use; safe to use from several threads."""

    def __init__(self, segments: Sequence[SearchedSegment], lexicon: Lexicon) -> None:
        self._segments = segments
        self._lexicon = lexicon
        self._lock = Lock()
        self._collection: Collection | None = None
        self.background: BackgroundTask[Collection] = BackgroundTask(self._make_in_background)

    def collection(self) -> Collection:
        """The collection; the first call makes it by reading the postings of the commonest terms."""
        with self._lock:
            self._collection = self._collection or self._make(cores())
            return self._collection

    def _make(self, threads: int, before_each: Callable[[], None] | None = None) -> Collection:
        common = [
            find_common_terms(segment, partial(self._idf, place), threads, before_each)
            for place, segment in enumerate(self._segments)
        ]
        return Collection(self._lexicon, self._segments, common)

    def _idf(self, place: int, terms: NDArray[np.int64]) -> NDArray[np.float64]:
        """The idf in the whole index of terms of a segment; infinite for terms that only removed passages have."""
        lexicon, arrays = self._lexicon, self._segments[place].arrays
        numbers = np.array([lexicon.number(term) for term in arrays.term_texts(terms)], np.int64)
        if (lexicon.terms_SV[place, numbers[numbers >= 0]] != terms[numbers >= 0]).any():
            raise DamagedFolderError(
                f"{arrays.folder} is damaged: vocabulary.npy is not sorted; build the index again."
            )
        return np.where(numbers >= 0, lexicon.idf_V[numbers], np.inf)

    def _make_in_background(self, check_stop: Callable[[], None]) -> Collection:
        """Make it with one thread, and load the kernels of lookups, so that no query waits for them."""
        with self._lock:
            self._collection = self._collection or self._make(1, check_stop)
        search_lookups(self._collection, SearchBatch.of([[]], 1, None))
        return self._collection


def search_streams(collection: Collection, batch: SearchBatch, threads: int) -> None:
    """Fill in the hits of queries, which the collection must support, with this many threads."""
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
