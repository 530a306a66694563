"""BM25 search: the exact best passages for queries, by the fastest of three ways.

    streams   for queries of one call that follow one another (`ralm.retrieval.bm25.stream`)
    lookups   for others with common words, once the layout of these words is ready (`ralm.retrieval.bm25.lookup`)
    scans     for all others: every posting of the terms is read once (`ralm.retrieval.bm25.scan`)

All sum the same fixed-point integers, and equal scores are ordered by passage number, so all give the same hits. The
kernels release Python's lock, so queries are spread over the cores.

Letters of shapes: Q queries, K hits per query.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import fields
from functools import cached_property, partial
from itertools import accumulate, chain
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.records import BoolArray, Hits
from ralm.retrieval.allowed import mask_config
from ralm.retrieval.analysis import ENGLISH, Analyser, Analysis
from ralm.retrieval.bm25.collection import (
    COMMON_SHARE,
    PARTITION,
    Collection,
    Lexicon,
    SearchedSegment,
)
from ralm.retrieval.bm25.formula import BM25Options, cores, impact
from ralm.retrieval.bm25.kernels import check_passage_count, drain_heaps
from ralm.retrieval.bm25.lookup import search_lookups
from ralm.retrieval.bm25.scan import (
    WORD_ROWS,
    Forbidden,
    PassingRows,
    SearchBatch,
    scan,
    units,
    weighted,
)
from ralm.retrieval.bm25.segments import Segment, numbering_of, totals_of
from ralm.retrieval.bm25.stream import CollectionLoader, follow_each_other, search_streams
from ralm.validation import check_count

_QUERIES_A_TASK: Final = 16
STREAM_PASSAGES: Final = 1 << 15
"""With fewer passages a scan takes less than 0.05 ms, while compiling streams on a new machine takes some seconds."""
STREAM_QUERIES: Final = 64
"""So many queries of one call wait for the layout of the common words; fewer are not worth a stream of their own, since
the first query of a stream has to add all its terms."""
BATCH_QUERIES: Final = 8
"""So many queries of one call begin the layout in the background."""
SINGLE_QUERIES: Final = 64
"""So many queries of smaller calls begin it too."""
COMMON_POSTINGS: Final = 0.5
"""The share of the postings of a call that must be of common words."""
_PASSAGES_A_HIT: Final = 100
"""If more than one in this many passages is requested, a scan is as fast."""


class BM25:
    """A retriever over the segments of an index; safe to use from several threads.

    `analysis`: how queries become terms, which must be how the passages did. `fingerprint`: a hash that identifies the
    index; without one the arrays are hashed when `config` is read. `partition`: how many passages are scanned at a
    time, which does not affect the hits.

    Raises DamagedFolderError if the arrays of a segment do not fit its passages, CorpusError if there are more passages
    than a hit can name. The postings of a term are checked on first use.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        options: BM25Options | None = None,
        *,
        analysis: Analysis = ENGLISH,
        fingerprint: str | None = None,
        partition: int = PARTITION,
    ) -> None:
        check_passage_count(sum(one.passages for one in segments))
        for segment in segments:
            segment.check()
        self._segments = segments
        self._analysis = analysis
        self._known_fingerprint = fingerprint
        self._numbering = numbering_of(segments)
        self._passages = len(self._numbering)
        self._options = options or BM25Options()
        self._partition = partition
        totals = totals_of(segments)
        self._sizes = [one.passages for one in segments]
        firsts = accumulate(self._sizes, initial=0)
        words = accumulate((-(-size // WORD_ROWS) for size in self._sizes), initial=0)
        self._searched = [
            SearchedSegment(one.arrays, one.passages, first, _impacts(one, totals.average_length, self._options), word)
            for one, first, word in zip(segments, firsts, words, strict=False)
        ]
        self._lexicon = Lexicon(segments, totals.with_terms)
        self._loader = CollectionLoader(self._searched, self._lexicon)
        self._single = 0
        self._mask_N: BoolArray | None = None
        self._passing_rows = self._rows_of(None) if len(self._numbering.removed) else None

    def only(self, mask_N: BoolArray) -> Self:
        """Return the same retriever with only the passages of a mask, and the scores of the whole index."""
        other = copy(self)
        other._mask_N = mask_N if self._mask_N is None else self._mask_N & mask_N
        other._passing_rows = self._rows_of(other._mask_N)
        return other

    def _rows_of(self, mask_N: BoolArray | None) -> PassingRows:
        return PassingRows.of(self._numbering.rows_of_mask(mask_N), self._sizes)

    @property
    def collection(self) -> Collection:
        """The data that streams and lookups share; the first call reads the postings of the commonest terms."""
        return self._loader.collection()

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything that decides the hits: the index, the analysis of queries, the constants of the formula,
        and which passages may be found."""
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
        """The number of passages: however many hits are asked for, the first of them are the same."""
        return self._passages

    @cached_property
    def _fingerprint(self) -> str:
        return self._known_fingerprint or _digest(self._segments)

    def retrieve(self, queries: Sequence[str], k: int, forbidden: Forbidden | None = None) -> Hits:
        """The k best passages for each query: those that share a term with it and are not forbidden, best first.

        There are at most as many columns as passages. Raises UsageError if k is below 1.
        """
        return self.retrieve_terms(self._terms_of(queries), k, forbidden)

    def _terms_of(self, queries: Sequence[str]) -> list[list[int]]:
        return [self.terms(query) for query in map(Analyser(self._analysis), queries)]

    def terms(self, words: Sequence[str]) -> list[int]:
        """The numbers of the analysed words that occur in some passage, repeats included."""
        return [number for word in words if (number := self._lexicon.number(word)) >= 0]

    def frequency(self, word: str) -> int | None:
        """In how many passages a word occurs, by its rarest term; None if it has no terms, as a stop word."""
        terms = Analyser(self._analysis)(word)
        numbers = [self._lexicon.number(term) for term in terms]
        return min((int(self._lexicon.frequency_V[one]) if one >= 0 else 0 for one in numbers), default=None)

    def retrieve_terms(self, queries: Sequence[Sequence[int]], k: int, forbidden: Forbidden | None = None) -> Hits:
        """The hits of queries given as term numbers."""
        check_count("k", k)
        batch = SearchBatch.of(queries, min(k, max(self._passages, 1)), self._in_rows(len(queries), forbidden))
        self._fill(batch)
        return Hits(self._numbering.numbers(batch.numbers_QK), batch.scores_QK)

    def _in_rows(self, queries: int, forbidden: Forbidden | None) -> Forbidden:
        """The rows that must not be hits, of all queries and of each."""
        rows = Forbidden.none(queries) if forbidden is None else forbidden.in_rows(self._numbering)
        return rows.within(self._passing_rows)

    def _fill(self, batch: SearchBatch) -> None:
        """Fill in the hits of queries, as rows, in the fastest way."""
        count, k = batch.numbers_QK.shape
        suits = self._passages >= STREAM_PASSAGES and k * _PASSAGES_A_HIT <= self._passages
        follow = count >= STREAM_QUERIES and follow_each_other(batch.queries)
        collection = self._collection_for(batch.queries, follow=follow) if suits else None
        if collection is not None and not collection.supports(batch.queries):
            collection = None
        if collection is not None and follow:
            search_streams(collection, batch, max(1, min(cores(), count // STREAM_QUERIES)))
            return
        fill = self._scan if collection is None else partial(search_lookups, collection)
        parts = [batch.part(first, first + _QUERIES_A_TASK) for first in range(0, count, _QUERIES_A_TASK)]
        if len(parts) == 1:
            fill(parts[0])
        elif parts:
            with ThreadPoolExecutor(max_workers=min(cores(), len(parts))) as pool:
                list(pool.map(fill, parts))

    def _collection_for(self, queries: Sequence[Sequence[int]], *, follow: bool) -> Collection | None:
        """The layout of the common words, if it makes a call faster than scans; few queries do not wait for it."""
        terms = np.fromiter(chain.from_iterable(queries), np.int64)
        frequency = self._lexicon.frequency_V[terms].astype(np.float64)
        common = frequency[frequency * COMMON_SHARE >= self._passages].sum() >= COMMON_POSTINGS * frequency.sum()
        if not common and not follow:
            return None
        if len(queries) >= STREAM_QUERIES:
            return self.collection
        self._single += 1
        waits = len(queries) < BATCH_QUERIES and self._single < SINGLE_QUERIES
        return None if waits and not self._loader.background.is_started else self._loader.background.ready()

    def _scan(self, batch: SearchBatch) -> None:
        """Fill in the hits of queries by a scan."""
        terms, queries = weighted(batch.queries, self._lexicon.frequency_V, self._lexicon.idf_V)
        heaps_QK = np.zeros(batch.numbers_QK.shape, np.int64)
        found_Q = np.zeros(len(batch.queries), np.int64)
        for place, one in enumerate(self._searched):
            begins, stops = one.postings_of(self._lexicon.terms_SV[place, terms])
            scan(
                queries, begins, stops, one.impact_C, one.arrays.passages, one.arrays.posting_codes, one.passages,
                one.first, self._partition, batch.forbidden.in_segment(one.first_word, one.passages), heaps_QK, found_Q,
            )  # fmt: skip
        drain_heaps(heaps_QK, found_Q, batch.numbers_QK, batch.scores_QK, units(queries))


def _impacts(segment: Segment, average_length: float, options: BM25Options) -> NDArray[np.float64]:
    """The impact of each row of a segment's code table."""
    frequency, length = segment.arrays.code_table.astype(np.int64).T
    return np.where(frequency > 0, impact(np.maximum(frequency, 1), length, average_length, options), 0)


def _digest(segments: Sequence[Segment]) -> str:
    """A short hash of all arrays and of the removed passages; reads the arrays in full."""
    digest = hashlib.sha256()
    for part in (part for segment in segments for part in (segment.arrays, segment.removed)):
        for field in fields(part):
            array = getattr(part, field.name)
            if isinstance(array, np.ndarray):
                digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]
