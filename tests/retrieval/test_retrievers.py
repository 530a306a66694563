"""Retrievers: opened by name, fused, drawn at random, without repetitions, with neighbours; their configurations."""

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ralm
from ralm.corpus.splitting import Splitting, make_passages
from ralm.protocols import Retriever
from ralm.reading.sources import FromRetriever
from ralm.records import NO_PASSAGE, Document, Hits, Passage
from ralm.retrieval.allowed import Distinct, mask_without, narrowed, title_mask
from ralm.retrieval.bm25.formula import BM25Options
from ralm.retrieval.build import build_index
from ralm.retrieval.hybrid import FusionOptions, Hybrid, interpolated_scores, reciprocal_ranks
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.random import RandomRetriever
from ralm.retrieval.retriever import ExpandedPassages, MemoizedRetriever, RetrieverOptions, open_retriever
from tests.cli.program import printed
from tests.fakes import LetterEncoder, SharedWordsRetriever, passages_of
from tests.reference import dense as reference

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


def assert_same_hits(one: Hits, other: Hits) -> None:
    np.testing.assert_array_equal(one.numbers_QK, other.numbers_QK)
    np.testing.assert_array_equal(one.scores_QK, other.scores_QK)


def test_hits_are_shared_as_far_as_they_are_stable() -> None:
    """A retriever that does not say how far is asked for every number of hits."""
    retriever = StableTo(PASSAGES)
    shared = MemoizedRetriever(retriever, 12)
    for k in (3, 7, 1, 8, 12, 8):
        assert_same_hits(shared.retrieve(["a b", "c"], k), StableTo(PASSAGES).retrieve(["a b", "c"], k))
    assert len(retriever.queries) == 3 * 2, "one for up to 7, one for 8, one for 12"
    assert shared.retrieve(["a b", "d"], 2).numbers_QK[1].tolist() == [-1, -1]
    assert len(retriever.queries) == 4 * 2, "other queries"
    unstable = SharedWordsRetriever(PASSAGES)
    shared = MemoizedRetriever(unstable, 7)
    for k in (3, 7, 3):
        assert_same_hits(shared.retrieve(["a b", "c"], k), SharedWordsRetriever(PASSAGES).retrieve(["a b", "c"], k))
    assert len(unstable.queries) == 2 * 2


def test_whatever_decides_the_hits_is_in_the_config(tmp_path: Path) -> None:
    """Indexes, the constants of BM25, forbidden passages, how two rankings become one, how queries are encoded."""
    texts = ["red fox", "red barn", "blue sea", "red sea", "fox"]
    for name, passages in (("one", passages_of(*texts)), ("other", passages_of(*texts[::-1]))):
        build_index(passages, tmp_path / name, encoder=LetterEncoder())
    one, other = open_index(tmp_path / "one"), open_index(tmp_path / "other")
    dense, longer = one.dense(encoder=LetterEncoder()), LetterEncoder()
    longer.query_config = {**longer.query_config, "query_length": 9}
    retrievers: list[Retriever] = [
        one.bm25,
        other.bm25,
        open_index(tmp_path / "one", BM25Options(k1=2)).bm25,
        one.bm25.only(mask_without(5, [0])),
        one.bm25.only(mask_without(5, [1])),
        dense,
        dense.only(mask_without(5, [0])),
        one.dense(encoder=longer),
        other.dense(encoder=LetterEncoder()),
        Hybrid(one.bm25, dense),
        Hybrid(one.bm25, dense.only(mask_without(5, [0]))),
        Hybrid(one.bm25, dense, FusionOptions(depth=3)),
        *(RandomRetriever(count, seed) for count, seed in ((9, 0), (8, 0), (9, 1), (np.arange(1, 10), 0))),
    ]
    assert len({json.dumps(dict(one.config), sort_keys=True) for one in retrievers}) == len(retrievers)


