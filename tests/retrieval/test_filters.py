"""Forbidden passages: never found, and everything else as it would be without them."""

import numpy as np
import pytest

from ralm.records import Passage
from ralm.retrieval.bm25.scan import Forbidden
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.random import RandomRetriever
from ralm.retrieval.retriever import matching_passages

TITLES = ("The Sea", "'The Hill'", "", "Town")


@pytest.fixture(scope="module")
def titled(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Two passages a document, four documents; every passage has the word sheep."""
    folder = tmp_path_factory.mktemp("index") / "index"
    texts = [f"sheep {'hill ' * (number % 5)}" for number in range(8)]
    build_index(
        [Passage(number, f"d{number // 2}", TITLES[number // 2], text) for number, text in enumerate(texts)], folder
    )
    return open_index(folder)


def test_passages_by_title_and_document(titled: Index) -> None:
    assert matching_passages(titled.passages, ["the hill", "TOWN", "unknown"]).tolist() == [2, 3, 6, 7]
    assert matching_passages(titled.passages, document_ids=["d0", "d", "D2"]).tolist() == [0, 1]
    assert matching_passages(titled.passages, ["the sea"], ["d3"]).tolist() == [0, 1, 6, 7]
    assert matching_passages(titled.passages, ["", " "]).tolist() == [], "no title is not a title"


def test_bm25_without_passages(titled: Index) -> None:
    everything = titled.bm25.retrieve(["sheep hill", "sheep"], 8)
    found = titled.bm25.without([4, 1, 4]).retrieve(["sheep hill", "sheep"], 8)
    for row in range(2):
        assert found.of(row) == [hit for hit in everything.of(row) if hit[0] not in (1, 4)]
    assert titled.bm25.without(range(8)).retrieve(["sheep"], 3).of(0) == []


def test_what_is_left_out_adds_up(titled: Index) -> None:
    """In `without` twice, and together with the lists of the queries."""
    queries = ["sheep hill", "sheep", "hill"]
    without = titled.bm25.without([4]).without(np.array([1, 4]))
    assert without.config == titled.bm25.without([1, 4]).config != titled.bm25.config
    forbidden = Forbidden.of([[0, 2], [1, 3]], np.array([0, -1, 1]))
    everything, found = titled.bm25.retrieve(queries, 8), without.retrieve(queries, 8, forbidden)
    for row, own in enumerate(([0, 2], [], [1, 3])):
        assert found.of(row) == [hit for hit in everything.of(row) if hit[0] not in (1, 4, *own)]
    assert without.retrieve(queries, 8, Forbidden.none(3)).of(1) == without.retrieve(queries, 8).of(1)
    assert titled.bm25.retrieve(queries, 8).of(1) == everything.of(1), "the retriever itself is as it was"


def test_nothing_left_out_is_the_same_retriever(titled: Index) -> None:
    assert titled.bm25.without([]).config == titled.bm25.config


def test_random_without_passages() -> None:
    control = RandomRetriever(6, seed=3).without([1, 4])
    assert control.without([5]).config == RandomRetriever(np.array([0, 2, 3]), seed=3).config
    assert {number for number, _ in control.retrieve(["a"], 9).of(0)} == {0, 2, 3, 5}
