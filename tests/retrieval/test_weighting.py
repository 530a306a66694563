"""BM25 with weights of query terms: exact whichever way it searches, and told apart from plain BM25 everywhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import ralm
from ralm.errors import DamagedFolderError, NotAFolderOfThisKindError, UsageError
from ralm.retrieval.bm25 import search
from ralm.retrieval.bm25.formula import WEIGHTING_KIND, Weighting, open_weighting
from ralm.retrieval.bm25.scan import Forbidden
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.bm25.stream import Stream
from ralm.storage.manifest import write_manifest
from tests.cli.program import ralm as command
from tests.fakes import LetterEncoder, passages_of
from tests.reference import bm25 as reference
from tests.retrieval.searching import indexed, pieces, some_index, strides, words

WEIGHTS = st.tuples(*[st.integers(1, 4)] * 3)
QUERY = "stone sea stone sea hill pond barn glen"
"""BM25 finds the passage that repeats the first words; with weights of 4, 1 and 1, the last four words decide."""

POINTS = 80 * 2**-20
"""What rounding the scores of a query's terms to points may add up to."""


def save(folder: Path, weights: Sequence[object], analysis: object = "lucene-english") -> Path:
    folder.mkdir()
    settings: Any = {"weighting": {"weights": [*weights], "analysis": analysis}}
    write_manifest(folder, kind=WEIGHTING_KIND, settings=settings, counts={})
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weighting") / "index"
    texts = ("stone sea stone sea", "barn moon", "hill sheep", "stone hill", "the sea and the sheep")
    ralm.build_index(passages_of(*texts), folder, encoder=LetterEncoder())
    return folder


@settings(max_examples=15)
@given(
    seed=st.integers(0, 1 << 30),
    weights=WEIGHTS,
    passages=st.sampled_from([1, 40]),
    vocabulary=st.sampled_from([3, 40, 300]),
    length=st.integers(1, 20),
    stride=st.integers(1, 12),
    k=st.sampled_from([1, 16]),
)
def test_every_way_equals_the_plain_loop(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    weights: tuple[int, int, int],
    passages: int,
    vocabulary: int,
    length: int,
    stride: int,
    k: int,
) -> None:
    """Stream, scan and online search; repeat_terms and unknown terms, and an empty query (the first)."""
    text = words(seed, passages * 12, vocabulary)
    texts = [" ".join(text[i * 12 : (i + 1) * 12 - i % 7]) for i in range(passages)]
    bm25 = indexed(tmp_path_factory.mktemp("index"), texts).weighted(Weighting(weights))
    queries = strides(words(seed + 1, 60, vocabulary + 5), length, stride)
    weights = (1, 1, 1) if len(set(weights)) == 1 else weights  # equal weights are plain BM25, scores included
    rankings = [
        reference.ranked(reference.weighted(query.split(), weights), [one.split() for one in texts])
        for query in queries
    ]
    expected = [[score for _, score in ranking[:k]] for ranking in rankings]
    for hits in (bm25.retrieve(queries, k), _streamed(bm25, queries, k), _online(bm25, queries, k)):
        for row, (scores, ranking) in enumerate(zip(expected, rankings, strict=True)):
            found = hits.of(row)
            of = dict(ranking)
            for got in ([score for _, score in found], [of[number] for number, _ in found]):
                np.testing.assert_allclose(got, scores, rtol=2e-5, atol=POINTS)


def _streamed(bm25: BM25, queries: Sequence[str], k: int) -> ralm.Hits:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "STREAM_PASSAGES", 0)
        patch.setattr(search, "STREAM_QUERIES", 1)
        patch.setattr(search, "_PASSAGES_A_HIT", 0)
        patch.setattr(search, "STREAM_OVERLAP", 0)
        return bm25.retrieve(queries, k)


def _online(bm25: BM25, queries: Sequence[str], k: int) -> ralm.Hits:
    bm25._loader.background.ready()
    bm25._loader.background.wait()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "STREAM_PASSAGES", 0)
        patch.setattr(search, "_PASSAGES_A_HIT", 0)
        patch.setattr(search, "PATIENCE", 0)
        patch.setattr(search, "SHARED_TERMS", 0)
        patch.setattr(search, "_FOLLOWED", 0)
        return ralm.Hits.from_pairs([bm25.retrieve([query], k).of(0) for query in queries])


@pytest.mark.parametrize(
    ("weights", "stride", "k"), [((4, 2, 1), 2, 1), ((4, 2, 1), 3, 16), ((1, 2, 3), 1, 16), ((3, 1, 1), 7, 1)]
)
def test_streams_over_many_passages_equal_scans(
    tmp_path: Path, weights: tuple[int, int, int], stride: int, k: int
) -> None:
    seed = stride
    bm25 = indexed(tmp_path, pieces(words(seed, 36_000, 2000))).weighted(Weighting(weights))
    queries = strides(words(seed + 1, 300, 2005), 16, stride)
    rng = np.random.default_rng(seed)
    forbidden = Forbidden.of([rng.integers(0, 3000, 1000).tolist()], rng.integers(-1, 1, len(queries)))
    scanned = bm25.retrieve(queries, k, forbidden)
    terms = [bm25.terms(Weighting(weights).repeat_terms(query.split())) for query in queries]
    assert bm25.collection.supports(terms)
    streamed = Stream(bm25.collection, k, 1024).search(terms, forbidden)
    np.testing.assert_array_equal(streamed[0], scanned.numbers_QK)
    np.testing.assert_array_equal(streamed[1], scanned.scores_QK)


