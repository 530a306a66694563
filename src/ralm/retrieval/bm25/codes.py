"""The code of a posting: one byte for the pair of its term frequency and its passage's length.

A table holds the pair of each row, the commonest pairs first. The code of a posting is its row, or `ESCAPE` if the row
is greater. The rows of those few postings are listed separately, so nothing is lost. No pair has the row `ESCAPE`
itself: that row has frequency 0 and adds nothing, so a loop over postings can treat it like any other, and the escaped
postings are added afterwards.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.compiled import kernel
from ralm.retrieval.bm25.formula import stored_lengths

ESCAPE: Final = 255
_USUAL_FREQUENCIES: Final = 256


class PostingCodes(NamedTuple):
    """The codes of all postings, and the positions (rising) and rows of those whose code is `ESCAPE`."""

    codes: NDArray[np.uint8]
    escaped: NDArray[np.int64]
    escaped_rows: NDArray[np.int32]


@kernel
def row_of(codes: NDArray[np.uint8], escaped: NDArray[np.int64], escaped_rows: NDArray[np.int32], posting: int) -> int:
    """The row of a posting in the code table; too slow for loops over all postings of a term."""
    code = codes[posting]
    return int(code) if code != ESCAPE else _escaped_row(escaped, escaped_rows, posting)


@kernel
def _escaped_row(escaped: NDArray[np.int64], escaped_rows: NDArray[np.int32], posting: int) -> int:
    return int(escaped_rows[np.searchsorted(escaped, posting)])


@kernel
def is_rising_within(numbers: NDArray[np.int32], count: int) -> bool:
    """Whether numbers are strictly rising, at least 0 and below `count`."""
    if len(numbers) == 0:
        return True
    wrong = 0
    for i in range(1, len(numbers)):
        wrong += numbers[i] <= numbers[i - 1]
    return bool(wrong == 0 and numbers[0] >= 0 and numbers[-1] < count)


@kernel
def sound_codes(codes: NDArray[np.uint8], escaped: NDArray[np.int64], begin: int, end: int, rows: int) -> bool:
    """Whether the codes from `begin` to `end` are valid: rows of a table with `rows` rows, or `ESCAPE` and listed as
    escaped.

    The list of escaped positions must have been checked: rising, and within the codes.
    """
    highest = np.uint8(0)
    escapes = 0
    for code in codes[begin:end]:
        escapes += code == ESCAPE
        highest = max(highest, code if code != ESCAPE else np.uint8(0))
    first, last = np.searchsorted(escaped, begin), np.searchsorted(escaped, end)
    if escapes != last - first or (end > begin and highest >= rows):
        return False
    listed = 0
    for place in escaped[first:last]:
        listed += codes[place] == ESCAPE
    return bool(listed == escapes)


@kernel
def first_unsound(
    terms: NDArray[np.int64],
    offsets: NDArray[np.int64],
    passages: NDArray[np.int32],
    codes: NDArray[np.uint8],
    escaped: NDArray[np.int64],
    count: int,
    rows: int,
) -> tuple[int, bool]:
    """The place of the first of some terms whose postings are invalid in an index of `count` passages with `rows` rows
    of codes, and whether its passages are valid at least; the number of terms if all are valid."""
    for place in range(len(terms)):
        begin, end = offsets[terms[place]], offsets[terms[place] + 1]
        if not is_rising_within(passages[begin:end], count):
            return place, False
        if not sound_codes(codes, escaped, begin, end, rows):
            return place, True
    return len(terms), True


@dataclass(frozen=True, slots=True, eq=False)
class CodeTable:
    """`pairs` (int32, C x 2): the frequency, and the length as Lucene stores it, of each row.

    `usual`, `rare_pairs` and `rare` map a pair, written as `frequency << 8 | length byte`, to its row.
    """

    pairs: NDArray[np.int32]
    usual: NDArray[np.int32]
    rare_pairs: NDArray[np.int64]
    rare: NDArray[np.int32]

    def rows_of(self, pairs: NDArray[np.int64]) -> NDArray[np.int32]:
        """The row of each pair, which must be in the table; 0 for a pair that is not."""
        usual = pairs < len(self.usual)
        rows = self.usual[np.where(usual, pairs, 0)]
        if len(self.rare):
            places = np.searchsorted(self.rare_pairs, pairs[~usual])
            rows[~usual] = self.rare[np.minimum(places, len(self.rare) - 1)]
        return rows

    def rows(
        self, passages: NDArray[np.int32], frequencies: NDArray[np.int32], lengths: NDArray[np.uint8]
    ) -> NDArray[np.int32]:
        """The row of each posting; `lengths` by passage."""
        rows = np.empty(len(passages), np.int32)
        _find_rows(passages, frequencies, lengths, self.usual, self.rare_pairs, self.rare, rows)
        return rows


class PairCounts:
    """Counts pairs of term frequency and length byte: in a table, and in a counter for very high frequencies."""

    def __init__(self) -> None:
        self._usual = np.zeros(_USUAL_FREQUENCIES << 8, np.int64)
        self._rare: Counter[int] = Counter()

    def add(self, rows: NDArray[np.int32], frequencies: NDArray[np.int32], lengths: NDArray[np.uint8]) -> None:
        """Count the pairs of postings; `lengths` by row."""
        _count(rows, frequencies, lengths, self._usual)
        huge = frequencies >= _USUAL_FREQUENCIES
        if huge.any():
            self._rare.update((frequencies[huge].astype(np.int64) << 8 | lengths[rows[huge]]).tolist())

    def add_counted(self, pairs: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Add pairs, written as `frequency << 8 | length byte` and each given once, that were counted elsewhere."""
        usual = pairs < len(self._usual)
        self._usual[pairs[usual]] += counts[usual]
        self._rare.update(dict(zip(pairs[~usual].tolist(), counts[~usual].tolist(), strict=True)))

    def table(self) -> CodeTable:
        """The pairs, the commonest first."""
        rare = np.array(sorted(self._rare), np.int64)
        seen = np.flatnonzero(self._usual)
        pairs = np.concatenate([seen, rare])
        counts = np.concatenate([self._usual[seen], [self._rare[pair] for pair in rare.tolist()]])
        order = np.lexsort((pairs, -counts))
        rows = np.empty(len(pairs), np.int32)
        rows[order] = np.arange(len(pairs))
        rows += rows >= ESCAPE
        usual = np.zeros(len(self._usual), np.int32)
        usual[seen] = rows[: len(seen)]
        table = np.zeros((int(rows.max(initial=-1)) + 1, 2), np.int32)
        table[rows] = np.stack([pairs >> 8, stored_lengths((pairs & 255).astype(np.uint8))], axis=1)
        return CodeTable(table, usual, rare, rows[len(seen) :])


@kernel
def _count(rows: NDArray[Any], frequencies: NDArray[Any], lengths: NDArray[Any], counts: NDArray[Any]) -> None:
    """Count the pairs of frequency and length byte that fit in the table."""
    for i in range(len(rows)):
        pair = np.int64(frequencies[i]) << 8 | lengths[rows[i]]
        if pair < len(counts):
            counts[pair] += 1


@kernel
def _find_rows(
    passages: NDArray[Any],
    frequencies: NDArray[Any],
    lengths: NDArray[Any],
    usual: NDArray[Any],
    rare_pairs: NDArray[Any],
    rare: NDArray[Any],
    rows: NDArray[Any],
) -> None:
    for i in range(len(passages)):
        pair = np.int64(frequencies[i]) << 8 | lengths[passages[i]]
        rows[i] = usual[pair] if pair < len(usual) else rare[np.searchsorted(rare_pairs, pair)]
