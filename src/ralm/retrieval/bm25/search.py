"""BM25 search: the exact best passages for queries, every posting of their terms read once.

Passages are scored in partitions whose accumulators stay in cache. Scores are fixed-point integers; equal scores are
ordered by passage number. Queries are spread over the cores: the kernel holds no lock.
"""

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numba as nb
import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.records import NO_PASSAGE, Hits
from ralm.retrieval.analysis import Analyser
from ralm.retrieval.bm25.arrays import Arrays
from ralm.retrieval.bm25.formula import FRACTION_BITS, BM25Options, idf, impact

PARTITION: Final = 1 << 17
"""Passages scored at a time: 512 KiB of accumulators."""
_BLOCK: Final = 512
_HIGHEST_SCORE: Final = 1 << 31


class BM25:
    """A retriever over the arrays of an index of `passages` passages; safe to use from several threads."""

    def __init__(self, arrays: Arrays, passages: int, options: BM25Options | None = None) -> None:
        self._arrays = arrays
        self._passages = passages
        self._options = options or BM25Options()
        tokens, self._with_terms = (int(total) for total in arrays.totals)
        frequency, length = arrays.code_table.astype(np.int64).T
        average = tokens / max(self._with_terms, 1)
        self._impact_C = impact(frequency, length, average, self._options)

    @property
    def config(self) -> dict[str, JsonValue]:
        """The constants of the formula."""
        return {"k1": self._options.k1, "b": self._options.b}

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """The k best passages for each query: those that share a term with it, the best first."""
        numbers_QK = np.full((len(queries), k), NO_PASSAGE, dtype=np.int64)
        scores_QK = np.zeros((len(queries), k), dtype=np.float32)
        analyse = Analyser()
        terms = [self._terms(analyse(query)) for query in queries]

        def answer(row: int) -> None:
            numbers_QK[row], scores_QK[row] = self._search(*terms[row], k)

        with ThreadPoolExecutor(max_workers=_cores()) as pool:
            for _ in pool.map(answer, range(len(queries))):
                pass
        return Hits(numbers_QK=numbers_QK, scores_QK=scores_QK)

    def _terms(self, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The distinct terms of a query that some passage has, as rows of the index, and how often each stands."""
        counts = Counter(row for word in words if (row := self._arrays.term(word)) >= 0)
        return np.array(list(counts), np.int64), np.array(list(counts.values()), np.int64)

    def _search(
        self, terms: NDArray[np.int64], counts: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Passage numbers and scores of one query, padded to k."""
        weights_TC, unit = self._weights(terms, counts)
        numbers, scores = np.full(k, NO_PASSAGE, np.int64), np.zeros(k, np.int64)
        arrays = self._arrays
        begins, ends = arrays.offsets[terms], arrays.offsets[terms + 1]
        _scan(begins, ends, weights_TC, arrays.passages, arrays.codes, self._passages, numbers, scores)
        return numbers, (scores * unit).astype(np.float32)

    def _weights(self, terms: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int32], float]:
        """What each term adds for each code (int32, fixed-point), and the value of one unit.

        Units grow by powers of two where a query is so long that its scores could not be held in 31 bits.
        """
        frequency = self._arrays.offsets[terms + 1] - self._arrays.offsets[terms]
        weight_T = idf(frequency, self._with_terms) * counts
        bits = FRACTION_BITS
        while bits > 0 and weight_T.sum() * 2**bits + len(terms) >= _HIGHEST_SCORE:
            bits -= 1
        return np.rint(np.outer(weight_T, self._impact_C) * 2**bits).astype(np.int32), 2.0**-bits


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@nb.njit(cache=True, nogil=True)
def _scan(
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    weights_TC: NDArray[np.int32],
    passages: NDArray[np.int32],
    codes: NDArray[np.unsignedinteger[Any]],
    count: int,
    numbers: NDArray[np.int64],
    scores: NDArray[np.int64],
) -> None:
    """Fill `numbers` and `scores` with the best passages, the best first; what is not filled stays as it was."""
    found = 0
    at = begins.copy()
    accumulators = np.zeros(min(PARTITION, count), np.int32)
    for base in range(0, count, PARTITION):
        size = min(PARTITION, count - base)
        accumulators[:size] = 0
        for term in range(len(begins)):
            i = at[term]
            while i < ends[term] and passages[i] < base + size:
                accumulators[passages[i] - base] += weights_TC[term, codes[i]]
                i += 1
            at[term] = i
        for block in range(0, size, _BLOCK):
            stop = min(block + _BLOCK, size)
            highest = np.int32(0)
            for j in range(block, stop):
                highest = max(highest, accumulators[j])
            least = scores[-1] if found == len(scores) else 0
            if highest > least:
                for j in range(block, stop):
                    if accumulators[j] > (scores[-1] if found == len(scores) else 0):
                        found = _insert(numbers, scores, found, base + j, accumulators[j])


@nb.njit(cache=True, nogil=True, inline="always")
def _insert(numbers: NDArray[np.int64], scores: NDArray[np.int64], found: int, number: int, score: int) -> int:
    """Put a passage in its place among the best; passages come by rising number, so equals stay before it."""
    place = min(found, len(scores) - 1)
    while place > 0 and scores[place - 1] < score:
        scores[place] = scores[place - 1]
        numbers[place] = numbers[place - 1]
        place -= 1
    scores[place] = score
    numbers[place] = number
    return min(found + 1, len(scores))
