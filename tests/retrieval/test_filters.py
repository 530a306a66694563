"""Forbidden passages: never found, and everything else as it would be without them."""

import pytest

from ralm.records import Passage
from ralm.retrieval.filters import WithoutPassages, passages_of
from ralm.retrieval.index import Index, build_index, open_index

TITLES = ("The Sea", "'The Hill'", "", "Town")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Two passages a document, four documents; every passage has the word sheep."""
    folder = tmp_path_factory.mktemp("index") / "index"
    texts = [f"sheep {'hill ' * (number % 5)}" for number in range(8)]
    build_index(
        [Passage(number, f"d{number // 2}", TITLES[number // 2], text) for number, text in enumerate(texts)], folder
    )
    return open_index(folder)


def test_passages_by_title_and_document(index: Index) -> None:
    assert passages_of(index.passages, ["the hill", "TOWN", "unknown"]).tolist() == [2, 3, 6, 7]
    assert passages_of(index.passages, document_ids=["d0", "d", "D2"]).tolist() == [0, 1]
    assert passages_of(index.passages, ["the sea"], ["d3"]).tolist() == [0, 1, 6, 7]
    assert passages_of(index.passages, ["", " "]).tolist() == [], "no title is not a title"


def test_bm25_without_passages(index: Index) -> None:
    everything = index.bm25.retrieve(["sheep hill", "sheep"], 8)
    found = WithoutPassages(index.bm25, [4, 1, 4]).retrieve(["sheep hill", "sheep"], 8)
    for row in range(2):
        assert found.of(row) == [hit for hit in everything.of(row) if hit[0] not in (1, 4)]
    assert WithoutPassages(index.bm25, range(8)).retrieve(["sheep"], 3).of(0) == []
