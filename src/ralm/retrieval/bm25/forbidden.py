"""Passages that must not be hits: those of the text itself, of titles that an evaluation excludes, or removed ones."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ralm.corpus.numbering import Numbering, rising, union
from ralm.records import IntArray
from ralm.retrieval.bm25.compiled import kernel


class Forbidden(NamedTuple):
    """Passages that no query may find; and lists of passages, concatenated, and which list each query uses, -1 for
    none. All numbers rise within their list.

    Letters of shapes: F lists, Q queries.
    """

    always: NDArray[np.int64]
    ends_F: NDArray[np.int64]
    passages: NDArray[np.int64]
    list_Q: NDArray[np.int64]

    @classmethod
    def none(cls, queries: int) -> Self:
        """Nothing is forbidden."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, np.zeros(1, np.int64), nothing, np.full(queries, -1, np.int64))

    @classmethod
    def to_all(cls, passages: Iterable[int], queries: int) -> Self:
        """The same passages are forbidden for every query."""
        return cls.none(queries)._replace(always=rising(passages))

    @classmethod
    def of(cls, lists: Sequence[Iterable[int]], list_Q: NDArray[np.int64]) -> Self:
        """Lists of passage numbers, in any order, and which of them applies to each query; -1 for none."""
        assert (list_Q < len(lists)).all(), "a query refers to a list that does not exist"
        sorted_lists = [rising(numbers) for numbers in lists]
        ends = np.cumsum([0, *map(len, sorted_lists)], dtype=np.int64)
        return cls(rising([]), ends, np.concatenate([*sorted_lists, rising([])]), list_Q)

    def also(self, passages: IntArray) -> Self:
        """The same, with these passages (int64, rising) forbidden for every query too."""
        return self._replace(always=union(passages, self.always))

    def in_rows(self, numbering: Numbering) -> Self:
        """The same with rows of the index in place of passage numbers."""
        return self._replace(always=numbering.rows(self.always), passages=numbering.rows(self.passages))

    def some(self, first: int, last: int) -> Self:
        """The same for the queries from `first` to `last`."""
        return self._replace(list_Q=self.list_Q[first:last])


@kernel
def listed_for(forbidden: Forbidden, query: int) -> NDArray[np.int64]:
    """The list of a query, rising; those in `always` are forbidden too."""
    number = forbidden.list_Q[query]
    if number < 0:
        return forbidden.passages[:0]
    return forbidden.passages[forbidden.ends_F[number] : forbidden.ends_F[number + 1]]


@kernel
def is_in(numbers: NDArray[np.int64], number: int) -> bool:
    """Whether a number is in a rising array."""
    place = np.searchsorted(numbers, number) if len(numbers) else 0
    return bool(place < len(numbers) and numbers[place] == number)
