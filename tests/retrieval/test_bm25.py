"""BM25 against the formula on random corpora, and against Lucene's own answers."""

import json
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.errors import CorpusError
from ralm.records import NO_PASSAGE, Passage
from ralm.retrieval.analysis import ENGLISH, Analyser
from ralm.retrieval.bm25 import search, stream
from ralm.retrieval.bm25.build import BM25Builder
from ralm.retrieval.bm25.formula import BM25Options, length_bytes, stored_lengths
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.build import build_index
from ralm.retrieval.index import open_index
from tests.reference import bm25 as reference
from tests.retrieval.searching import arrays_of, assert_same_files, indexed
from tests.shared_data import shared

WORDS = ("alpha", "beta", "gamma", "delta", "rare", "the", "unseen")


def test_words_that_no_passage_has_are_not_remembered_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_WORDS", 50)
    retriever = indexed(tmp_path, ["alpha beta", "gamma"])
    expected = retriever.retrieve(["gamma unseen"], 2).of(0)

    def ask(first: int) -> None:
        for number in range(first, first + 2000):
            assert retriever.retrieve([f"gamma {'x' * 200}{number}"], 2).of(0) == expected

    ask(0)
    tracemalloc.start()
    try:
        ask(2000)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 100_000  # 2,000 words have 400,000 characters
    ask(0)


def check(retriever: BM25, texts: list[str], queries: list[str], k: int, options: BM25Options) -> None:
    """Every list of hits is that of scoring all passages, up to the order of scores that differ by rounding alone."""
    analyse = Analyser(ENGLISH)
    passages = [analyse(text) for text in texts]
    hits = retriever.retrieve(queries, k)
    assert hits.numbers_QK.shape == (len(queries), min(k, len(texts)))
    for row, query in enumerate(queries):
        matching = reference.ranked(analyse(query), passages, options.k1, options.b)
        expected = dict(matching)
        found = hits.of(row)
        assert len(found) == min(k, len(matching))
        assert len({number for number, _ in found}) == len(found)
        for (number, score), (_, best) in zip(found, matching, strict=False):
            assert score == pytest.approx(best, abs=1e-4)
            assert score == pytest.approx(expected[number], abs=1e-4)
        assert (hits.numbers_QK[row, len(found) :] == NO_PASSAGE).all()
        for (first, high), (second, low) in pairwise(found):
            assert high > low or (high == low and first < second), "equal scores by lower number"


texts_of = st.lists(st.lists(st.sampled_from(WORDS[:-1]), max_size=40).map(" ".join), min_size=1, max_size=30)
queries_of = st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), min_size=1, max_size=5)


@settings(max_examples=60)
@given(
    texts=texts_of,
    queries=queries_of,
    k=st.integers(1, 40),
    k1=st.sampled_from([0.0, 0.9, 2.0]),
    b=st.sampled_from([0.0, 0.4, 1.0]),
    buffered=st.sampled_from([1, 50, 1 << 20]),
)
def test_equals_scoring_every_passage(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    queries: list[str],
    k: int,
    k1: float,
    b: float,
    buffered: int,
) -> None:
    options = BM25Options(k1=k1, b=b)
    arrays = arrays_of(tmp_path_factory.mktemp("index"), texts, buffered=buffered)
    retriever = BM25(arrays, len(texts), options)
    check(retriever, texts, queries, k, options)


