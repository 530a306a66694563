"""Shares one retrieval between callers with the same queries: each gets the first k hits."""

from collections.abc import Sequence

from pydantic import JsonValue

from ralm.protocols import Retriever
from ralm.records import Hits
from ralm.validation import config_of, stable_hits


class SharedRetriever:
    """Asks another retriever once for repeated queries, with `k`, the most hits that any caller will ask for.

    `retrievals` counts how often it was asked. The hits are those that the other retriever gives. Up to its `stable`,
    callers that want different numbers of hits share one retrieval; beyond that, only callers that want the same number
    do.
    """

    def __init__(self, retriever: Retriever, k: int) -> None:
        self._retriever = retriever
        self._k = min(k, stable_hits(retriever))
        self._found: dict[tuple[tuple[str, ...], int], Hits] = {}
        self.retrievals = 0

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything that decides the hits of the other retriever."""
        return config_of(self._retriever, "retriever")

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """The k best passages for each query."""
        asked = (tuple(queries), max(k, self._k))
        if asked not in self._found:
            self.retrievals += 1
            self._found[asked] = self._retriever.retrieve(*asked)
        return self._found[asked].first(k)
