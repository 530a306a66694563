"""Passages that must not be hits of a query: those of the text itself, or of titles that an evaluation excludes."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.compiled import kernel


class Forbidden(NamedTuple):
    """Lists of rising passage numbers, concatenated, and which list each query uses, -1 for none.

    Letters of shapes: F lists, Q queries.
    """

    ends_F: NDArray[np.int64]
    passages: NDArray[np.int64]
    list_Q: NDArray[np.int64]

    @classmethod
    def none(cls, queries: int) -> Self:
        """Nothing is forbidden."""
        return cls(np.zeros(1, np.int64), np.zeros(0, np.int64), np.full(queries, -1, np.int64))

    @classmethod
    def to_all(cls, passages: Iterable[int], queries: int) -> Self:
        """The same passages are forbidden for every query."""
        return cls.of([passages], np.zeros(queries, np.int64))

    @classmethod
    def of(cls, lists: Sequence[Iterable[int]], list_Q: NDArray[np.int64]) -> Self:
        """Lists of passage numbers, in any order, and which of them applies to each query; -1 for none."""
        assert (list_Q < len(lists)).all(), "a query refers to a list that does not exist"
        rising = [np.unique(np.fromiter(numbers, np.int64)) for numbers in lists]
        ends = np.cumsum([0, *map(len, rising)], dtype=np.int64)
        return cls(ends, np.concatenate([*rising, np.zeros(0, np.int64)]), list_Q)

    def to_each(self, queries: int) -> Self:
        """The same single list, for this many queries."""
        return self._replace(list_Q=np.zeros(queries, np.int64))

    def also(self, passages: NDArray[np.int64]) -> Self:
        """The same, with these passages forbidden for every query too."""
        lists = (
            np.split(self.passages, self.ends_F[1:-1]) if len(self.ends_F) > 1 else []
        )  # split gives one list even without any
        return self.of([passages, *(np.concatenate([passages, own]) for own in lists)], self.list_Q + 1)

    def some(self, first: int, last: int) -> Self:
        """The same for the queries from `first` to `last`."""
        return self._replace(list_Q=self.list_Q[first:last])


@kernel
def forbidden_to(forbidden: Forbidden, query: int) -> NDArray[np.int64]:
    """The passages that a query may not find, rising."""
    number = forbidden.list_Q[query]
    if number < 0:
        return forbidden.passages[:0]
    return forbidden.passages[forbidden.ends_F[number] : forbidden.ends_F[number + 1]]
