"""Fixtures of the tests of retrieval."""

import pytest

from ralm.retrieval.bm25 import lookup, search
from ralm.retrieval.bm25.collection import Collection
from ralm.retrieval.bm25.scan import SearchBatch
from ralm.retrieval.bm25.stream import Stream


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of queries of each batch that was answered by streams."""
    noted: list[int] = []
    fill = Stream.fill

    def note(self: Stream, batch: SearchBatch) -> None:
        noted.append(len(batch.queries))
        fill(self, batch)

    monkeypatch.setattr(Stream, "fill", note)
    return noted


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of queries of each batch that was answered by lookups."""
    noted: list[int] = []

    def note(collection: Collection, batch: SearchBatch) -> None:
        noted.append(len(batch.queries))
        lookup.search_lookups(collection, batch)

    monkeypatch.setattr(search, "search_lookups", note)
    return noted
