"""Streams for queries that come one call at a time, as in generation; several texts may be in progress at once.

A query belongs to the text whose last query shares the most terms with it, if there are enough of them: short queries
that share one or two terms do not belong to one text. The data that a stream needs takes long to prepare, so it is
prepared in the background once most queries follow others. Until then, and for queries that follow no other, scans are
used.
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
"""How many recent queries are looked at; most of them must follow another one before streams are used."""
SHARED_TERMS: Final = 4
"""Terms that a query must share with the one that it follows."""
_FOLLOWED: Final = 2
"""Queries that must have followed each other before their text gets a stream; starting one takes as long as a scan."""
_TEXTS: Final = 8
"""How many texts in progress are kept, and as many queries that none has followed; each stream holds about 5 bytes per
passage."""


@dataclass(slots=True, eq=False)
class _Text:
    """A text in progress: the terms of its last query, how many queries followed the first, and its stream, if it has
    one, which gives `k` hits."""

    last: frozenset[int]
    followed: int = 0
    stream: Stream | None = None
    k: int = 0


class Online:
    """The texts in progress; safe to use from several threads. `overlap` is the share of a query's terms that must
    occur in the query before; `collection` is the data that streams need."""

    def __init__(self, overlap: float, collection: Beside[Collection]) -> None:
        self._overlap = overlap
        self._collection = collection
        self._texts: list[_Text] = []
        self._lately: deque[bool] = deque(maxlen=PATIENCE)
        self._lock = Lock()

    @contextmanager
    def stream_of(self, query: Sequence[int], k: int) -> Iterator[Stream | None]:
        """The stream of the text that a query (term numbers) belongs to, locked for this thread; None means: use a
        scan."""
        text, most_follow = self._take(frozenset(query))
        try:
            yield self._stream(text, query, k) if most_follow and text.followed >= _FOLLOWED else None
        finally:
            with self._lock:
                self._texts = _remembered([*self._texts, text])

    def _take(self, terms: frozenset[int]) -> tuple[_Text, bool]:
        """Take the text that a query belongs to out of the list; also whether most recent queries followed others."""
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
    """The most recent texts in progress and the most recent queries without a follower; neither displaces the other."""
    if len(texts) <= _TEXTS:
        return texts
    alone = [text for text in texts if text.followed == 0]
    return [*alone[-_TEXTS:], *[text for text in texts if text.followed > 0][-_TEXTS:]]
