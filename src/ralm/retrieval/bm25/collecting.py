"""Prepares what streams over one index share, once for all callers: at once, or in a background thread."""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ralm.errors import DamagedFolderError
from ralm.retrieval.bm25.beside import Beside
from ralm.retrieval.bm25.common_terms import find_common_terms
from ralm.retrieval.bm25.lexicon import Lexicon
from ralm.retrieval.bm25.options import cores
from ralm.retrieval.bm25.segments import Segment
from ralm.retrieval.bm25.stream import Collection, Part, Stream


class Collecting:
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
        self.beside: Beside[Collection] = Beside(self._make_beside)

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
            parts.append(Part(segment.arrays, segment.passages, ahead, impact_C, common))
            ahead += segment.passages
        return Collection(self._lexicon, tuple(parts))

    def _idf(self, place: int, terms: NDArray[np.int64]) -> NDArray[np.float64]:
        """The idf in the whole index of terms of a segment; infinite for those that no passage has any more."""
        lexicon, arrays = self._lexicon, self._segments[place].arrays
        numbers = np.array([lexicon.number(term) for term in arrays.spelt(terms)], np.int64)
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
