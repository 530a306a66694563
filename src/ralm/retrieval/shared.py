"""One retrieval for all who ask with the same queries: each gets the first k of what was found."""

from collections.abc import Sequence

from pydantic import JsonValue

from ralm.asking import config_of
from ralm.protocols import Retriever
from ralm.records import Hits
from ralm.retrieval.arguments import stable_hits


class SharedRetriever:
    """Another retriever, asked once for the same queries, with `k` the most that anyone will ask for.

    `retrievals` counts how often it was asked. Gives what that retriever would: its hits are shared by those who want
    different numbers of them as far as it says that they are stable, and by those who want the same number otherwise.
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
        """The k best passages for each query, all queries at once."""
        asked = (tuple(queries), max(k, self._k))
        if asked not in self._found:
            self.retrievals += 1
            self._found[asked] = self._retriever.retrieve(*asked)
        return self._found[asked].first(k)
