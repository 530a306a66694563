"""Indexes for BM25 of texts, and the ways of searching them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ralm.records import Hits
from ralm.retrieval.analysis import ENGLISH, Analysis
from ralm.retrieval.bm25.arrays import Arrays, open_arrays
from ralm.retrieval.bm25.build import BM25Builder
from ralm.retrieval.bm25.collection import SearchBatch
from ralm.retrieval.bm25.formula import BM25Options, BuildOptions
from ralm.retrieval.bm25.lookup import search_lookups
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.bm25.stream import Stream


def arrays_of(
    folder: Path,
    texts: Sequence[str],
    build: BuildOptions | None = None,
    analysis: Analysis = ENGLISH,
    buffered: int = 1 << 20,
) -> Arrays:
    """The arrays of texts, written into a folder with a buffer of so many terms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BuildOptions, "buffered_terms", buffered)
        builder = BM25Builder(folder, build, analysis)
        for text in texts:
            builder.add(text)
        builder.finish()
    return open_arrays(folder)


def term_texts(arrays: Arrays) -> list[str]:
    """The terms of an index by their numbers."""
    texts = [""] * len(arrays.term_ids)
    for place, number in enumerate(arrays.term_ids.tolist()):
        texts[number] = arrays._term_bytes(place).decode()
    return texts


def indexed(folder: Path, texts: Sequence[str], options: BM25Options | None = None, *, buffered: int = 1 << 20) -> BM25:
    """BM25 over texts."""
    return BM25(arrays_of(folder, texts, buffered=buffered), len(texts), options)


def words(seed: int, count: int, vocabulary: int) -> list[str]:
    """Words as frequent as in a text: few common ones, many rare."""
    drawn = np.random.default_rng(seed).zipf(1.2, count) % vocabulary
    return [f"w{word}" for word in drawn.tolist()]


def pieces(text: Sequence[str], size: int = 12) -> list[str]:
    """Passages of `size` words."""
    return [" ".join(text[i : i + size]) for i in range(0, len(text), size)]


def strides(text: Sequence[str], length: int, stride: int) -> list[str]:
    """Queries of `length` words, one every `stride` words; the first is empty."""
    return [" ".join(text[max(0, end - length) : end]) for end in range(0, len(text), stride)]


def some_index(folder: Path) -> BM25:
    """BM25 over 500 passages of 12 words."""
    return indexed(folder, pieces(words(0, 6000, 500)))


def streamed(bm25: BM25, queries: Sequence[str], k: int, partition: int = 1024, at_a_time: int = 256) -> Hits:
    """What one stream finds, and lookups as well, with the layout of common words and without."""
    terms = [bm25.terms(query.split()) for query in queries]
    found = found_by(Stream(bm25.collection, k, partition), bm25._batch(terms, k), at_a_time)
    for collection in (bm25.collection, bm25._plain):
        batch = bm25._batch(terms, k)
        search_lookups(collection, batch, partition)
        assert_equal(batch.hits(), found)
    return found


def found_by(stream: Stream, batch: SearchBatch, at_a_time: int = 256) -> Hits:
    """What a stream finds for its next queries."""
    for first in range(0, len(batch.heaps_QK), at_a_time):
        stream.fill(batch.part(first, first + at_a_time))
    return batch.hits()


def assert_equal(found: Hits, expected: Hits) -> None:
    """The same passages, and the same scores to the last bit."""
    np.testing.assert_array_equal(found.numbers_QK, expected.numbers_QK)
    np.testing.assert_array_equal(found.scores_QK, expected.scores_QK)


def assert_same_files(one: Path, other: Path) -> None:
    """The same files, byte for byte."""
    names = sorted(file.name for file in one.iterdir())
    assert names == sorted(file.name for file in other.iterdir())
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
