"""Retrieval that never finds certain passages, and which passages belong to certain titles or documents."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ralm.corpus.decontamination import normal_title
from ralm.corpus.store import PassageStore
from ralm.protocols import Retriever
from ralm.records import NO_PASSAGE, Hits, IntArray
from ralm.retrieval.bm25.forbidden import Forbidden
from ralm.retrieval.bm25.search import BM25

_HITS_AT_A_TIME: Final = 1 << 22


def passages_of(passages: PassageStore, titles: Iterable[str] = (), document_ids: Iterable[str] = ()) -> IntArray:
    """The numbers (int64, rising) of the passages of documents with one of these titles or ids.

    Titles are compared as `normal_title` writes them, ids as they are.
    """
    wanted_titles, wanted_ids = {normal_title(title) for title in titles} - {""}, set(document_ids)
    found = []
    for number, document_id, title in passages.origins():
        if document_id in wanted_ids or (wanted_titles and normal_title(title) in wanted_titles):
            found.append(number)
    return np.array(found, dtype=np.int64)


class WithoutPassages:
    """BM25 that never finds the passages with these numbers: the best of the others, exactly."""

    def __init__(self, bm25: BM25, numbers: Iterable[int]) -> None:
        self._bm25 = bm25
        self._forbidden = Forbidden.to_all(numbers, 0)

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """The k best other passages for each query."""
        return self._bm25.retrieve(queries, k, self._forbidden._replace(list_Q=np.zeros(len(queries), np.int64)))


class Overfetching:
    """Any retriever, asked for so many more hits that k are left without the passages with these numbers."""

    def __init__(self, retriever: Retriever, numbers: IntArray) -> None:
        self._retriever = retriever
        self._numbers = numbers

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """The k best other passages for each query, as far as the retriever ranks them."""
        asked = k + len(self._numbers)
        step = max(1, _HITS_AT_A_TIME // asked)
        parts = [
            self._without(self._retriever.retrieve(queries[i : i + step], asked), k)
            for i in range(0, len(queries), step)
        ]
        if not parts:
            return self._retriever.retrieve(queries, k)
        return Hits(
            numbers_QK=np.concatenate([part.numbers_QK for part in parts]),
            scores_QK=np.concatenate([part.scores_QK for part in parts]),
        )

    def _without(self, hits: Hits, k: int) -> Hits:
        forbidden_QK = np.isin(hits.numbers_QK, self._numbers)
        order = np.argsort(forbidden_QK, axis=1, kind="stable")[:, :k]
        numbers_QK = np.take_along_axis(np.where(forbidden_QK, NO_PASSAGE, hits.numbers_QK), order, axis=1)
        scores_QK = np.take_along_axis(np.where(forbidden_QK, 0, hits.scores_QK), order, axis=1)
        return Hits(numbers_QK=numbers_QK, scores_QK=scores_QK.astype(np.float32))
