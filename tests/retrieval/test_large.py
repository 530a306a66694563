"""An index of more than 2^31 postings: every offset into it must be a 64-bit number.

Terms that nobody asks for stand between those of a small index. Their postings are holes of sparse files, so the test
needs neither much disk nor much time.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ralm.retrieval.bm25.arrays import Arrays
from ralm.retrieval.bm25.lookup import search_lookups
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.bm25.stream import Stream
from tests.retrieval.searching import arrays_of, assert_equal, found_by, pieces, term_texts

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