def hits_of(rankings: Sequence[reference.Ranking], width: int) -> Hits:
    numbers_QK = np.full((len(rankings), width), NO_PASSAGE, dtype=np.int64)
    scores_QK = np.zeros((len(rankings), width), dtype=np.float32)
    for row, ranking in enumerate(rankings):
        for column, (number, score) in enumerate(ranking):
            numbers_QK[row, column], scores_QK[row, column] = number, score
    return Hits(numbers_QK=numbers_QK, scores_QK=scores_QK)


@st.composite
def rankings(draw: st.DrawFn) -> list[tuple[int, float]]:
    """Up to 6 of 9 passages, with scores that fall, some of them equal, some negative."""
    numbers = draw(st.lists(st.integers(0, 8), unique=True, max_size=6))
    scores = draw(st.lists(st.integers(-8, 8), min_size=len(numbers), max_size=len(numbers)))
    return [(number, score / 4) for number, score in zip(numbers, sorted(scores, reverse=True), strict=True)]


def assert_nearly_same(fused: Hits, row: int, expected: list[tuple[int, float]]) -> None:
    """The same scores, and the same passages but for the order among scores that differ by rounding alone."""
    np.testing.assert_allclose([s for _, s in fused.of(row)], [s for _, s in expected], atol=1e-6)
    scores = dict(expected)
    assert all(math.isclose(score, scores.get(n, expected[-1][1]), abs_tol=1e-6) for n, score in fused.of(row))


@given(st.lists(st.tuples(rankings(), rankings()), min_size=1, max_size=4), st.integers(1, 14), st.floats(0, 1))
def test_fused_rankings_are_those_of_the_plain_loops(
    pairs: list[tuple[reference.Ranking, ...]], k: int, weight: float
) -> None:
    both = [hits_of([pair[side] for pair in pairs], 6) for side in (0, 1)]
    weights = [1 - weight, weight]
    ranks, scores = reciprocal_ranks(both, k), interpolated_scores(both, weights, k)
    assert ranks.numbers_QK.shape == scores.numbers_QK.shape == (len(pairs), min(k, 12))
    for row, pair in enumerate(pairs):
        assert_nearly_same(ranks, row, reference.reciprocal_ranks(pair, k))
        assert_nearly_same(scores, row, reference.interpolated_scores(pair, weights, k))


def test_a_hybrid_retriever_looks_deeper_than_k() -> None:
    passages = passages_of("red fox", "red barn", "blue sea", "red sea", "fox")
    one, other = SharedWordsRetriever(passages), SharedWordsRetriever(passages[::-1])
    for options in (FusionOptions(), FusionOptions(method="interpolation", dense_weight=0.3)):
        deep = Hybrid(one, other, options).retrieve(["red fox", "", "blue"], 5)
        short = Hybrid(one, other, options).retrieve(["red fox", "", "blue"], 1)
        assert [deep.of(row)[:1] for row in range(3)] == [short.of(row) for row in range(3)]
        assert deep.of(1) == []


def test_the_first_draws_are_the_same_whatever_k() -> None:
    retriever = RandomRetriever(20, seed=3)
    queries = ["q"] * 50
    ten = retriever.retrieve(queries, 10).numbers_QK
    for k in (1, 4, 9):
        np.testing.assert_array_equal(retriever.retrieve(queries, k).numbers_QK, ten[:, :k])
    assert all(len(set(row)) == 10 for row in ten.tolist())
    assert (RandomRetriever(20, seed=4).retrieve(queries, 10).numbers_QK != ten).any()


def test_every_passage_is_as_likely_in_every_place() -> None:
    numbers_QK = RandomRetriever(5).retrieve(["q"] * 20_000, 5).numbers_QK
    assert all(len(set(row)) == 5 for row in numbers_QK.tolist())
    for column in numbers_QK.T:
        np.testing.assert_allclose(np.bincount(column, minlength=5) / 20_000, 0.2, atol=0.015)


