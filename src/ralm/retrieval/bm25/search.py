"""BM25 search: the exact best passages for queries, by the faster of two ways.

    streams   for queries of one call that follow one another (`ralm.retrieval.bm25.stream`)
    lookups   for all others (`ralm.retrieval.bm25.lookup`)

Both sum the same fixed-point integers, and equal scores are ordered by passage number, so both give the same hits. The
kernels release Python's lock, so queries are spread over the cores.

Letters of shapes: Q queries, K hits per query, N passages.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import lru_cache, partial
from typing import Final, Self

import numpy as np
from pydantic import JsonValue

from ralm.records import BoolArray, Hits
from ralm.retrieval.allowed import mask_config
from ralm.retrieval.analysis import ENGLISH, Analyser, Analysis
from ralm.retrieval.bm25 import kernels, lookup, stream
from ralm.retrieval.bm25.arrays import Arrays
from ralm.retrieval.bm25.collection import (
    EVERY,
    SCORE_STEPS,
    Collection,
    Layout,
    MaskBits,
    Postings,
    SearchBatch,
    WeightedQueries,
)
from ralm.retrieval.bm25.formula import BM25Options, cores, impact
from ralm.validation import check_count, check_strings

_WORDS: Final = 1 << 17
"""Words whose terms are remembered."""
_QUERIES_A_TASK: Final = 16
_QUERIES_A_PIECE: Final = 256
"""Queries that a stream takes through its partitions together."""
STREAM_QUERIES: Final = 64
"""Fewer queries are not worth a stream of their own, since the first query of a stream has to add all its terms."""
STREAM_OVERLAP: Final = 0.5
"""The share of a query's terms that must occur in the query before."""
_PAIRS: Final = 64
"""How many queries of a batch are compared with the one before."""
_MAX_STEPS: Final = 21_000
"""The bound of a query, in steps: a third of what 16 bits hold, since bounds grow while terms change."""
PASSAGES_A_HIT: Final = 500
"""If more than one in this many passages is requested, bounds leave too few passages out."""


class BM25:
    """A retriever over the arrays of an index; safe to use from several threads.

    The postings of a term are checked on first use.

    Args:
        arrays: Arrays of the index.
        passages: How many passages the index has.
        options: Constants of the formula.
        analysis: How queries become terms, which must be how the passages did.
        fingerprint: A hash that identifies the index.

    Raises:
        DamagedFolderError: If the arrays do not fit the passages.
        CorpusError: If there are more passages than a hit can name.
    """

    def __init__(
        self,
        arrays: Arrays,
        passages: int,
        options: BM25Options | None = None,
        *,
        analysis: Analysis = ENGLISH,
        fingerprint: str = "",
    ) -> None:
        kernels.check_passage_count(passages)
        arrays.check_totals(passages)
        self._arrays = arrays
        self._passages = passages
        self._options = options or BM25Options()
        self._analysis = analysis
        self._fingerprint = fingerprint
        self._term = lru_cache(_WORDS)(arrays.term)
        tokens, with_terms = arrays.totals.tolist()
        frequency, length = arrays.code_table.astype(np.int64).T
        impact_C = impact(np.maximum(frequency, 1), length, tokens / max(with_terms, 1), self._options)
        impact_C[frequency == 0] = 0
        self._plain = Collection(arrays, passages, impact_C, Postings.of(arrays))
        self._layout = Layout(self._plain)
        self._mask_N: BoolArray | None = None
        self._mask = EVERY

    def only(self, mask_N: BoolArray) -> Self:
        """Return the same retriever with only the passages of a mask, and the scores of the whole index."""
        other = copy(self)
        other._mask_N = mask_N if self._mask_N is None else self._mask_N & mask_N
        other._mask = MaskBits.of(other._mask_N)
        return other

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return everything that decides the hits: index, analysis, constants, and which passages may be found."""
        return {
            "retriever": "bm25",
            "fingerprint": self._fingerprint,
            "analysis": self._analysis.recorded,
            "k1": self._options.k1,
            "b": self._options.b,
            **mask_config(self._mask_N),
        }

    @property
    def stable(self) -> int:
        """Return the number of passages: however many hits are asked for, the first of them are the same."""
        return self._passages

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """Return the k best passages for each query: those that share a term with it, best first."""
        check_strings("queries", queries)
        analyse = Analyser(self._analysis)
        return self.retrieve_terms([self.terms(analyse(query)) for query in queries], k)

    def terms(self, words: Sequence[str]) -> list[int]:
        """Return the numbers of the analysed words that occur in some passage, repeats included."""
        return [number for number in map(self._term, words) if number >= 0]

    def frequency(self, word: str) -> int | None:
        """Return how many passages have a word, by its rarest term; None if it has no terms, as a stop word."""
        numbers = [self._term(term) for term in Analyser(self._analysis)(word)]
        if not numbers or -1 in numbers:
            return 0 if numbers else None
        return int(self._plain.frequency(np.array(numbers)).min())

    def retrieve_terms(self, queries: Sequence[Sequence[int]], k: int) -> Hits:
        """Return the hits of queries given as term numbers."""
        check_count("k", k)
        batch = self._batch(queries, min(k, max(self._passages, 1)))
        count, k = batch.heaps_QK.shape
        suits = k * PASSAGES_A_HIT <= self._passages
        collection = self._layout.collection_for(batch.queries) if suits else self._plain
        if (
            collection.is_laid_out
            and count >= STREAM_QUERIES
            and follow_each_other(batch.queries)
            and has_room_for(batch.queries)
        ):
            search_streams(collection, batch, max(1, min(cores(), count // STREAM_QUERIES)))
            return batch.hits()
        if count <= _QUERIES_A_TASK:
            lookup.search_lookups(collection, batch)
        else:
            parts = [batch.part(first, first + _QUERIES_A_TASK) for first in range(0, count, _QUERIES_A_TASK)]
            with ThreadPoolExecutor(max_workers=min(cores(), len(parts))) as pool:
                list(pool.map(partial(lookup.search_lookups, collection), parts))
        return batch.hits()

    def _batch(self, queries: Sequence[Sequence[int]], k: int) -> SearchBatch:
        """Return queries whose hits are to be found, only among the passages of the mask."""
        return SearchBatch.of(self._plain.weighted(queries), k, self._mask)

    @property
    def collection(self) -> Collection:
        """Return the index with the layout of its common terms; the first call reads their postings."""
        return self._layout.collection()


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


def search_streams(collection: Collection, batch: SearchBatch, threads: int) -> None:
    """Fill in the hits of queries, for which streams must have room, with a stream for each of so many threads."""
    count, k = batch.heaps_QK.shape
    borders = [count * thread // threads for thread in range(threads + 1)]

    def search(begin: int, end: int) -> None:
        searcher = stream.Stream(collection, k)
        for first in range(begin, end, _QUERIES_A_PIECE):
            searcher.fill(batch.part(first, min(first + _QUERIES_A_PIECE, end)))

    if threads == 1:
        search(0, count)
    else:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            list(pool.map(search, borders[:-1], borders[1:]))
