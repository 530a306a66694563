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
from ralm.retrieval.bm25.kernels import Kernel
from ralm.retrieval.bm25.scan import Forbidden
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.bm25.segments import RemovedPassages, Segment, merge_arrays
from ralm.retrieval.filters import Passing, parse_filter
from tests.retrieval.searching import arrays_of, assert_equal, streamed, words

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
    rows = streamed(bm25, queries, k, forbidden=Forbidden.none(len(queries)).with_always(bm25._forbidden_rows))
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
    assert hits(BM25(segments).without(forbidden), queries, k) == hits(BM25([at_once]).without(forbidden), queries, k)
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


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> BM25:
    """Three segments of passages of many lengths, whose code tables have more rows than codes; some are removed."""
    folder, drawn = tmp_path_factory.mktemp("varied"), words(0, 60_000, 40)
    lengths = np.random.default_rng(1).integers(1, 180, 640).tolist()
    texts = [" ".join(drawn[row * 90 :][:length]) for row, length in enumerate(lengths)]
    parts = (texts[:300], texts[300:301], texts[301:])
    segments = [built(folder / str(place), part, range(0, len(part) - 1, 7)) for place, part in enumerate(parts)]
    assert all(len(one.arrays.escaped) for one in (segments[0], segments[2]))
    return BM25(segments)


@settings(max_examples=60)
@given(
    queries=st.lists(st.lists(st.sampled_from([*words(0, 60, 40), "x"]), max_size=40).map(" ".join), max_size=3),
    k=st.integers(1, 700),
    times=st.sampled_from([1, 60]),
    seed=st.integers(0, 9),
    share=st.sampled_from([None, 0.0, 0.01, 0.5, 1.0]),
)
def test_the_first_queries_of_a_process_find_the_same_without_compiled_kernels(
    varied: BM25, queries: list[str], k: int, times: int, seed: int, share: float | None
) -> None:
    random, numbering = np.random.default_rng(seed), varied._numbering
    lists = [random.integers(0, len(numbering), random.integers(len(numbering))) for _ in range(2)]
    forbidden = Forbidden.of(lists, np.arange(len(queries)) % 3 - 1).with_always(lists[0][:5])
    queries = [f"{query} " * times for query in queries]
    bm25 = varied
    if share is not None:
        rows = random.random(len(numbering) + len(numbering.removed)) < share
        rows[numbering.removed] = False
        bm25 = varied.filtered(Passing(parse_filter('id == "x"'), rows, numbering))
    for limit in (forbidden, None):
        compiled = bm25.retrieve(queries, k, limit)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Kernel, "loaded", False)
            assert_equal(bm25.retrieve(queries, k, limit), compiled)
            assert not Kernel.loaded
