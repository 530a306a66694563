"""BM25 search: the exact best passages for queries, the better of two ways chosen by what is asked.

Queries that overlap from one to the next, over many passages, go through streams (`ralm.retrieval.bm25.stream`). For
all others every posting of their terms is read once, with passages scored in partitions whose accumulators stay in
cache.
Both sum the same fixed-point integers, and equal scores are ordered by passage number, so both give the same hits.
Queries are spread over the cores, some at a time: the kernels hold no lock.

Letters of shapes: Q queries, K hits a query, T distinct terms of a query, C rows of the code table.
"""

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numba as nb
import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.records import NO_PASSAGE, Hits
from ralm.retrieval.analysis import Analyser
from ralm.retrieval.bm25.arrays import Arrays
from ralm.retrieval.bm25.common_terms import find_common_terms
from ralm.retrieval.bm25.formula import FRACTION_BITS, BM25Options, idf, impact
from ralm.retrieval.bm25.stream import Collection, Stream

PARTITION: Final = 1 << 17
"""Passages scored at a time: 512 KiB of accumulators."""
_BLOCK: Final = 512
_NUMBER_BITS: Final = 31
_HIGHEST: Final = (1 << 31) - 1
_QUERIES_A_TASK: Final = 16

STREAM_PASSAGES: Final = 1 << 15
"""Below so many passages reading all postings is as fast as a stream."""
STREAM_QUERIES: Final = 64
"""Fewer queries than this are not worth a stream: the first of each pays for all its terms."""
STREAM_OVERLAP: Final = 0.5
"""The share of a query's terms that have to stand in the query before."""
_STREAM_HITS: Final = 128


