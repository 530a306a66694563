"""Arrays of what is kept and what is new, merged: byte for byte those of an index that is built at once."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.retrieval.bm25.merging import NOT_KEPT, MergedArrays, merge_arrays
from tests.retrieval.searching import arrays_of, assert_same_files

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
    sources = [MergedArrays(arrays_of(folder / str(part), texts), numbers[part]) for part, texts in enumerate(parts)]
    counts = merge_arrays(sources, folder / "merged", at_a_time)
    assert counts.passages == len(order)
    at_once = arrays_of(folder / "at-once", [parts[part][row] for part, row in order])
    assert (counts.terms, counts.tokens) == (len(at_once.term_ids), at_once.totals[0])
    assert_same_files(folder / "merged", folder / "at-once")
