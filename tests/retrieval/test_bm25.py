"""BM25 against the formula and against Lucene's own answers; its arrays merged, at their limits, compiled."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.errors import CorpusError
from ralm.records import NO_PASSAGE, Passage
from ralm.retrieval.analysis import ENGLISH, Analyser
from ralm.retrieval.bm25 import kernels, search
from ralm.retrieval.bm25.arrays import Arrays
from ralm.retrieval.bm25.build import NOT_KEPT, BM25Builder, merge_arrays
from ralm.retrieval.bm25.formula import BM25Options, length_bytes, stored_lengths
from ralm.retrieval.bm25.lookup import search_lookups
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.bm25.stream import Stream
from ralm.retrieval.build import build_index
from ralm.retrieval.index import open_index
from ralm.retrieval.update import update_index
from tests.fakes import passages_of
from tests.reference import bm25 as reference
from tests.retrieval.searching import arrays_of, assert_equal, assert_same_files, found_by, indexed, pieces, term_texts
from tests.shared_data import shared

LETTERS = ("alpha", "beta", "gamma", "delta", "rare", "the", "unseen")


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


texts_of = st.lists(st.lists(st.sampled_from(LETTERS[:-1]), max_size=40).map(" ".join), min_size=1, max_size=30)
queries_of = st.lists(st.lists(st.sampled_from(LETTERS), max_size=8).map(" ".join), min_size=1, max_size=5)


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


@pytest.fixture(scope="module")
def wikitext(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = shared("data", "wikitext", "test.txt").read_text(encoding="utf-8").split()
    folder = tmp_path_factory.mktemp("wikitext") / "index"
    build_index(passages_of(*pieces(words, 100)), folder, analyser="lucene")
    return folder


@pytest.mark.parametrize("way", ["sum", "stream", "lookup"])
def test_lucene_gives_the_same_top_16(wikitext: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Anserini orders equal scores by id as text, the only difference between its lists and ours."""
    monkeypatch.setattr(search, "PASSAGES_A_HIT", 1 << 40 if way == "sum" else 1)
    monkeypatch.setattr(search, "STREAM_OVERLAP", 0.0 if way == "stream" else 2.0)
    lines = shared("golden", "lucene", "wikitext_stride_queries.jsonl").read_text(encoding="utf-8").splitlines()
    golden = [json.loads(line) for line in lines]
    hits = open_index(wikitext).bm25.retrieve([case["query"] for case in golden], 100)
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


WORDS = [*(f"w{number}" for number in range(12)), "größe", "東京", "w1 " * 300]
TEXT = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)


@settings(max_examples=60)
@given(
    parts=st.lists(st.lists(TEXT, min_size=1, max_size=12), min_size=1, max_size=2),
    at_a_time=st.sampled_from([3, 1000]),
    data=st.data(),
)
def test_merged_arrays_are_those_of_one_build(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]], at_a_time: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("merging")
    every = [(part, row) for part, texts in enumerate(parts) for row in range(len(texts))]
    order = data.draw(st.permutations(every))[: data.draw(st.integers(1, len(every)))]
    numbers = [np.full(len(texts), NOT_KEPT, np.int32) for texts in parts]
    for number, (part, row) in enumerate(order):
        numbers[part][row] = number
    sources = [arrays_of(folder / str(part), texts) for part, texts in enumerate(parts)]
    counts = merge_arrays(sources, numbers, folder / "merged", at_a_time)
    assert counts.passages == len(order)
    at_once = arrays_of(folder / "at-once", [parts[part][row] for part, row in order])
    assert (counts.terms, counts.tokens) == (len(at_once.term_ids), at_once.totals[0])
    assert_same_files(folder / "merged", folder / "at-once")


MOST = 5
REFUSED = r"at most 5 passages, but this one would have 6, or more; make several indexes"


def passages(begin: int, end: int) -> list[Passage]:
    return [Passage(number - begin, f"d{number}", "", f"w{number}") for number in range(begin, end)]


