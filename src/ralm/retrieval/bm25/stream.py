"""Stream search: exact BM25 for consecutive queries that overlap, such as those of strides.

Each query is computed from the one before (`stream_kernel`); the state for that is kept here, for every segment of the
index and all partitions of its passages. A batch of queries goes through one partition after the other, so that a
partition's sums stay in cache. Generation uses batches of one, since the next query is not known yet.

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
from numpy.typing import DTypeLike, NDArray

from ralm.errors import DamagedFolderError
from ralm.records import NO_PASSAGE
from ralm.retrieval.bm25.collection import (
    BLOCK_BITS,
    PARTITION,
    BackgroundTask,
    Collection,
    Lexicon,
    StreamSegment,
    find_common_terms,
)
from ralm.retrieval.bm25.formula import cores
from ralm.retrieval.bm25.kernels import UNIT, drain_heaps, fill_points, kernel
from ralm.retrieval.bm25.scan import Forbidden
from ralm.retrieval.bm25.segments import Segment
from ralm.retrieval.bm25.stream_kernel import ALIGNED, Postings, Queries, State, Terms, advance_partitions

BATCH: Final = 256
"""Queries that go through a partition together."""
_TABLE_NUMBERS: Final = 1 << 23
_FIRST_ROWS: Final = 1 << 12


class Stream:
    """Answers queries in order, each computed from the one before; for one thread at a time.

    `k`: hits per query. `partition`: passages at a time, a multiple of 1,024; it does not affect the hits.
    """

    def __init__(self, collection: Collection, k: int, partition: int = PARTITION) -> None:
        assert partition % ALIGNED == 0
        self._collection = collection
        self._k = k
        self._partition = partition
        self._begin()

    def _begin(self) -> None:
        """Reset: no known terms, and no query yet."""
        rows = max(1, min(_FIRST_ROWS, self._most_rows))
        self._known = 0
        self._row_V = np.full(0, -1, np.int32)
        self._frequency_T = np.zeros(rows, np.int64)
        self._standing_T = np.zeros(rows, np.int64)
        self._last = np.zeros(0, np.int64)
        self._parts = [_Advancing(part, rows, self._k, self._partition) for part in self._collection.parts]

    @property
    def _most_rows(self) -> int:
        return _TABLE_NUMBERS // self._collection.codes

    def search(
        self,
        queries: Sequence[Sequence[int]],
        forbidden: Forbidden | None = None,
        scores: DTypeLike = np.float32,
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The hits of queries given as term numbers, repeats included: rows of the index (int64) and scores (float32,
        or float64, which are exact), Q x K. What is forbidden is given as rows too.

        The collection must bear every query (`Collection.bears`).
        """
        numbers_QK = np.full((len(queries), self._k), NO_PASSAGE, np.int64)
        scores_QK = np.zeros((len(queries), self._k), scores)
        for first in range(0, len(queries), BATCH):
            some = slice(first, first + BATCH)
            of_some = (forbidden or Forbidden.none(len(queries))).for_queries(first, first + BATCH)
            self._search(queries[some], of_some, numbers_QK[some], scores_QK[some])
        return numbers_QK, scores_QK

    def _search(
        self,
        queries: Sequence[Sequence[int]],
        forbidden: Forbidden,
        numbers_QK: NDArray[np.int64],
        scores_QK: NDArray[Any],
    ) -> None:
        """Answer a batch."""
        sizes = [len(query) for query in queries]
        terms = np.fromiter(chain.from_iterable(queries), np.int64, sum(sizes))
        ends = np.zeros(len(queries) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        self._learn(terms)
        batch = Queries(*_differences(self._row_V[terms], ends, self._frequency_T, self._standing_T, self._last))
        self._last = batch.terms[batch.ends_W[-2] :]
        heaps_QK = np.zeros(numbers_QK.shape, np.int64)
        found_Q = np.zeros(len(queries), np.int64)
        for part in self._parts:
            part.advance(batch, forbidden, heaps_QK, found_Q)
        drain_heaps(heaps_QK, found_Q, numbers_QK, scores_QK, np.full(len(queries), UNIT))

    def _learn(self, terms: NDArray[np.int64]) -> None:
        """Give each new term a row of the tables; if they would become too large, reset everything first."""
        lexicon = self._collection.lexicon
        self._row_V = _longer(self._row_V, len(lexicon.idf_V), -1)
        unknown = self._row_V[terms] < 0
        if not unknown.any():
            return
        new = np.unique(terms[unknown])
        rows = self._known + len(new)
        if self._known and rows > max(len(self._standing_T), self._most_rows):
            self._begin()
            self._learn(terms)
        else:
            self._make_room(rows)
            self._row_V[new] = np.arange(self._known, rows)
            self._frequency_T[self._known : rows] = lexicon.frequency_V[new]
            for place, part in enumerate(self._parts):
                part.learn(self._known, lexicon.terms_SV[place, new], lexicon.idf_V[new])
            self._known = rows

    def _make_room(self, rows: int) -> None:
        """Enlarge the tables, if they have fewer rows than these."""
        room = len(self._standing_T)
        if rows > room:
            room = max(rows, min(2 * room, self._most_rows))
            self._frequency_T = _longer(self._frequency_T, room)
            self._standing_T = _longer(self._standing_T, room)
            for part in self._parts:
                part.make_room(room)


class _Advancing:
    """The state of a stream over one part of the index, with room for the terms of `rows` rows."""

    def __init__(self, part: StreamSegment, rows: int, k: int, partition: int) -> None:
        partitions = max(1, -(-part.passages // partition))
        self._part = part
        self._partition = partition
        common = part.common
        self._postings = Postings(
            part.arrays.passages,
            part.arrays.posting_codes,
            common.highest_MB.reshape(-1),
            common.present_MW.reshape(-1),
            common.before_MW.reshape(-1),
        )
        self._terms = Terms(
            slices_TS=np.zeros((rows, partitions + 1), np.int64),
            points_TC=np.zeros((rows, len(part.impact_C)), np.int32),
            words_T=np.zeros(rows, np.int64),
        )
        self._state = _state(part.passages, partitions, k)

    def make_room(self, rows: int) -> None:
        """Make room for this many rows."""
        self._terms = Terms(*(_longer(table, rows) for table in self._terms))

    def learn(self, known: int, terms: NDArray[np.int64], idf: NDArray[np.float64]) -> None:
        """Fill the rows from `known` on with these terms of the part (-1: it does not have the term)."""
        part, tables = self._part, self._terms
        part.arrays.check_terms(terms[terms >= 0], part.passages)
        _learn(
            terms, known, part.arrays.offsets, part.arrays.passages, idf, part.impact_C, part.common.row_V,
            part.common.present_MW.shape[1], self._partition, tables.slices_TS, tables.points_TC, tables.words_T,
        )  # fmt: skip

    def advance(
        self, batch: Queries, forbidden: Forbidden, heaps_QK: NDArray[np.int64], found_Q: NDArray[np.int64]
    ) -> None:
        """Answer a batch: offer the best passages of the part to the heap of each query."""
        part = self._part
        advance_partitions(
            self._postings, self._terms, batch, self._state, forbidden, self._partition, part.passages, part.ahead,
            heaps_QK, found_Q,
        )  # fmt: skip


def _longer(table: NDArray[Any], rows: int, fill: int = 0) -> NDArray[Any]:
    """A table with at least this many rows, the new ones filled with one value."""
    more = rows - len(table)
    return np.concatenate([table, np.full((more, *table.shape[1:]), fill, table.dtype)]) if more > 0 else table


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
    """Fill the rows of the tables from `known` on with new terms; the rows of absent ones have no postings."""
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
    standing_T: NDArray[np.int64],
    before: NDArray[np.int64],
) -> tuple[
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
]:
    """Queries as distinct terms with counts, rare terms first, and the changes from each query to the next, removals
    first.

    `before` holds the terms of the query before the first one. `standing_T` holds how often each term occurs in that
    query, and afterwards in the last one.
    """
    queries = len(ends) - 1
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
        before = terms[begin:n]
        standing_T[before] = counts[begin:n]
        wanted_T[before] = 0
        term_ends[query + 1], change_ends[query + 1] = n, m
    return term_ends, terms[:n], counts[:n], change_ends, changed[:m], changes[:m]


@kernel
def _distinct(
    rows: NDArray[np.int32],
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


@kernel
def _changes(
    rows: NDArray[np.int64],
    wanted_T: NDArray[np.int64],
    standing_T: NDArray[np.int64],
    changed: NDArray[np.int64],
    changes: NDArray[np.int64],
    m: int,
    sign: int,
) -> int:
    """Record the rows whose count rises (sign 1) or falls (-1)."""
    for row in rows:
        change = wanted_T[row] - standing_T[row]
        if change * sign > 0:
            changed[m], changes[m] = row, change
            m += 1
    return m


class CollectionLoader:
    """Makes the collection on first use; safe to use from several threads.

    `impacts`: for each segment, the impacts (float64) of its code table's rows. `ahead`: how many rows are before the
    first segment.
    """

    def __init__(
        self, segments: Sequence[Segment], lexicon: Lexicon, impacts: Sequence[NDArray[np.float64]], ahead: int = 0
    ) -> None:
        self._ahead = ahead
        self._segments = segments
        self._lexicon = lexicon
        self._impacts = impacts
        self._lock = Lock()
        self._collection: Collection | None = None
        self.beside: BackgroundTask[Collection] = BackgroundTask(self._make_beside)

    def collection(self) -> Collection:
        """The collection; the first call makes it by reading the postings of the commonest terms."""
        with self._lock:
            self._collection = self._collection or self._make(cores())
            return self._collection

    def _make(self, threads: int, before_each: Callable[[], None] | None = None) -> Collection:
        parts, ahead = [], self._ahead
        for place, (segment, impact_C) in enumerate(zip(self._segments, self._impacts, strict=True)):
            common = find_common_terms(
                segment.arrays, segment.passages, partial(self._idf, place), impact_C,
                threads, before_each,
            )  # fmt: skip
            parts.append(StreamSegment(segment.arrays, segment.passages, ahead, impact_C, common))
            ahead += segment.passages
        return Collection(self._lexicon, tuple(parts))

    def _idf(self, place: int, terms: NDArray[np.int64]) -> NDArray[np.float64]:
        """The idf in the whole index of terms of a segment; infinite for those that no passage has any more."""
        lexicon, arrays = self._lexicon, self._segments[place].arrays
        numbers = np.array([lexicon.number(term) for term in arrays.term_texts(terms)], np.int64)
        if (lexicon.terms_SV[place, numbers[numbers >= 0]] != terms[numbers >= 0]).any():
            raise DamagedFolderError(
                f"{arrays.folder} is damaged: vocabulary.npy is not sorted; build the index again."
            )
        return np.where(numbers >= 0, lexicon.idf_V[numbers], np.inf)

    def _make_beside(self, going_on: Callable[[], None]) -> Collection:
        """Make it with one thread, and load the kernels of streams, so that no query waits for them."""
        with self._lock:
            self._collection = self._collection or self._make(1, going_on)
        Stream(self._collection, 1).search([[]])
        return self._collection


def search_streams(
    collection: Collection,
    queries: Sequence[Sequence[int]],
    forbidden: Forbidden,
    numbers_QK: NDArray[np.int64],
    scores_QK: NDArray[Any],
    workers: int,
) -> None:
    """Fill in the hits of queries (term numbers), which the collection must bear, with this many threads."""
    runs = QueryRuns(len(queries), workers)

    def serve(worker: int) -> None:
        stream = Stream(collection, numbers_QK.shape[1])
        while some := runs.take(worker):
            part = slice(some.start, some.stop)
            numbers_QK[part], scores_QK[part] = stream.search(
                queries[part], forbidden.for_queries(some.start, some.stop), scores_QK.dtype
            )

    if workers == 1:
        serve(0)
    else:
        with ThreadPoolExecutor(max_workers=workers) as pool:
            list(pool.map(serve, range(workers)))


class QueryRuns:
    """The work left for each of some workers: one run each of the numbers below `count`."""

    def __init__(self, count: int, workers: int, step: int = BATCH) -> None:
        borders = [count * worker // workers for worker in range(workers + 1)]
        self._left = [range(begin, end) for begin, end in pairwise(borders)]
        self._step = step
        self._lock = Lock()

    def take(self, worker: int) -> range:
        """The next piece of a worker's own run, or of the second half of the longest run; empty when all is done."""
        with self._lock:
            if not self._left[worker]:
                longest = max(range(len(self._left)), key=lambda other: len(self._left[other]))
                left = self._left[longest]
                keeps = len(left) // 2 if len(left) > self._step else 0
                self._left[longest], self._left[worker] = left[:keeps], left[keeps:]
            own = self._left[worker]
            self._left[worker] = own[self._step :]
            return own[: self._step]
