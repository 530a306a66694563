"""Retrievers opened by name and options; passages that are forbidden; retrievals that callers share."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ralm
from ralm.protocols import Retriever
from ralm.records import Hits, Passage
from ralm.retrieval.allowed import mask_without, narrowed
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.retriever import MemoizedRetriever, title_mask
from tests.fakes import CountingModel, LetterEncoder, SharedWordsRetriever, WordTokenizer, passages_of

TEXTS = ("sheep on the hill", "the sea and the sheep", "a town by the sea", "the hill above the town")
QUERIES = ["sheep on the sea", "hill"]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opening") / "index"
    passages = [replace(passage, title=f"title {passage.number}") for passage in passages_of(*TEXTS)]
    ralm.build_index(passages, folder, encoder=LetterEncoder())
    return folder


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder that the index names is no model that can be loaded."""
    monkeypatch.setattr("ralm.retrieval.index.load_encoder", lambda _: LetterEncoder())
    monkeypatch.setattr("ralm.retrieval.index.Index.encoder_options", lambda *_: None)


BY_HAND: dict[str, Callable[[ralm.Index], Retriever]] = {
    "bm25": lambda index: index.bm25,
    "dense": lambda index: index.dense(),
    "hybrid": lambda index: ralm.Hybrid(index.bm25, index.dense()),
    "random": lambda index: ralm.RandomRetriever(len(index.passages), 7),
}


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("forbids", [False, True])
def test_by_options_as_by_hand(
    index: Path, tmp_path: Path, letters: None, caplog: pytest.LogCaptureFixture, name: str, forbids: bool
) -> None:
    caplog.set_level(logging.INFO, "ralm")
    opened = ralm.open_index(index)
    titles, excluded = tmp_path / "titles.txt", [1, 3] if forbids else []
    titles.write_text("Title 1\ntitle 3\n")
    options = ralm.RetrieverOptions(
        retriever=f"{name}:seed=7" if name == "random" else name, forbidden_titles=titles if forbids else None
    )
    retriever = ralm.open_retriever(str(index), options)
    by_hand = narrowed(BY_HAND[name](opened), mask_without(len(opened.passages), excluded))
    assert retriever.config == by_hand.config
    found, expected = retriever.retrieve(QUERIES, 4), by_hand.retrieve(QUERIES, 4)
    assert [found.of(row) for row in (0, 1)] == [expected.of(row) for row in (0, 1)]
    said = [record.getMessage() for record in caplog.records if record.name.startswith("ralm.retrieval")]
    assert said == (["2 of 4 passages may be found"] if forbids else [])


def test_a_source_that_an_evaluation_takes(index: Path) -> None:
    """Opened by path and by an open index: the same figures and the same configuration."""
    model = CountingModel(WordTokenizer(), max_length=12)
    plan = ralm.PlanOptions(stride=2, query_tokens=3, document_tokens=4, max_length=12)
    sources = [ralm.FromRetriever.of_index(one) for one in (index, ralm.open_index(index))]
    text = "the sheep on the hill and the sea and the town"
    measures = [ralm.evaluate_text(text, model, plan, source=source).reading.measures for source in sources]
    assert measures[0] == measures[1]
    assert sources[0].config == sources[1].config
    assert sources[0].config["retriever"] == "bm25"


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


def test_passages_by_title(titled: Index) -> None:
    mask_N = title_mask(titled.passages, ["the hill", "TOWN", "unknown"])
    assert np.flatnonzero(~mask_N).tolist() == [2, 3, 6, 7]
    assert title_mask(titled.passages, ["", " "]).all(), "no title is not a title"


def test_what_is_left_out_adds_up(titled: Index) -> None:
    queries = ["sheep hill", "sheep", "hill"]
    without = titled.bm25.only(mask_without(8, [4])).only(mask_without(8, [1, 4]))
    assert without.config == titled.bm25.only(mask_without(8, [1, 4])).config != titled.bm25.config
    everything, found = titled.bm25.retrieve(queries, 8), without.retrieve(queries, 8)
    for row in range(len(queries)):
        assert found.of(row) == [hit for hit in everything.of(row) if hit[0] not in (1, 4)]
    assert titled.bm25.retrieve(queries, 8).of(1) == everything.of(1), "the retriever itself is as it was"


PASSAGES = passages_of("a b", "a", "b c", "c", *["a b c"] * 20)


class StableTo(SharedWordsRetriever):
    """Ranks more than `stable` hits differently from fewer."""

    stable = 7

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        hits = super().retrieve(queries, k)
        return hits if k <= self.stable else Hits(hits.numbers_QK[:, ::-1].copy(), hits.scores_QK[:, ::-1].copy())


def same(one: Hits, other: Hits) -> None:
    np.testing.assert_array_equal(one.numbers_QK, other.numbers_QK)
    np.testing.assert_array_equal(one.scores_QK, other.scores_QK)


def test_hits_are_shared_as_far_as_they_are_stable() -> None:
    retriever = StableTo(PASSAGES)
    shared = MemoizedRetriever(retriever, 12)
    for k in (3, 7, 1, 8, 12, 8):
        same(shared.retrieve(["a b", "c"], k), StableTo(PASSAGES).retrieve(["a b", "c"], k))
    assert len(retriever.queries) == 3 * 2, "one for up to 7, one for 8, one for 12"
    assert shared.retrieve(["a b", "d"], 2).numbers_QK[1].tolist() == [-1, -1]
    assert len(retriever.queries) == 4 * 2, "other queries"


def test_a_retriever_that_says_nothing_is_asked_for_every_number_of_hits() -> None:
    retriever = SharedWordsRetriever(PASSAGES)
    shared = MemoizedRetriever(retriever, 7)
    for k in (3, 7, 3):
        same(shared.retrieve(["a b", "c"], k), SharedWordsRetriever(PASSAGES).retrieve(["a b", "c"], k))
    assert len(retriever.queries) == 2 * 2