def test_a_number_of_31_bits_names_the_last_passage_that_is_allowed() -> None:
    assert kernels.MAX_PASSAGES == 2_147_483_648
    last = kernels.MAX_PASSAGES - 1
    assert kernels.passage_of(1 << kernels.NUMBER_BITS | kernels.MAX_SCORE - last) == last


def test_as_many_passages_as_are_allowed_and_one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index(passages(0, MOST + 1), tmp_path / "many")
    build_index(passages(0, 4), tmp_path / "few")
    monkeypatch.setattr(kernels, "MAX_PASSAGES", MOST)
    build_index(passages(0, MOST), tmp_path / "allowed")
    for too_many in (
        lambda: build_index(passages(0, MOST + 1), tmp_path / "more"),
        lambda: update_index(tmp_path / "few", passages(4, MOST + 1)),
        lambda: open_index(tmp_path / "many").bm25,
    ):
        with pytest.raises(CorpusError, match=REFUSED):
            too_many()
    update_index(tmp_path / "few", passages(4, MOST))


PASSAGES = 1 << 17
HOLE = (1 << 31) + 12345
A_TERM = 2000  # too few for a common term


def small_index(folder: Path) -> Arrays:
    words = np.random.default_rng(0).zipf(1.3, 3 * PASSAGES) % 5000
    return arrays_of(folder, pieces([f"w{word}" for word in words.tolist()], 3))


def with_hole(arrays: Arrays, terms_before: int, folder: Path) -> Arrays:
    """The same index with a hole of postings behind its first terms, which belongs to terms without a name."""
    at, total = int(arrays.offsets[terms_before]), len(arrays.passages)
    owners = -(-HOLE // A_TERM)
    inserted = np.minimum(np.arange(1, owners + 1) * A_TERM, HOLE) + at
    offsets = np.concatenate([arrays.offsets[: terms_before + 1], inserted, arrays.offsets[terms_before + 1 :] + HOLE])
    widened = {}
    for name in ("passages", "codes"):
        column = getattr(arrays, name)
        wide = np.memmap(folder / f"{name}.wide", column.dtype, "w+", shape=(total + HOLE,))
        wide[:at], wide[at + HOLE :] = column[:at], column[at:]
        widened[name] = np.asarray(wide)
    term_ids = np.where(arrays.term_ids < terms_before, arrays.term_ids, arrays.term_ids + owners)
    return replace(arrays, offsets=offsets, passages=widened["passages"], codes=widened["codes"], term_ids=term_ids)


def test_more_postings_than_32_bits_can_number(tmp_path: Path) -> None:
    arrays = small_index(tmp_path)
    order = np.argsort(-np.diff(arrays.offsets), kind="stable")
    terms_before = int(np.sort(order[:10])[5])  # common terms on both sides of the hole
    wide = with_hole(arrays, terms_before, tmp_path)
    assert wide.offsets[-1] > 1 << 31
    rng = np.random.default_rng(1)
    text = np.where(rng.random(400) < 0.5, order[rng.integers(0, 10, 400)], rng.integers(0, len(order), 400))
    texts = term_texts(arrays)
    words = [texts[term] for term in text]
    queries = [words[end - 12 : end] for end in range(12, 400, 3)]
    small, large = BM25(arrays, PASSAGES), BM25(wide, PASSAGES)
    expected = small.retrieve_terms([small.terms(query) for query in queries], 16)
    assert len(large.collection.postings.most_M) >= 10
    terms = [large.terms(query) for query in queries]
    assert_equal(found_by(Stream(large.collection, 16), large._batch(terms, 16)), expected)
    for collection in (large._plain, large.collection):
        batch = large._batch(terms, 16)
        search_lookups(collection, batch)
        assert_equal(batch.hits(), expected)


def test_kernels_need_no_place_for_a_cache() -> None:
    """A function without a file is none that numba can cache."""
    names: dict[str, Any] = {}
    exec("def following(number): return number + 1", names)
    assert kernels.Kernel(names["following"])(1) == 2
