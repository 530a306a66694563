"""Prepares what streams over one index share, once for all callers: at once, or in a background thread."""

from collections.abc import Callable
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.arrays import Arrays
from ralm.retrieval.bm25.beside import Beside
from ralm.retrieval.bm25.common_terms import find_common_terms
from ralm.retrieval.bm25.formula import idf
from ralm.retrieval.bm25.options import cores
from ralm.retrieval.bm25.stream import Collection, Stream


class Collecting:
    """Makes the collection on first use; safe to use from several threads.

    `with_terms`: how many of the passages have any term. `impact_C`: the impacts of the code table's rows.
    """

    def __init__(self, arrays: Arrays, passages: int, with_terms: int, impact_C: NDArray[np.float64]) -> None:
        self._arrays = arrays
        self._passages = passages
        self._with_terms = with_terms
        self._impact_C = impact_C
        self._lock = Lock()
        self._collection: Collection | None = None
        self.beside: Beside[Collection] = Beside(self._make_beside)

    def collection(self) -> Collection:
        """The collection; the first call makes it by reading the postings of the commonest terms."""
        with self._lock:
            self._collection = self._collection or self._make(cores())
            return self._collection

    def _make(self, threads: int, before_each: Callable[[], None] | None = None) -> Collection:
        idf_V = idf(np.diff(self._arrays.offsets), self._with_terms)
        common = find_common_terms(self._arrays, self._passages, idf_V, self._impact_C, threads, before_each)
        return Collection(self._arrays, self._passages, idf_V, self._impact_C, common)

    def _make_beside(self, going_on: Callable[[], None]) -> Collection:
        """Make it with one thread, and load the kernels of streams, so that no query waits for them."""
        with self._lock:
            self._collection = self._collection or self._make(1, going_on)
        Stream(self._collection, 1).search([[]])
        return self._collection
