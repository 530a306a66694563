"""An index of several segments, some passages removed: the same hits as an index built at once, before and after a
merge."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.records import Hits
from ralm.retrieval.bm25.arrays import ARRAY_NAMES, open_arrays
from ralm.retrieval.bm25.scan import Forbidden
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.bm25.segments import RemovedPassages, Segment, merge_arrays
from tests.retrieval.searching import arrays_of, assert_equal, streamed

WORDS = [f"w{number}" for number in range(12)]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), min_size=1, max_size=12)
QUERIES = st.lists(st.lists(st.sampled_from([*WORDS, "x"]), max_size=6).map(" ".join), min_size=1, max_size=8)


def built(folder: Path, texts: Sequence[str], gone: Sequence[int] = ()) -> Segment:
    arrays = arrays_of(folder, texts)
    lost = [texts[row].split() for row in gone]
    counted = Counter(arrays.term(word) for words in lost for word in set(words))
    terms = np.array(sorted(counted), np.int64)
    removed = RemovedPassages(
        rows=np.array(gone, np.int64),
        terms=terms,
        counts=np.array([counted[term] for term in terms.tolist()], np.int64),
        tokens=sum(map(len, lost)),
        with_terms=sum(map(bool, lost)),
    )
    return Segment(arrays, len(texts), removed)


def hits(bm25: BM25, queries: Sequence[str], k: int) -> list[list[tuple[int, float]]]:
    """By scanning and by streaming, which must agree."""
    found = bm25.retrieve(queries, k)
    rows = streamed(bm25, queries, k, forbidden=bm25._in_rows(len(queries), None))
    rows = rows.first(found.numbers_QK.shape[1])
    assert_equal(Hits(bm25._numbering.numbers(rows.numbers_QK), rows.scores_QK), found)
    return [found.of(row) for row in range(len(found))]


@settings(max_examples=60)
@given(parts=st.lists(TEXTS, min_size=1, max_size=4), queries=QUERIES, k=st.integers(1, 9), data=st.data())
def test_segments_are_searched_as_one_index(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]], queries: list[str], k: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("segments")
    gone = [sorted(data.draw(st.sets(st.integers(0, len(texts) - 1), max_size=len(texts)))) for texts in parts]
    left = [text for texts, lost in zip(parts, gone, strict=True) for row, text in enumerate(texts) if row not in lost]
    if not left:
        return
    segments = [
        built(folder / str(place), texts, lost) for place, (texts, lost) in enumerate(zip(parts, gone, strict=True))
    ]
    at_once = built(folder / "at-once", left)
    expected = hits(BM25([at_once]), queries, k)
    assert hits(BM25(segments), queries, k) == expected

    forbidden = data.draw(st.lists(st.integers(0, len(left) - 1), max_size=3))
    list_Q = np.arange(len(queries)) % 2 - 1
    one, other = (BM25(some).retrieve(queries, k, Forbidden.of([forbidden], list_Q)) for some in (segments, [at_once]))
    np.testing.assert_array_equal(one.numbers_QK, other.numbers_QK)

    counts = merge_arrays(segments, folder / "merged", at_a_time=5)
    assert counts.passages == len(left)
    merged = open_arrays(folder / "merged")
    merged.check(len(left))
    assert hits(BM25([Segment(merged, len(left))]), queries, k) == expected
    if not any(gone):
        for name in ARRAY_NAMES:
            assert (folder / "merged" / f"{name}.npy").read_bytes() == (folder / "at-once" / f"{name}.npy").read_bytes()
