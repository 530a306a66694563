"""Stream search against scoring every passage: the same passages, scores and order, whatever the queries do."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.records import NO_PASSAGE, Hits
from ralm.retrieval.allowed import mask_without
from ralm.retrieval.bm25 import search, stream
from ralm.retrieval.bm25.collection import Collection, SearchBatch
from ralm.retrieval.bm25.formula import BM25Options
from ralm.retrieval.bm25.stream import Stream
from tests.campaign import examples
from tests.retrieval.searching import (
    assert_equal,
    indexed,
    pieces,
    some_index,
    streamed,
    strides,
    words,
)


def without(hits: Hits, left_out: Sequence[int], k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best of full rankings that are not left out."""
    numbers_QK = np.full((len(hits), k), NO_PASSAGE)
    scores_QK = np.zeros((len(hits), k), np.float32)
    for row in range(len(hits)):
        kept = [hit for hit in hits.of(row) if hit[0] not in left_out][:k]
        numbers_QK[row, : len(kept)] = [passage for passage, _ in kept]
        scores_QK[row, : len(kept)] = [score for _, score in kept]
    return numbers_QK, scores_QK


@settings(max_examples=examples(40))
@given(
    seed=st.integers(0, 1 << 30),
    passages=st.sampled_from([1, 2, 63, 64, 65, 300, 700, 3000]),
    vocabulary=st.sampled_from([3, 40, 2000]),
    length=st.integers(1, 24),
    stride=st.integers(1, 30),
    k=st.sampled_from([1, 2, 16, 1000]),
    partition=st.sampled_from([1024, 2048, 1 << 17]),
    k1=st.sampled_from([0.0, 0.9]),
    batch=st.sampled_from([1, 7, 256]),
    left_out_thirds=st.sampled_from([0, 0, 1, 6]),
)
def test_equals_reading_every_posting(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    passages: int,
    vocabulary: int,
    length: int,
    stride: int,
    k: int,
    partition: int,
    k1: float,
    batch: int,
    left_out_thirds: int,
) -> None:
    """Duplicate and unknown terms, empty queries (the first), more hits asked for than there are, equal scores."""
    text = words(seed, passages * 12, vocabulary)
    texts = [" ".join(text[i * 12 : (i + 1) * 12 - i % 7]) for i in range(passages)]
    bm25 = indexed(tmp_path_factory.mktemp("index"), texts, BM25Options(k1=k1))
    queries = [*strides(words(seed + 1, 150, vocabulary + 5), length, stride), "", "w1 w1 w1 unseen", "w0 w2"]
    left_out = np.random.default_rng(seed).integers(0, passages, left_out_thirds * passages // 3).tolist()
    some = bm25.only(mask_without(passages, left_out)) if left_out else bm25
    found = streamed(some, queries, min(k, passages), partition, batch)
    chosen = some.retrieve(queries, k)
    expected = without(bm25.retrieve(queries, passages), left_out, min(k, passages))
    for hits in (found, chosen):
        np.testing.assert_array_equal(hits.numbers_QK, expected[0])
        np.testing.assert_allclose(hits.scores_QK, expected[1], rtol=1e-6)


def test_the_choice_is_by_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fills: list[int] = []
    fill = Stream.fill

    def note(self: Stream, batch: SearchBatch) -> None:
        fills.append(len(batch.heaps_QK))
        fill(self, batch)

    monkeypatch.setattr(Stream, "fill", note)
    bm25 = some_index(tmp_path)
    overlapping = strides(words(1, 400, 500), 16, 2)
    apart = strides(words(1, 4000, 500), 16, 40)
    one_by_one = np.concatenate([bm25.retrieve([query], 1).numbers_QK for query in overlapping])
    assert fills == []
    found = bm25.retrieve(overlapping, 1)
    assert sum(fills) == len(overlapping)
    np.testing.assert_array_equal(found.numbers_QK, one_by_one)
    fills.clear()
    bm25.retrieve(apart, 1)
    bm25.retrieve(overlapping[:20], 1)
    bm25.retrieve(overlapping, 1000)
    bm25.retrieve([" ".join(f"w{i}" for i in range(500))] * 100, 1)
    assert fills == [], "no overlap, too few queries, too many hits, too heavy for the bounds"


def test_common_words_are_laid_out_once_queries_have_paid_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries for rare words never pay; the hits of others are the same before and after."""
    made: list[Collection] = []
    lay_out = Collection.laid_out

    def note(self: Collection) -> Collection:
        made.append(lay_out(self))
        return made[-1]

    monkeypatch.setattr(Collection, "laid_out", note)
    bm25 = some_index(tmp_path)
    for _ in range(1000):
        bm25.retrieve(["w299 w423"], 1)
    asked = [f"w{place % 7} w{place % 11} w{(place * 7919) % 500}" for place in range(300)]
    first = [bm25.retrieve([query], 1).of(0) for query in asked[:5]]
    assert not made
    others = [bm25.retrieve([query], 1).of(0) for query in asked[5:]]
    assert len(made) == 1
    assert first + others == [bm25.retrieve([query], 1).of(0) for query in asked]
    assert len(made) == 1
    new = some_index(tmp_path / "new")
    assert [new.retrieve(asked, 1).of(row) for row in range(300)] == first + others
    assert len(made) == 2, "a batch pays at once"


def test_tables_that_grow_too_large_are_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bm25 = indexed(tmp_path, pieces(words(3, 3000, 300), 10))
    queries = strides(words(4, 500, 300), 12, 3)
    expected = bm25.retrieve(queries, 4)
    monkeypatch.setattr(stream, "_TABLE_NUMBERS", 60 * len(bm25.collection.impact_C))
    assert_equal(streamed(bm25, queries, 4, at_a_time=8), expected)
    assert (expected.numbers_QK[1:] != NO_PASSAGE).any()


def test_one_index_asked_by_several_threads(tmp_path: Path) -> None:
    bm25 = some_index(tmp_path)
    texts = [strides(words(seed, 300, 500), 16, 2) for seed in range(12)]
    expected = [some_index(tmp_path / "other").retrieve(queries, 1).numbers_QK for queries in texts]

    def ask(queries: Sequence[str]) -> np.ndarray:
        return np.concatenate([bm25.retrieve([query], 1).numbers_QK for query in queries])

    with ThreadPoolExecutor(max_workers=12) as pool:
        for numbers_QK, known in zip(pool.map(ask, texts), expected, strict=True):
            np.testing.assert_array_equal(numbers_QK, known)


def test_more_kinds_of_postings_than_a_byte_numbers(tmp_path: Path) -> None:
    """Frequencies and lengths of all sorts, of rare terms and of common ones."""
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(3000):
        rare = [f"r{rng.integers(0, 100)}"] * int(rng.integers(1, 60))
        common = [f"w{rng.integers(0, 5)}"] * int(rng.integers(1, 200))
        texts.append(" ".join(rare + common))
    bm25 = indexed(tmp_path, texts)
    assert len(np.load(tmp_path / "escaped.npy")) > 1000
    queries = [f"r{a} r{a + 1} w{b} w{b + 1}" for a in range(0, 90, 3) for b in range(4)]
    assert_equal(streamed(bm25, queries, 10), bm25.retrieve(queries, 10))


def test_streams_on_several_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bm25 = some_index(tmp_path)
    queries = strides(words(1, 3000, 500), 16, 2)
    expected = bm25.retrieve(queries, 1)
    monkeypatch.setattr(search, "cores", lambda: 3)
    assert_equal(bm25.retrieve(queries, 1), expected)
