"""Hits without repetitions, against the whole ranking."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from ralm.records import Hits, Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.distinct import Distinct
from ralm.retrieval.index import open_index
from ralm.retrieval.retriever import RetrieverOptions, open_retriever
from tests.cli.program import printed


class InOrder:
    """Finds the passages in the order of their numbers; the query says how many there are."""

    stable = 1 << 40
    config = {"in": "order"}  # noqa: RUF012

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        return Hits.from_pairs([[(number, 1.0 - number) for number in range(min(k, int(one)))] for one in queries])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30)), min_size=1, max_size=6), st.integers(1, 9), st.data())
def test_the_first_passage_of_each_document(runs: list[tuple[int, int]], k: int, data: st.DataObject) -> None:
    documents = [document for document, length in runs for _ in range(length)]
    passages = [Passage(number, str(one), "", f"text {number}") for number, one in enumerate(documents)]
    counts = data.draw(st.lists(st.integers(0, len(documents)), min_size=1, max_size=3))
    found = Distinct(InOrder(), passages, "document").retrieve([str(one) for one in counts], k)
    for row, count in enumerate(counts):
        firsts = sorted({documents[:count].index(one) for one in documents[:count]})
        assert [number for number, _ in found.of(row)] == firsts[:k]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = "The whales sing in the deep blue sea by night and the ships cross it by day, one after another"
    texts = [
        text,
        text.upper() + "!",
        text + " and return",
        text.replace("whales", "ducks"),
        "Whales sing.",
        "whales sing",
    ]
    passages = [Passage(number, f"{number // 2}.txt", "", one) for number, one in enumerate(texts)]
    folder = tmp_path_factory.mktemp("distinct") / "index"
    build_index(passages, folder)
    return folder


def test_texts_that_differ_in_a_few_words(index: Path) -> None:
    found = open_retriever(index, RetrieverOptions(distinct="text")).retrieve(["whales sing sea"], 9).of(0)
    every = open_index(index).bm25.retrieve(["whales sing sea"], 9).of(0)
    numbers = {number for number, _ in found}
    assert len(numbers & {0, 1, 2}) == 1
    assert len(numbers & {4, 5}) == 1
    assert 3 in numbers, "one word in the middle changes 5 of 15 runs"
    assert [hit for hit in every if hit in found] == found


def test_the_command(index: Path) -> None:
    hits = printed("search", index, "whales sing", "--distinct", "document")["hits"]
    assert len({hit["document_id"] for hit in hits}) == len(hits) == 3
    assert len(printed("search", index, "whales sing")["hits"]) > 3