def test_a_draw_follows_from_the_seed_the_query_and_its_occurrence_alone() -> None:
    retriever = RandomRetriever(1000, seed=3)
    asked = ["a", "b", "a", "", "c", "a", "\ud800"]
    together = retriever.retrieve(asked, 4).numbers_QK
    assert len({tuple(row) for row in together.tolist()}) == len(asked), "every occurrence draws anew"
    np.testing.assert_array_equal(retriever.retrieve(asked, 4).numbers_QK, together)
    np.testing.assert_array_equal(retriever.retrieve(["x", "a", "a"], 4).numbers_QK[1:], together[[0, 2]])
    for row in (1, 3, 4, 6):
        np.testing.assert_array_equal(retriever.retrieve([asked[row]], 4).numbers_QK[0], together[row])


def test_no_more_passages_are_drawn_than_there_are() -> None:
    assert np.sort(RandomRetriever(3).retrieve(["a", "b"], 5).numbers_QK, axis=1).tolist() == [[0, 1, 2]] * 2
    some = RandomRetriever(np.array([7, 3, 5])).retrieve(["a", "b"], 1 << 30).numbers_QK
    assert np.sort(some, axis=1).tolist() == [[3, 5, 7]] * 2
    assert np.sort(RandomRetriever(3000).retrieve(["a"], 3000).numbers_QK[0]).tolist() == list(range(3000))
    assert RandomRetriever(0).retrieve(["a"], 5).of(0) == []
    assert len(RandomRetriever(3).retrieve([], 5)) == 0


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
def repetitive(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    folder = tmp_path_factory.mktemp("distinct") / "repetitive"
    build_index(passages, folder)
    return folder


def test_texts_that_differ_in_a_few_words(repetitive: Path) -> None:
    found = open_retriever(repetitive, RetrieverOptions(distinct="text")).retrieve(["whales sing sea"], 9).of(0)
    every = open_index(repetitive).bm25.retrieve(["whales sing sea"], 9).of(0)
    numbers = {number for number, _ in found}
    assert len(numbers & {0, 1, 2}) == 1
    assert len(numbers & {4, 5}) == 1
    assert 3 in numbers, "one word in the middle changes 5 of 15 runs"
    assert [hit for hit in every if hit in found] == found


def test_hits_without_repetitions_by_the_command(repetitive: Path) -> None:
    hits = printed("search", repetitive, "whales sing", "--distinct", "document")["hits"]
    assert len({hit["document_id"] for hit in hits}) == len(hits) == 3
    assert len(printed("search", repetitive, "whales sing")["hits"]) > 3


ENGLISH = " ".join(f"Sentence {number} has its number at the end, which is {number}." for number in range(3000))
CHINESE = "".join(f"\u4ed6\u5011\u8ce6\u6709\u7406\u6027{number}\u548c\u826f\u5fc3\u3002" for number in range(200))


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
@pytest.mark.parametrize("split", ["words", "sentences", "structure"])
def test_a_whole_document_is_its_text(text: str, split: Any) -> None:
    """Also with thousands of passages, which repeat words of the one before."""
    splitting = Splitting(split=split, words=17, overlap_words=0 if split == "words" else 11)
    passages = [*make_passages([Document("a", "", "other"), Document("b", "", text)], splitting)]
    recorded = {"split": split, "overlap_words": splitting.overlap_words} if split != "words" else {}
    whole = ExpandedPassages(passages, "document", recorded)[len(passages) // 2]
    assert "".join(whole.text.split()) == "".join(text.split())
    assert ExpandedPassages(passages, "document", recorded)[0].text == "other"


def test_neighbours_pass_the_filter_too(tmp_path: Path) -> None:
    """The pages of a file are one document."""
    pages = [Passage(page, "d", "", f"text{page}", metadata={"page": page}) for page in range(1, 5)]
    build_index([Passage(0, "c", "", "zero"), *pages], tmp_path / "index")
    options = RetrieverOptions(where="page >= 2", expand="document")
    source = FromRetriever.of_index(open_index(tmp_path / "index"), options)
    assert [source.passages[number].text for number, _ in source.search(["text3"], 1).of(0)] == ["text2 text3 text4"]
