"""Retrieval that never finds certain passages, and which passages belong to certain titles or documents."""

from collections.abc import Iterable, Sequence

import numpy as np
from pydantic import JsonValue

from ralm.corpus.decontamination import normal_title
from ralm.corpus.store import PassageStore
from ralm.records import Hits, IntArray
from ralm.retrieval.arguments import forbidden_config
from ralm.retrieval.bm25.forbidden import Forbidden
from ralm.retrieval.bm25.search import BM25


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
        self.stable = bm25.stable

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything that decides the hits: those of BM25, and which passages are forbidden."""
        return self._bm25.config | forbidden_config(self._forbidden.passages)

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """The k best other passages for each query."""
        return self._bm25.retrieve(queries, k, self._forbidden._replace(list_Q=np.zeros(len(queries), np.int64)))
