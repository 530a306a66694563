"""The numbers of passages among the rows of an index, and sets of numbers as rising arrays."""

import numpy as np
from hypothesis import given, strategies as st

from ralm.corpus.numbering import Numbering, are_in, rising, union
from ralm.records import NO_PASSAGE

NUMBERS = st.lists(st.integers(0, 12), max_size=12)


@given(one=NUMBERS, other=NUMBERS)
def test_sets_of_numbers(one: list[int], other: list[int]) -> None:
    for given_as in (one, np.array(one, np.int64)):
        assert rising(given_as).tolist() == sorted({*one})
    assert union(rising(one), rising(other)).tolist() == sorted({*one, *other})
    assert are_in(rising(one), np.array(other, np.int64)).tolist() == [number in one for number in other]


@given(rows=st.integers(13, 20), removed=NUMBERS)
def test_numbers_and_rows(rows: int, removed: list[int]) -> None:
    numbering, left = Numbering(rows, removed), [row for row in range(rows) if row not in removed]
    every = np.arange(len(left))
    assert len(numbering) == len(left)
    assert numbering.rows(every).tolist() == [numbering.row(number) for number in every.tolist()] == left
    assert numbering.numbers(np.array([*left, NO_PASSAGE])).tolist() == [*every.tolist(), NO_PASSAGE]
