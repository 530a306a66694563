"""Translates between the rows of an index and the numbers of its passages.

Rows count everything that is stored. Numbers count the passages that have not been removed, so they are the same as in
an index that was built of those passages at once.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ralm.records import NO_PASSAGE, BoolArray, IntArray


def rising(numbers: Iterable[int]) -> IntArray:
    """Different numbers (int64), rising; an array that rises already is returned as it is."""
    array = numbers if isinstance(numbers, np.ndarray) else np.fromiter(numbers, np.int64)
    array = array.astype(np.int64, copy=False)
    return array if (array[1:] > array[:-1]).all() else np.unique(array)


def union(one: IntArray, other: IntArray) -> IntArray:
    """The numbers of two rising arrays, rising; fast if the second is short."""
    new = other[~are_in(one, other)]
    return np.insert(one, np.searchsorted(one, new), new) if len(new) else one


def are_in(one: IntArray, numbers: IntArray) -> NDArray[np.bool_]:
    """Whether each of some numbers is in a rising array."""
    places = np.searchsorted(one, numbers)
    found = places < len(one)
    found[found] = one[places[found]] == numbers[found]
    return found


def rise_within(numbers: IntArray, count: int) -> bool:
    """Whether numbers rise strictly, are at least 0, and are below `count`."""
    return len(numbers) == 0 or bool(numbers[0] >= 0 and numbers[-1] < count and (numbers[1:] > numbers[:-1]).all())


def hash_of_numbers(numbers: IntArray) -> str:
    """SHA-256 of numbers (int64), the same on every machine."""
    return hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()


class Numbering:
    """Numbers the rows, out of `rows`, that are left after those in `removed` (in any order) were removed."""

    def __init__(self, rows: int, removed: Iterable[int] | IntArray = ()) -> None:
        self.removed: IntArray = rising(removed)
        """The removed rows (int64), rising."""
        self._passages = rows - len(self.removed)
        self._before = self.removed - np.arange(len(self.removed))

    def __len__(self) -> int:
        """The number of passages that are left."""
        return self._passages

    def row(self, number: int) -> int:
        """The row of the passage with this number."""
        return int(number + np.searchsorted(self._before, number, side="right")) if len(self._before) else int(number)

    def rows(self, numbers: IntArray) -> IntArray:
        """The rows (int64) of passages with these numbers."""
        if len(self.removed) == 0:
            return numbers
        return numbers + np.searchsorted(self._before, numbers, side="right")

    def rows_of_mask(self, mask_N: BoolArray | None) -> BoolArray:
        """Return which rows hold a passage of a mask; without a mask, those that are left."""
        rows = np.ones(len(self) + len(self.removed), np.bool_)
        rows[self.removed] = False
        if mask_N is not None:
            rows[rows] = mask_N
        return rows

    def numbers(self, rows: IntArray) -> IntArray:
        """The numbers (int64) of rows that were not removed; `NO_PASSAGE` stays."""
        if len(self.removed) == 0:
            return rows
        return np.where(rows == NO_PASSAGE, NO_PASSAGE, rows - np.searchsorted(self.removed, rows))