def test_streams_are_used_as_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated terms must not look like terms that the query before lacks."""
    bm25 = some_index(tmp_path)
    used: list[int] = []
    monkeypatch.setattr(search, "STREAM_PASSAGES", 0)
    monkeypatch.setattr(search, "search_streams", lambda _, batch, __: used.append(len(batch.queries)))
    queries = strides(words(1, 400, 500), 16, 2)
    for one in (bm25, bm25.weighted(Weighting((4, 2, 1)))):
        one.retrieve(queries, 5)
    assert used == [len(queries)] * 2


def test_online_search_uses_streams(tmp_path: Path, fills: list[tuple[Stream, int]]) -> None:
    bm25 = indexed(tmp_path, pieces(words(0, 480, 40))).weighted(Weighting((4, 2, 1)))
    _online(bm25, strides(words(1, 60, 45), 14, 3), 4)
    assert sum(count for _, count in fills) > 10


def test_the_last_words_decide(index: Path, tmp_path: Path) -> None:
    """By hand: "stone sea" stand first and so weigh 1; plain BM25 prefers the passage that repeats them."""
    weighting = save(tmp_path / "weighting", [4, 1, 1])
    plain = ralm.open_retriever(index)
    weighted = ralm.open_retriever(index, ralm.RetrieverOptions(weighting=weighting))
    assert plain.retrieve([QUERY], 1).of(0)[0][0] == 0
    assert weighted.retrieve([QUERY], 1).of(0)[0][0] == 1
    assert {number for number, _ in weighted.retrieve([QUERY], 9).of(0)} == {
        number for number, _ in plain.retrieve([QUERY], 9).of(0)
    }


def test_weights_are_part_of_the_configuration(index: Path, tmp_path: Path) -> None:
    """A cache and a hybrid retriever take weights for another retriever; equal weights are plain BM25."""
    opened = ralm.open_index(index)
    weighting = save(tmp_path / "weighting", [4, 1, 1])
    cache = tmp_path / "cache"
    firsts = []
    for folder in (None, weighting, None, weighting):
        retriever = ralm.open_retriever(opened, ralm.RetrieverOptions(weighting=folder, cache=cache))
        firsts.append(retriever.retrieve([QUERY], 1).of(0)[0][0])
    assert firsts == [0, 1, 0, 1]
    weighted = opened.bm25.weighted(open_weighting(weighting))
    assert weighted.config == {**opened.bm25.config, "weights": [4, 1, 1]}
    assert weighted.without([1]).config["weights"] == [4, 1, 1]
    assert weighted.without([1]).retrieve([QUERY], 1).of(0)[0][0] != 1
    assert opened.bm25.weighted(Weighting((2, 2, 2))).config == opened.bm25.config
    assert opened.bm25.weighted(Weighting((2, 2, 2))).retrieve([QUERY], 3).of(0) == opened.bm25.retrieve([QUERY], 3).of(
        0
    )


def test_hybrid_retrieval_takes_weights(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ralm.retrieval.index.load_encoder", lambda _: LetterEncoder())
    monkeypatch.setattr("ralm.retrieval.index.Index.encoder_options", lambda *_: None)
    opened = ralm.open_index(index)
    options = ralm.RetrieverOptions(retriever="hybrid", weighting=save(tmp_path / "weighting", [4, 1, 1]))
    by_hand = ralm.Hybrid(opened.bm25.weighted(Weighting((4, 1, 1))), opened.dense())
    assert ralm.open_retriever(opened, options).config == by_hand.config
    assert by_hand.config != ralm.Hybrid(opened.bm25, opened.dense()).config


def test_what_a_term_adds(index: Path) -> None:
    """The parts sum to the score of a search."""
    bm25 = ralm.open_index(index).bm25
    query = ["stone", "sea", "sea", "unseen", "sheep"]
    passages = [["stone", "sea", "stone", "sea"], ["barn", "moon"], ["hill", "sheep"]]
    found = dict(bm25.retrieve([" ".join(query)], 5).of(0))
    added = [bm25.term_scores(query, passage) for passage in passages]
    np.testing.assert_allclose([one.sum() for one in added], [found[0], 0, found[2]], rtol=1e-5)
    assert (added[2][:4] == 0).all()


@pytest.mark.parametrize("weights", [(1, 1), (0, 1, 1), (1, 1, 5), (1.5, 1, 1), (True, 1, 1)])
def test_weights_out_of_range(weights: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`weights` must be 3 whole numbers from 1 to 4"):
        Weighting(weights)
    with pytest.raises(DamagedFolderError, match="is damaged: `weights` must be"):
        open_weighting(save(tmp_path / "weighting", weights))


def test_folders_that_are_no_weighting(index: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAFolderOfThisKindError, match="is a ralm index, not a ralm weighting"):
        ralm.open_retriever(index, ralm.RetrieverOptions(weighting=index))
    with pytest.raises(DamagedFolderError, match="does not record the weights"):
        open_weighting(save(tmp_path / "one", [1, 1, 1], analysis=3))
    with pytest.raises(UsageError, match="learned for the analyser german, but the index has lucene-english"):
        ralm.open_retriever(index, ralm.RetrieverOptions(weighting=save(tmp_path / "two", [4, 2, 1], "german")))


def test_on_the_command_line(index: Path, tmp_path: Path) -> None:
    weighting = save(tmp_path / "weighting", [4, 1, 1])
    answer = command("search", index, QUERY, "-k", 1, "--weighting", weighting)
    assert answer.status == 0, answer.err
    assert "barn moon" in answer.out
    refused = command("search", index, QUERY, "--retriever", "random", "--weighting", weighting)
    assert refused.status != 0
    assert "--weighting has no effect" in refused.err
    assert command("check", weighting).status == 0
