"""Stream search against scoring every passage: the same passages, scores and order, whatever the queries do."""

import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.errors import DamagedFolderError
from ralm.records import NO_PASSAGE, Hits
from ralm.retrieval.bm25 import scan, search, stream
from ralm.retrieval.bm25.arrays import row_of
from ralm.retrieval.bm25.collection import BLOCK_BITS, CommonTerms, find_common_terms, steps
from ralm.retrieval.bm25.formula import BM25Options
from ralm.retrieval.bm25.scan import Forbidden
from ralm.retrieval.bm25.stream import QueryRuns, Stream
from tests.retrieval.searching import assert_equal, found_by, indexed, pieces, some_index, streamed, strides, words


def without(hits: Hits, lists: Sequence[Sequence[int]], list_Q: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best of full rankings that are not forbidden."""
    numbers_QK = np.full((len(hits), k), NO_PASSAGE)
    scores_QK = np.zeros((len(hits), k), np.float32)
    for row, number in enumerate(list_Q.tolist()):
        kept = [hit for hit in hits.of(row) if number < 0 or hit[0] not in lists[number]][:k]
        numbers_QK[row, : len(kept)] = [passage for passage, _ in kept]
        scores_QK[row, : len(kept)] = [score for _, score in kept]
    return numbers_QK, scores_QK


@settings(max_examples=40)
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
    forbids=st.booleans(),
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
    forbids: bool,
) -> None:
    """Duplicate and unknown terms, empty queries (the first), more hits asked for than there are, equal scores."""
    text = words(seed, passages * 12, vocabulary)
    texts = [" ".join(text[i * 12 : (i + 1) * 12 - i % 7]) for i in range(passages)]
    bm25 = indexed(tmp_path_factory.mktemp("index"), texts, BM25Options(k1=k1))
    queries = [*strides(words(seed + 1, 150, vocabulary + 5), length, stride), "", "w1 w1 w1 unseen", "w0 w2"]
    rng = np.random.default_rng(seed)
    lists = [rng.integers(0, passages, size).tolist() for size in (0, 1, passages // 3, 2 * passages)]
    list_Q = rng.integers(-1, len(lists), len(queries)) if forbids else np.full(len(queries), -1)
    forbidden = Forbidden.of(lists, list_Q)
    found = streamed(bm25, queries, min(k, passages), partition, forbidden, batch)
    scanned = bm25.retrieve(queries, k, forbidden)
    expected = without(bm25.retrieve(queries, passages), lists, list_Q, min(k, passages))
    for hits in (found, scanned):
        np.testing.assert_array_equal(hits.numbers_QK, expected[0])
        np.testing.assert_allclose(hits.scores_QK, expected[1], rtol=1e-6)


def test_the_choice_is_by_size_and_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int]) -> None:
    bm25 = some_index(tmp_path)
    overlapping = strides(words(1, 400, 500), 16, 2)
    apart = strides(words(1, 4000, 500), 16, 40)
    plain = bm25.retrieve(overlapping, 5)
    assert fills == [], "too few passages"
    monkeypatch.setattr(search, "STREAM_PASSAGES", 0)
    monkeypatch.setattr(search, "COMMON_POSTINGS", 2)
    found = bm25.retrieve(overlapping, 5)
    assert sum(fills) == len(overlapping)
    assert_equal(found, plain)
    fills.clear()
    bm25.retrieve(apart, 5)
    bm25.retrieve(overlapping[:20], 5)
    bm25.retrieve(overlapping, 1000)
    bm25.retrieve([" ".join(f"w{i}" for i in range(500))] * 100, 5)
    assert fills == [], "no overlap, too few queries, too many hits, too heavy for the bounds"


def test_batches_of_common_words_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int], lookups: list[int]
) -> None:
    """Many at once; some at once when the common words are laid out, and single ones too."""
    bm25 = some_index(tmp_path)
    apart = [f"w{place % 7} w{place % 11} w{(place * 7919) % 500}" for place in range(100)]
    expected = bm25.retrieve(apart, 5)
    monkeypatch.setattr(search, "STREAM_PASSAGES", 0)
    assert_equal(bm25.retrieve(apart, 5), expected)
    assert sum(lookups) == len(apart)
    bm25._loader.background.ready()
    bm25._loader.background.wait()
    for some in (apart[:20], apart[:7]):
        lookups.clear()
        np.testing.assert_array_equal(bm25.retrieve(some, 5).numbers_QK, expected.numbers_QK[: len(some)])
        assert sum(lookups) == len(some)
    assert fills == []


def test_tables_that_grow_too_large_are_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bm25 = indexed(tmp_path, pieces(words(3, 3000, 300), 10))
    queries = strides(words(4, 500, 300), 12, 3)
    expected = bm25.retrieve(queries, 4)
    monkeypatch.setattr(stream, "_TABLE_NUMBERS", 60 * bm25.collection.codes)
    assert_equal(streamed(bm25, queries, 4, at_a_time=8), expected)
    assert (expected.numbers_QK[1:] != NO_PASSAGE).any()


def test_queries_one_at_a_time_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int], lookups: list[int]
) -> None:
    """Those of texts that are written together, which take turns: the same hits and scores as all at once."""
    bm25 = some_index(tmp_path)
    texts = [strides(words(seed, 300, 500), 16, 2) for seed in range(3)]
    asked = [query for turn in zip(*texts, strict=True) for query in turn]
    expected = bm25.retrieve(asked, 4)
    monkeypatch.setattr(search, "STREAM_PASSAGES", 0)
    bm25._loader.background.ready()
    bm25._loader.background.wait()
    hits = [bm25.retrieve([query], 4) for query in asked]
    np.testing.assert_array_equal(np.concatenate([one.numbers_QK for one in hits]), expected.numbers_QK)
    np.testing.assert_array_equal(np.concatenate([one.scores_QK for one in hits]), expected.scores_QK)
    assert len(lookups) > len(asked) - 20, "but for those without common words"
    assert fills == []


def test_single_queries_pay_for_the_layout_of_common_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int], lookups: list[int]
) -> None:
    """Few words, one or two of them in common with a query before; and one text that goes on among many such."""
    bm25 = some_index(tmp_path)
    rng = np.random.default_rng(0)
    text = strides(words(1, 400, 500), 16, 4)
    asked = [f"w0 w1 w{rng.integers(500)} w{rng.integers(500)}" for _ in range(300)]
    asked += [query for pair in zip(asked[::3], text, strict=True) for query in pair]
    expected = bm25.retrieve(asked, 4)
    monkeypatch.setattr(search, "STREAM_PASSAGES", 0)
    first = [bm25.retrieve([query], 4).of(0) for query in asked[:20]]
    assert not bm25._loader.background.is_started, "a few single queries do not pay for the layout"
    others = [bm25.retrieve([query], 4).of(0) for query in asked[20:220]]
    bm25._loader.background.wait()
    others += [bm25.retrieve([query], 4).of(0) for query in asked[220:]]
    assert first + others == [expected.of(row) for row in range(len(asked))]
    assert len(lookups) >= len(asked) - 220
    assert fills == []


def test_what_streams_need_is_laid_out_beside_the_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No query waits for it: all are answered while it is held up. A failure is said, and changes no answer."""
    monkeypatch.setattr(search, "STREAM_PASSAGES", 0)
    queries = strides(words(1, 800, 500), 16, 4)[10:]
    for number, fault in enumerate((None, MemoryError("no room"), DamagedFolderError("no room"))):
        bm25 = some_index(tmp_path / str(number))
        go_on = threading.Event()

        def held_up(*given: Any, go_on: threading.Event = go_on, fault: Exception | None = fault) -> CommonTerms:
            assert go_on.wait(60)
            if fault is not None:
                raise fault
            return find_common_terms(*given)

        monkeypatch.setattr(stream, "find_common_terms", held_up)
        found = [bm25.retrieve([query], 4).of(0) for query in queries]
        assert bm25._loader.background.is_started
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            go_on.set()
            bm25._loader.background.wait()
        assert ["no room" in str(one.message) for one in caught] == [True] * (fault is not None)
        assert [bm25.retrieve([query], 4).of(0) for query in queries] == found


def test_a_program_ends_while_streams_are_prepared(tmp_path: Path) -> None:
    """At once, and in peace."""
    program = """
import sys, time
from ralm.retrieval.bm25.collection import BackgroundTask

def make(go_on):
    while True:
        go_on()
        time.sleep(0.01)

assert BackgroundTask(make).ready() is None
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_index_asked_by_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bm25 = some_index(tmp_path)
    texts = [strides(words(seed, 300, 500), 16, 2) for seed in range(12)]
    expected = [bm25.retrieve(queries, 4).numbers_QK for queries in texts]
    monkeypatch.setattr(search, "STREAM_PASSAGES", 0)

    def ask(queries: Sequence[str]) -> np.ndarray:
        return np.concatenate([bm25.retrieve([query], 4).numbers_QK for query in queries])

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


def test_a_posting_adds_the_same_points_wherever_it_is_read(tmp_path: Path) -> None:
    """A scan, a stream and the layout of common terms; also for a code whose impact is 0, as that of the escape is."""
    bm25 = some_index(tmp_path)
    arrays, impact_C = bm25._segments[0].arrays, bm25._searched[0].impact_C
    worthless = int(np.bincount(arrays.codes).argmax())
    impact_C[worthless], impact_C[-1] = 0, 1e-9
    asked = [bm25._lexicon.number(term) for term in arrays.term_texts(np.arange(len(arrays.term_ids)))]
    collection = bm25.collection
    idf_V, term_V = bm25._lexicon.idf_V[asked], bm25._lexicon.terms_SV[0, asked]
    np.testing.assert_array_equal(term_V, np.arange(len(idf_V)))
    expected_VC = np.maximum(1, np.rint(idf_V[:, None] * impact_C * 2**20)).astype(np.int32)
    expected_VC[:, worthless] = 0
    assert (expected_VC == 1).any(), "some are worth less than a point"

    ends = np.arange(len(idf_V) + 1)
    scanned = scan.ScanQueries(ends, idf_V, np.ones(len(idf_V), np.int64))
    np.testing.assert_array_equal(scan.units(scanned), np.full(len(idf_V), 2**-20))
    for term in range(len(idf_V)):
        scanned_TC = scan._points(scanned, term, 2**-20, impact_C)
        np.testing.assert_array_equal(scanned_TC, expected_VC[term : term + 1])

    streaming = Stream(collection, 3, 1024)
    found_by(streaming, [[term] for term in asked], 3)
    np.testing.assert_array_equal(streaming._segments[0]._terms.points_TC[streaming._row_V[asked]], expected_VC)

    common = collection.common[0]
    assert common.highest_MB.any()
    for term in np.flatnonzero(common.row_V >= 0).tolist():
        highest_B = np.zeros(common.highest_MB.shape[1], np.uint8)
        for posting in range(int(arrays.offsets[term]), int(arrays.offsets[term + 1])):
            added = expected_VC[term, row_of(*arrays.posting_codes, posting)]
            block = arrays.passages[posting] >> BLOCK_BITS
            highest_B[block] = max(highest_B[block], steps(added))
        np.testing.assert_array_equal(common.highest_MB[common.row_V[term]], highest_B)

    queries = strides(words(1, 300, 500), 16, 2)
    assert_equal(streamed(bm25, queries, 5), bm25.retrieve(queries, 5))


@given(count=st.integers(0, 60), workers=st.integers(1, 5), step=st.integers(1, 9), order=st.randoms())
def test_every_query_is_taken_once_and_each_worker_begins_where_it_stands(
    count: int, workers: int, step: int, order: random.Random
) -> None:
    runs = QueryRuns(count, workers, step)
    taken: list[int] = []
    busy = list(range(workers))
    while busy:
        worker = order.choice(busy)
        some = runs.take(worker)
        taken += some
        assert len(some) <= step
        if not some:
            busy.remove(worker)
    assert sorted(taken) == list(range(count))


def test_streams_on_several_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bm25 = some_index(tmp_path)
    queries = strides(words(1, 3000, 500), 16, 2)
    expected = bm25.retrieve(queries, 4)
    monkeypatch.setattr(search, "STREAM_PASSAGES", 0)
    monkeypatch.setattr(search, "cores", lambda: 3)
    assert_equal(bm25.retrieve(queries, 4), expected)
