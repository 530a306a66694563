"""Streams for queries that come one call at a time, as generation asks them: several texts may be under way at once.

A query belongs to the text whose last query it shares most terms with. What a stream needs of the index takes long to
lay out, so the first queries that follow others are left to a scan, and an index that is asked little never pays.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Final

from ralm.retrieval.bm25.stream import Collection, Stream

PATIENCE: Final = 64
"""Queries that followed another before the first stream is begun."""
_TEXTS: Final = 8
"""Texts that are remembered; each stream holds some 5 bytes a passage."""


@dataclass(slots=True, eq=False)
class _Text:
    """A text under way: the terms of its last query, and its stream for `k` hits once it has one."""

    last: frozenset[int]
    stream: Stream | None = None
    k: int = 0


class Online:
    """The texts under way; safe to use from several threads. `overlap` is the share of a query's terms that must stand
    in the query before; `collection` lays out what streams need."""

    def __init__(self, overlap: float, collection: Callable[[], Collection]) -> None:
        self._overlap = overlap
        self._collection = collection
        self._texts: list[_Text] = []
        self._followed = 0
        self._lock = Lock()

    @contextmanager
    def stream_of(self, query: Sequence[int], k: int) -> Iterator[Stream | None]:
        """The stream of the text that a query (term numbers) belongs to, for this thread alone; None: use a scan."""
        terms = frozenset(query)
        text, patient = self._take(terms)
        try:
            yield self._stream(text, k) if patient and self._collection().bears(query) else None
        finally:
            with self._lock:
                self._texts = [*self._texts, text][-_TEXTS:]

    def _take(self, terms: frozenset[int]) -> tuple[_Text, bool]:
        """The text that a query belongs to, taken out of the list, and whether it is to have a stream."""
        with self._lock:
            nearest = max(self._texts, key=lambda text: len(text.last & terms), default=None)
            if nearest is None or len(nearest.last & terms) < max(self._overlap * len(terms), 1):
                return _Text(terms), False
            self._texts.remove(nearest)
            nearest.last = terms
            self._followed += 1
            return nearest, self._followed > PATIENCE

    def _stream(self, text: _Text, k: int) -> Stream:
        if text.stream is None or text.k != k:
            text.stream, text.k = Stream(self._collection(), k), k
        return text.stream
