"""BM25 search: the exact best passages for queries, by whichever of three ways suits them.

    many queries that overlap    a stream on each core (`ralm.retrieval.bm25.stream`, `...parallel`)
    queries one call at a time   the stream of the text that they belong to, once there are many (`...online`)
    all others                   scans: every posting of the terms is read once (`ralm.retrieval.bm25.scan`)

All sum the same fixed-point integers, and equal scores are ordered by passage number, so all give the same hits. The
kernels release Python's lock, so queries are spread over the cores.

Letters of shapes: Q queries, K hits per query.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import fields
from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.records import Hits
from ralm.retrieval.analysis.analyser import Analyser, Analysis
from ralm.retrieval.analysis.named import ENGLISH
from ralm.retrieval.arguments import check_k, forbidden_config
from ralm.retrieval.bm25.arrays import Arrays
from ralm.retrieval.bm25.beside import Beside
from ralm.retrieval.bm25.collecting import Collecting
from ralm.retrieval.bm25.forbidden import Forbidden
from ralm.retrieval.bm25.formula import BM25Options, idf, impact
from ralm.retrieval.bm25.online import Online
from ralm.retrieval.bm25.options import cores
from ralm.retrieval.bm25.parallel import search_streams
from ralm.retrieval.bm25.scan import scan
from ralm.retrieval.bm25.stream import Collection

PARTITION: Final = 1 << 17
"""Passages scanned at a time: 512 KiB of sums."""
_QUERIES_A_TASK: Final = 16

STREAM_PASSAGES: Final = 1 << 15
"""With fewer passages a scan takes less than 0.05 ms, while compiling streams on a new machine takes some seconds."""
STREAM_QUERIES: Final = 64
"""Fewer queries than this are not worth a stream: the first query of each has to add all its terms."""
STREAM_OVERLAP: Final = 0.5
"""The share of a query's terms that must occur in the query before."""
_PAIRS: Final = 64
"""How many queries are compared with the one before to tell whether most overlap."""
_PASSAGES_A_HIT: Final = 100
"""If more than one in this many passages is asked for, a scan is as fast."""