class BM25:
    """A retriever over the arrays of an index of `passages` passages; safe to use from several threads.

    `partition`: how many passages are scored at a time; any number gives the same hits.
    """

    def __init__(
        self, arrays: Arrays, passages: int, options: BM25Options | None = None, *, partition: int = PARTITION
    ) -> None:
        self._arrays = arrays
        self._passages = passages
        self._options = options or BM25Options()
        self._partition = min(partition, passages)
        tokens, self._with_terms = (int(total) for total in arrays.totals)
        frequency, length = arrays.code_table.astype(np.int64).T
        average = tokens / max(self._with_terms, 1)
        self._impact_C = impact(frequency, length, average, self._options)

    @cached_property
    def collection(self) -> Collection:
        """What streams over this index share; made when first asked for, by reading the commonest terms' postings."""
        idf_V = idf(np.diff(self._arrays.offsets), self._with_terms)
        common = find_common_terms(self._arrays, self._passages, idf_V, self._impact_C)
        return Collection(self._arrays, self._passages, idf_V, self._impact_C, common)

    @property
    def config(self) -> dict[str, JsonValue]:
        """The constants of the formula."""
        return {"k1": self._options.k1, "b": self._options.b}

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """The k best passages for each query: those that share a term with it, the best first."""
        analyse = Analyser()
        return self.retrieve_terms([self.terms(analyse(query)) for query in queries], k)

    def terms(self, words: Sequence[str]) -> list[int]:
        """The numbers of those analysed words that some passage has, repeats included."""
        return [row for word in words if (row := self._arrays.term(word)) >= 0]

    def retrieve_terms(self, queries: Sequence[Sequence[int]], k: int) -> Hits:
        """The same for queries whose terms were looked up before."""
        numbers_QK = np.full((len(queries), k), NO_PASSAGE, dtype=np.int64)
        scores_QK = np.zeros((len(queries), k), dtype=np.float32)
        streams = self._suits_streams(queries, k)
        size = max(STREAM_QUERIES, -(-len(queries) // _cores())) if streams else _QUERIES_A_TASK
        answer = self._stream if streams else self._scan

        def work(first: int) -> None:
            some = slice(first, first + size)
            answer(queries[some], numbers_QK[some], scores_QK[some])

        tasks = range(0, len(queries), size)
        if len(tasks) == 1:
            work(0)
        elif tasks:
            with ThreadPoolExecutor(max_workers=min(_cores(), len(tasks))) as pool:
                list(pool.map(work, tasks))
        return Hits(numbers_QK=numbers_QK, scores_QK=scores_QK)

    def _suits_streams(self, queries: Sequence[Sequence[int]], k: int) -> bool:
        """Whether there are many queries over many passages, most of whose terms stand in the query before."""
        if self._passages < STREAM_PASSAGES or len(queries) < STREAM_QUERIES or not 0 < k <= _STREAM_HITS:
            return False
        shared = sum(len(set(one) & set(other)) for one, other in pairwise(queries))
        if shared < STREAM_OVERLAP * sum(len(set(query)) for query in queries):
            return False
        return all(map(self.collection.bears, queries))

    def _stream(
        self, queries: Sequence[Sequence[int]], numbers_QK: NDArray[np.int64], scores_QK: NDArray[np.float32]
    ) -> None:
        """Fill in the hits of queries that follow each other."""
        numbers_QK[:], scores_QK[:] = Stream(self.collection, numbers_QK.shape[1]).search(queries)

    def _scan(
        self, queries: Sequence[Sequence[int]], numbers_QK: NDArray[np.int64], scores_QK: NDArray[np.float32]
    ) -> None:
        """Fill in the hits of some queries, their distinct terms laid end to end."""
        counters = [Counter(query) for query in queries]
        ends = np.cumsum([0] + [len(counter) for counter in counters])
        terms = np.array([term for counter in counters for term in counter], np.int64)
        counts = np.array([count for counter in counters for count in counter.values()], np.int64)
        begins, stops = self._arrays.offsets[terms], self._arrays.offsets[terms + 1]
        arrays = self._arrays
        _search(
            ends,
            begins,
            stops,
            idf(stops - begins, self._with_terms),
            counts,
            self._impact_C,
            arrays.passages,
            arrays.codes,
            self._passages,
            self._partition,
            numbers_QK,
            scores_QK,
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@nb.njit(cache=True, nogil=True)
def _search(
    ends: NDArray[np.int64],
    begins: NDArray[np.int64],
    stops: NDArray[np.int64],
    weights: NDArray[np.float64],
    counts: NDArray[np.int64],
    impact_C: NDArray[np.float64],
    passages: NDArray[np.int32],
    codes: NDArray[np.unsignedinteger[Any]],
    count: int,
    partition: int,
    numbers_QK: NDArray[np.int64],
    scores_QK: NDArray[np.float32],
) -> None:
    """Each query's best passages, the best first; what is not filled stays as it was.

    The terms of query q, with their postings, weights and counts, are those from `ends[q]` to `ends[q + 1]`.
    """
    accumulators = np.zeros(partition, np.int32)
    heap = np.zeros(numbers_QK.shape[1], np.int64)
    for query in range(len(ends) - 1):
        first, last = ends[query], ends[query + 1]
        points_TC, unit = _fixed_points(weights[first:last], counts[first:last], impact_C)
        at = begins[first:last].copy()
        found = 0
        for base in range(0, count, partition):
            size = min(partition, count - base)
            accumulators[:size] = 0
            for term in range(last - first):
                at[term] = _add(
                    passages, codes, at[term], stops[first + term], points_TC[term], base, size, accumulators
                )
            found = _collect(accumulators[:size], base, heap, found)
        for place in range(found):
            key = heap[0]
            _sift_down(heap[: found - place], heap[found - place - 1])
            numbers_QK[query, found - place - 1] = _HIGHEST - (key & _HIGHEST)
            scores_QK[query, found - place - 1] = (key >> _NUMBER_BITS) * unit


@nb.njit(cache=True, nogil=True)
def _fixed_points(
    weights: NDArray[np.float64], counts: NDArray[np.int64], impact_C: NDArray[np.float64]
) -> tuple[NDArray[np.int32], float]:
    """What each term adds for each code (int32, at least 1: a passage that shares a term is a hit), and the unit.

    Units grow by powers of two where a query is so long that its scores could not be held in 31 bits.
    """
    unit = 2.0**-FRACTION_BITS
    while unit < 1 and (weights * counts).sum() / unit + counts.sum() >= _HIGHEST:
        unit *= 2
    points_TC = np.empty((len(weights), len(impact_C)), np.int32)
    for term in range(len(weights)):
        for code in range(len(impact_C)):
            points_TC[term, code] = max(1, np.rint(weights[term] * impact_C[code] / unit)) * counts[term]
    return points_TC, unit


@nb.njit(cache=True, nogil=True, inline="always")
def _add(
    passages: NDArray[np.int32],
    codes: NDArray[np.unsignedinteger[Any]],
    posting: int,
    stop: int,
    points_C: NDArray[np.int32],
    base: int,
    size: int,
    accumulators: NDArray[np.int32],
) -> int:
    """Add a term's postings in a partition to its accumulators; the first posting beyond it."""
    while posting < stop and passages[posting] < base + size:
        accumulators[passages[posting] - base] += points_C[codes[posting]]
        posting += 1
    return posting


@nb.njit(cache=True, nogil=True)
def _collect(accumulators: NDArray[np.int32], base: int, heap: NDArray[np.int64], found: int) -> int:
    """Put the passages of a partition that are among the best into the heap; how many it then holds.

    A heap of keys, the worst on top: the score, and below it the passage number turned round, so that of equal scores
    the lower number is the better. Later passages have higher numbers, so they must score more than the worst.
    """
    for block in range(0, len(accumulators), _BLOCK):
        stop = min(block + _BLOCK, len(accumulators))
        highest = np.int32(0)
        for i in range(block, stop):
            highest = max(highest, accumulators[i])
        least = heap[0] >> _NUMBER_BITS if found == len(heap) else 0
        if highest <= least:
            continue
        for i in range(block, stop):
            if accumulators[i] > least:
                key = np.int64(accumulators[i]) << _NUMBER_BITS | (_HIGHEST - (base + i))
                if found == len(heap):
                    _sift_down(heap, key)
                else:
                    _sift_up(heap, found, key)
                    found += 1
                least = heap[0] >> _NUMBER_BITS if found == len(heap) else 0
    return found


@nb.njit(cache=True, nogil=True)
def _sift_up(heap: NDArray[np.int64], place: int, key: int) -> None:
    """Let a key that is added at `place` rise to where it belongs."""
    while place > 0 and heap[(place - 1) // 2] > key:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = key


@nb.njit(cache=True, nogil=True)
def _sift_down(heap: NDArray[np.int64], key: int) -> None:
    """Put a key in the place of the top and let it sink to where it belongs."""
    place = 0
    while 2 * place + 1 < len(heap):
        child = 2 * place + 1
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = key
