"""Fixtures of the tests of retrieval."""

import pytest

from ralm.retrieval.bm25.collection import SearchBatch
from ralm.retrieval.bm25.stream import Stream


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of queries of each batch that was answered by streams."""
    noted: list[int] = []
    fill = Stream.fill

    def note(self: Stream, batch: SearchBatch) -> None:
        noted.append(len(batch.heaps_QK))
        fill(self, batch)

    monkeypatch.setattr(Stream, "fill", note)
    return noted