class BM25:
    """A retriever over the arrays of an index of `passages` passages; safe to use from several threads.

    `analysis`: how queries become terms, which must be how the passages did. `fingerprint`: a hash that identifies the
    index; without one the arrays are hashed when `config` is read.
    `partition`: how many passages are scanned at a time; it does not affect the hits. Raises DamagedFolderError if the
    arrays do not fit this many passages. The postings of a term are checked on first use.
    """

    def __init__(
        self,
        arrays: Arrays,
        passages: int,
        options: BM25Options | None = None,
        *,
        analysis: Analysis = ENGLISH,
        fingerprint: str | None = None,
        partition: int = PARTITION,
    ) -> None:
        self._arrays = arrays
        self._analysis = analysis
        self._known_fingerprint = fingerprint
        self._passages = passages
        self._options = options or BM25Options()
        self._partition = min(partition, passages)
        arrays.check_totals(passages)
        tokens, self._with_terms = (int(total) for total in arrays.totals)
        frequency, length = arrays.code_table.astype(np.int64).T
        average = tokens / max(self._with_terms, 1)
        self._impact_C = np.where(frequency > 0, impact(np.maximum(frequency, 1), length, average, self._options), 0)
        self._collecting = Collecting(arrays, passages, self._with_terms, self._impact_C)
        self._online = Online(STREAM_OVERLAP, self.beside)
        self._without = Forbidden.to_all([], 0)

    def without(self, numbers: Iterable[int]) -> Self:
        """The same retriever without the passages with these numbers; it finds the exact best of the others."""
        other = copy(self)
        other._without = Forbidden.to_all(np.union1d(self._without.passages, np.fromiter(numbers, np.int64)), 0)
        return other

    @property
    def collection(self) -> Collection:
        """The data that streams over this index share; made on first use by reading the postings of the commonest
        terms."""
        return self._collecting.collection()

    @property
    def beside(self) -> Beside[Collection]:
        """The same data, made in a background thread."""
        return self._collecting.beside

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything that decides the hits: the index, the analysis of queries, the constants of the formula, and which
        passages are excluded."""
        config: dict[str, JsonValue] = {
            "retriever": "bm25",
            "fingerprint": self._fingerprint,
            "analysis": self._analysis.recorded,
            "k1": self._options.k1,
            "b": self._options.b,
        }
        left_out = self._without.passages
        return config if len(left_out) == 0 else config | forbidden_config(left_out)

    @property
    def stable(self) -> int:
        """The number of passages: however many hits are asked for, the first of them are the same."""
        return self._passages

    @cached_property
    def _fingerprint(self) -> str:
        return self._known_fingerprint or _digest(self._arrays)

    def retrieve(self, queries: Sequence[str], k: int, forbidden: Forbidden | None = None) -> Hits:
        """The k best passages for each query: those that share a term with it and are not forbidden, best first.

        There are at most as many columns as passages. Raises UsageError if k is below 1.
        """
        analyse = Analyser(self._analysis)
        return self.retrieve_terms([self.terms(analyse(query)) for query in queries], k, forbidden)

    def terms(self, words: Sequence[str]) -> list[int]:
        """The numbers of the analysed words that occur in some passage, repeats included."""
        return [row for word in words if (row := self._arrays.term(word)) >= 0]

    def retrieve_terms(self, queries: Sequence[Sequence[int]], k: int, forbidden: Forbidden | None = None) -> Hits:
        """The same for queries given as term numbers."""
        check_k(k)
        forbidden = self._forbidden(len(queries), forbidden)
        k = min(k, max(self._passages, 1))
        hits = Hits.none(len(queries), k)
        numbers_QK, scores_QK = hits.numbers_QK, hits.scores_QK
        suits = self._passages >= STREAM_PASSAGES and k * _PASSAGES_A_HIT <= self._passages
        many = len(queries) >= STREAM_QUERIES
        if suits and many and _overlap(queries) and self.collection.bears(queries):
            workers = max(1, min(cores(), len(queries) // STREAM_QUERIES))
            search_streams(self.collection, queries, forbidden, numbers_QK, scores_QK, workers)
            return hits
        answer = self._follow if suits and not many else self._scan

        def work(first: int) -> None:
            some = slice(first, first + _QUERIES_A_TASK)
            answer(queries[some], forbidden.some(some.start, some.stop), numbers_QK[some], scores_QK[some])

        tasks = range(0, len(queries), _QUERIES_A_TASK)
        if len(tasks) == 1:
            work(0)
        elif tasks:
            with ThreadPoolExecutor(max_workers=min(cores(), len(tasks))) as pool:
                list(pool.map(work, tasks))
        return hits

    def _forbidden(self, queries: int, forbidden: Forbidden | None) -> Forbidden:
        """What is forbidden for all queries, together with what is forbidden for each."""
        left_out = self._without.passages
        if forbidden is None:
            return self._without.to_each(queries) if len(left_out) else Forbidden.none(queries)
        return forbidden.also(left_out) if len(left_out) else forbidden

    def _follow(
        self,
        queries: Sequence[Sequence[int]],
        forbidden: Forbidden,
        numbers_QK: NDArray[np.int64],
        scores_QK: NDArray[np.float32],
    ) -> None:
        """Fill in the hits of queries that may follow those of earlier calls."""
        for row, query in enumerate(queries):
            one = slice(row, row + 1)
            with self._online.stream_of(query, numbers_QK.shape[1]) as stream:
                if stream is None:
                    self._scan([query], forbidden.some(row, row + 1), numbers_QK[one], scores_QK[one])
                else:
                    numbers_QK[one], scores_QK[one] = stream.search([query], forbidden.some(row, row + 1))

    def _scan(
        self,
        queries: Sequence[Sequence[int]],
        forbidden: Forbidden,
        numbers_QK: NDArray[np.int64],
        scores_QK: NDArray[np.float32],
    ) -> None:
        """Fill in the hits of some queries by a scan."""
        counters = [Counter(query) for query in queries]
        ends = np.cumsum([0] + [len(counter) for counter in counters])
        terms = np.array([term for counter in counters for term in counter], np.int64)
        counts = np.array([count for counter in counters for count in counter.values()], np.int64)
        arrays = self._arrays
        arrays.check_terms(terms, self._passages)
        begins, stops = arrays.offsets[terms], arrays.offsets[terms + 1]
        scan(
            ends, begins, stops, idf(stops - begins, self._with_terms), counts, self._impact_C, arrays.passages,
            arrays.posting_codes, self._passages, self._partition, forbidden, numbers_QK, scores_QK,
        )  # fmt: skip


def _digest(arrays: Arrays) -> str:
    """A short hash of all arrays; reads them in full."""
    digest = hashlib.sha256()
    for field in fields(arrays):
        array = getattr(arrays, field.name)
        if isinstance(array, np.ndarray):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def _overlap(queries: Sequence[Sequence[int]]) -> bool:
    """Whether most terms of the queries occur in the query before, judged by a sample."""
    some = [(set(queries[i - 1]), set(queries[i])) for i in range(1, len(queries), -(-len(queries) // _PAIRS))]
    shared = sum(len(before & query) for before, query in some)
    return shared >= STREAM_OVERLAP * sum(len(query) for _, query in some)
