"""Streams for queries that come one call at a time, as generation asks them: several texts may be under way at once.

A query belongs to the text whose last query it shares most terms with, if these are many: queries of a few words that
have one or two in common are no text that goes on. What a stream needs of the index takes long to lay out, so it is
laid out beside the queries, once most of them have followed others; until then, and for all that follow none, scans.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Final

from ralm.retrieval.bm25.beside import Beside
from ralm.retrieval.bm25.stream import Collection, Stream

PATIENCE: Final = 64
"""The last queries, of which most must have followed another before any is answered by a stream."""
SHARED_TERMS: Final = 4
"""Terms that a query must have in common with the one that it follows."""
_FOLLOWED: Final = 2
"""Queries that must have followed each other before their text has a stream: to begin one takes as long as a scan."""
_TEXTS: Final = 8
"""Texts under way that are remembered, and as many queries that none has followed; each stream holds some 5 bytes a
passage."""


@dataclass(slots=True, eq=False)
class _Text:
    """A text under way: the terms of its last query, how many followed the first, and its stream for `k` hits once it
    has one."""

    last: frozenset[int]
    followed: int = 0
    stream: Stream | None = None
    k: int = 0


class Online:
    """The texts under way; safe to use from several threads. `overlap` is the share of a query's terms that must stand
    in the query before; `collection` is what streams need."""

    def __init__(self, overlap: float, collection: Beside[Collection]) -> None:
        self._overlap = overlap
        self._collection = collection
        self._texts: list[_Text] = []
        self._lately: deque[bool] = deque(maxlen=PATIENCE)
        self._lock = Lock()

    @contextmanager
    def stream_of(self, query: Sequence[int], k: int) -> Iterator[Stream | None]:
        """The stream of the text that a query (term numbers) belongs to, for this thread alone; None: use a scan."""
        text, most_follow = self._take(frozenset(query))
        try:
            yield self._stream(text, query, k) if most_follow and text.followed >= _FOLLOWED else None
        finally:
            with self._lock:
                self._texts = _remembered([*self._texts, text])

    def _take(self, terms: frozenset[int]) -> tuple[_Text, bool]:
        """The text that a query belongs to, taken out of the list, and whether most queries lately followed others."""
        with self._lock:
            nearest = max(self._texts, key=lambda text: len(text.last & terms), default=None)
            least = max(self._overlap * len(terms), SHARED_TERMS)
            if nearest is None or len(nearest.last & terms) < least:
                nearest = _Text(terms)
                self._lately.append(False)
            else:
                self._texts.remove(nearest)
                nearest.last = terms
                nearest.followed += 1
                self._lately.append(True)
            return nearest, 2 * sum(self._lately) > PATIENCE

    def _stream(self, text: _Text, query: Sequence[int], k: int) -> Stream | None:
        collection = self._collection.ready()
        if collection is None or not collection.bears([query]):
            return None
        if text.stream is None or text.k != k:
            text.stream, text.k = Stream(collection, k), k
        return text.stream


def _remembered(texts: list[_Text]) -> list[_Text]:
    """The last of the texts under way and of the queries that none has followed: neither drive out the others."""
    if len(texts) <= _TEXTS:
        return texts
    alone = [text for text in texts if text.followed == 0]
    return [*alone[-_TEXTS:], *[text for text in texts if text.followed > 0][-_TEXTS:]]
