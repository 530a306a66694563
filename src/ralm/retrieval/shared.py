"""One retrieval for all who ask with the same queries: each gets the first k of what was found."""

from collections.abc import Sequence
from typing import Final

from ralm.protocols import Retriever
from ralm.records import Hits

DEEPEST: Final = 100
"""Up to here the first k of more hits are the k best; a fusion or an approximate index asked for more looks further."""


class SharedRetriever:
    """Another retriever, asked once for the same queries, with `k` the most that anyone will ask for.

    `retrievals` counts how often it was asked. Gives what that retriever would: whoever wants more than 100 hits has a
    retrieval of its own.
    """

    def __init__(self, retriever: Retriever, k: int) -> None:
        self._retriever = retriever
        self._k = min(k, DEEPEST)
        self._found: dict[tuple[str, ...], Hits] = {}
        self.retrievals = 0

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """The k best passages for each query, all queries at once."""
        if k > self._k:
            self.retrievals += 1
            return self._retriever.retrieve(queries, k)
        asked = tuple(queries)
        if asked not in self._found:
            self.retrievals += 1
            self._found[asked] = self._retriever.retrieve(queries, self._k)
        return self._found[asked].first(k)
