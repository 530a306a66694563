"""Queries that come one call at a time, and the texts in progress that they belong to, as in generation."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Final

from ralm.retrieval.bm25.collection import BackgroundTask, Collection
from ralm.retrieval.bm25.stream import Stream

STREAM_OVERLAP: Final = 0.5
"""The share of a query's terms that must occur in the query before."""
PATIENCE: Final = 64
"""How many recent queries are looked at; most of them must follow another one before streams are used."""
_PAIRS: Final = 64
"""How many queries of a batch are compared with the one before."""
SHARED_TERMS: Final = 4
"""Terms that a query must share with the one that it follows; short queries share one or two by chance."""
_FOLLOWED: Final = 2
"""Queries that must have followed each other before their text gets a stream; starting one takes a search."""
_TEXTS: Final = 8
"""How many texts in progress are kept, and how many queries without a follower. A stream holds about 5 bytes per
passage."""


@dataclass(slots=True, eq=False)
class _Text:
    """A text in progress: the terms of its last query, how many queries followed the first, and its stream with `k`
    hits, if it has one."""

    last: frozenset[int]
    followed: int = 0
    stream: Stream | None = None
    k: int = 0


class TextsInProgress:
    """The texts in progress, for queries that come one call at a time; safe to use from several threads.

    A query belongs to the text whose last query shares the most terms with it, if these are enough. The collection is
    prepared in the background once most queries follow others; until then no text has a stream.
    """

    def __init__(self, collection: BackgroundTask[Collection]) -> None:
        self._collection = collection
        self._texts: list[_Text] = []
        self._recent_follow: deque[bool] = deque(maxlen=PATIENCE)
        self._lock = Lock()

    @contextmanager
    def stream_of(self, query: Sequence[int], k: int) -> Iterator[Stream | None]:
        """The stream of the text that a query (term numbers) belongs to, for this thread alone; None if it has
        none."""
        text, most_follow = self._take(frozenset(query))
        try:
            yield self._stream(text, query, k) if most_follow and text.followed >= _FOLLOWED else None
        finally:
            with self._lock:
                self._texts = _remembered([*self._texts, text])

    def _take(self, terms: frozenset[int]) -> tuple[_Text, bool]:
        """Take the text that a query belongs to out of the list; also whether most recent queries followed others."""
        with self._lock:
            text = max(self._texts, key=lambda text: len(text.last & terms), default=None)
            min_shared = max(STREAM_OVERLAP * len(terms), SHARED_TERMS)
            follows = text is not None and len(text.last & terms) >= min_shared
            self._recent_follow.append(follows)
            if text is None or not follows:
                text = _Text(terms)
            else:
                self._texts.remove(text)
                text.last = terms
                text.followed += 1
            return text, 2 * sum(self._recent_follow) > PATIENCE

    def _stream(self, text: _Text, query: Sequence[int], k: int) -> Stream | None:
        collection = self._collection.ready()
        if collection is None or not collection.supports([query]):
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


def follow_each_other(queries: Sequence[Sequence[int]]) -> bool:
    """Whether most terms of the queries of a batch occur in the query before, judged by a sample."""
    pairs = [(set(queries[i - 1]), set(queries[i])) for i in range(1, len(queries), -(-len(queries) // _PAIRS))]
    shared = sum(len(before & query) for before, query in pairs)
    return shared >= STREAM_OVERLAP * sum(len(query) for _, query in pairs)