@pytest.mark.parametrize(
    ("texts", "queries", "k"),
    [
        (["alpha " * n + "beta " * (n % 7) for n in range(1, 1200, 13)], ["alpha beta", "beta"], 20),
        ([*("alpha " * n for n in (1, 255, 256, 257, 70_000)), "beta"], ["alpha"], 6),
        (["alpha " * n + "beta " * (n // 2) for n in range(1, 500)], ["beta"], 5),
    ],
)
def test_long_passages_and_frequent_terms(tmp_path: Path, texts: list[str], queries: list[str], k: int) -> None:
    """More pairs of frequency and length than a byte numbers; frequencies above 255."""
    check(indexed(tmp_path, texts, buffered=400), texts, queries, k, BM25Options())
    frequencies = {Counter(text.split())[word] for text in texts for word in ("alpha", "beta")} - {0}
    assert set(np.load(tmp_path / "code_table.npy")[:, 0].tolist()) - {0} == frequencies
    assert (len(np.load(tmp_path / "escaped.npy")) > 0) == (len(texts) > 400)


def test_a_query_too_long_for_its_scores_to_be_exact_to_twenty_bits(tmp_path: Path) -> None:
    texts = ["alpha beta", "alpha", "gamma"]
    retriever = indexed(tmp_path, texts)
    hits = retriever.retrieve(["alpha " * 5000 + "gamma " * 4000], 3)
    expected = dict(reference.ranked(["alpha"] * 5000 + ["gamma"] * 4000, [text.split() for text in texts]))
    for number, score in hits.of(0):
        assert score == pytest.approx(expected[number], rel=1e-3)


def test_scores_at_the_end_of_31_bits(tmp_path: Path) -> None:
    """In steps of some thousand points across the greatest score that is exact to twenty bits."""
    retriever = indexed(tmp_path, ["alpha"] * 50, BM25Options(k1=0))
    term, weight = retriever.terms(["alpha"]), retriever.retrieve(["alpha"], 1).scores_QK[0, 0]
    most = int(2**11 / weight)
    for times in range(most - 4, most + 3):
        hits = retriever.retrieve_terms([term * times], 3)
        assert hits.numbers_QK.tolist() == [[0, 1, 2]]
        np.testing.assert_allclose(hits.scores_QK, weight * times, rtol=1e-4)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50))
def test_lengths_are_rounded_as_the_formula_says(lengths: list[int]) -> None:
    stored = stored_lengths(length_bytes(np.array(lengths, np.int64)))
    assert stored.tolist() == [reference.stored_length(length) for length in lengths]


def test_a_term_of_every_passage_of_a_long_corpus_still_makes_hits(tmp_path: Path) -> None:
    """Its weight is below a unit of the fixed-point scores."""
    retriever = indexed(tmp_path, ["alpha"] * 1_200_000)
    assert [number for number, _ in retriever.retrieve(["alpha"], 3).of(0)] == [0, 1, 2]


def test_the_same_arrays_whatever_the_buffer(tmp_path: Path) -> None:
    """Spilling and merging change nothing, and leave nothing behind."""
    texts = [" ".join(f"w{(i * j) % 53}" for j in range(i % 17)) for i in range(300)]
    for name, buffered in (("whole", 1 << 20), ("spilled", 60)):
        indexed(tmp_path / name, texts, buffered=buffered)
    assert_same_files(tmp_path / "whole", tmp_path / "spilled")


def test_passages_without_terms(tmp_path: Path) -> None:
    retriever = indexed(tmp_path / "none", ["the of", "", "..."])
    assert retriever.retrieve(["the", "alpha", ""], 2).of(1) == []
    with pytest.raises(CorpusError, match="no passages"):
        BM25Builder(tmp_path / "empty").finish()


def wikitext_passages() -> list[Passage]:
    words = shared("data", "wikitext", "test.txt").read_text(encoding="utf-8").split()
    texts = [" ".join(words[i : i + 100]) for i in range(0, len(words), 100)]
    return [Passage(number=n, document_id=str(n), title="", text=text) for n, text in enumerate(texts)]


@pytest.mark.parametrize("way", ["sum", "stream", "lookup"])
def test_lucene_gives_the_same_top_16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Anserini orders equal scores by id as text, the only difference between its lists and ours."""
    monkeypatch.setattr(search, "PASSAGES_A_HIT", 1 << 40 if way == "sum" else 1)
    monkeypatch.setattr(stream, "STREAM_OVERLAP", 0.0 if way == "stream" else 2.0)
    lines = shared("golden", "lucene", "wikitext_stride_queries.jsonl").read_text(encoding="utf-8").splitlines()
    golden = [json.loads(line) for line in lines]
    build_index(wikitext_passages(), tmp_path / "index", analyser="lucene")
    hits = open_index(tmp_path / "index").bm25.retrieve([case["query"] for case in golden], 100)
    assert len(golden) == 600
    for row, case in enumerate(golden):
        ours, lucene = hits.of(row)[:16], case["hits"]
        np.testing.assert_allclose([score for _, score in ours], [score for _, score in lucene], atol=1e-3)
        score_of = dict(lucene)
        last = lucene[-1][1]
        for number, score in ours:
            assert number in score_of or abs(score - last) < 1e-3, "only ties with the last may be others"
            assert abs(score_of.get(number, last) - score) < 1e-3
        by_text = sorted(hits.of(row), key=lambda hit: (-hit[1], str(hit[0])))
        assert [number for number, _ in by_text[:16]] == [number for number, _ in lucene]


def test_odd_queries(tmp_path: Path) -> None:
    bm25 = indexed(tmp_path, ["red fox", "fox sea"])
    queries = ["", " ", "\0", "\ud800", "\ud800 fox", "fox " * 250_000]
    found = [[number for number, _ in bm25.retrieve([query], 1 << 30).of(0)] for query in queries]
    assert found == [[], [], [], [], [0, 1], [0, 1]]
    assert len(bm25.retrieve([], 3)) == 0
