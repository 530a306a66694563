"""Fixtures of the tests of retrieval."""

import pytest

from ralm.retrieval.bm25.scan import SearchBatch
from ralm.retrieval.bm25.stream import Stream


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Stream, int]]:
    """The streams that answered batches of queries, and the number of queries."""
    noted: list[tuple[Stream, int]] = []
    fill = Stream.fill

    def note(self: Stream, batch: SearchBatch) -> None:
        noted.append((self, len(batch.queries)))
        fill(self, batch)

    monkeypatch.setattr(Stream, "fill", note)
    return noted
