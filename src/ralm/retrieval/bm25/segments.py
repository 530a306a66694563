"""The segments of an index: runs of consecutive passages, each with arrays of its own.

An index that was built at once has one segment. Adding passages adds a segment; removing passages only records which
rows of a segment are gone, and how often their terms counted. So every statistic of BM25 is that of the passages that
are left, as if the index had been built of them at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ralm.corpus.numbering import Numbering, rise_within
from ralm.errors import DamagedFolderError
from ralm.records import IntArray
from ralm.retrieval.bm25.arrays import Arrays
from ralm.retrieval.bm25.compiled import kernel


def _none() -> IntArray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Removed:
    """What was removed from a segment: its `rows` (int64, rising), the numbers of their `terms` in the segment (int64,
    rising), in how many of the rows each of these occurs (`counts`), the number of all their terms (`tokens`), and how
    many of them have any term."""

    rows: IntArray = field(default_factory=_none)
    terms: IntArray = field(default_factory=_none)
    counts: IntArray = field(default_factory=_none)
    tokens: int = 0
    with_terms: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The arrays of `passages` consecutive passages, and what was removed from them."""

    arrays: Arrays
    passages: int
    removed: Removed = Removed()

    def check(self) -> None:
        """Check the numbers that BM25's formula divides by, and that what was removed fits the arrays.

        Raises DamagedFolderError.
        """
        self.arrays.check_totals(self.passages)
        removed, frequencies = self.removed, np.diff(self.arrays.offsets)
        tokens, with_terms = self.arrays.totals.tolist()
        sound = (
            rise_within(removed.rows, self.passages)
            and rise_within(removed.terms, len(frequencies))
            and len(removed.counts) == len(removed.terms)
            and (removed.counts > 0).all()
            and (removed.counts <= frequencies[removed.terms]).all()
            and 0 <= removed.with_terms <= min(with_terms, len(removed.rows))
            and removed.with_terms <= removed.tokens <= tokens
        )
        if not sound:
            self._damaged()

    def check_removed(self) -> None:
        """Check the counts of the terms that were removed; this reads all postings, which must have been checked.

        Raises DamagedFolderError.
        """
        gone = np.zeros(self.passages, np.bool_)
        gone[self.removed.rows] = True
        found = np.zeros(len(self.arrays.offsets) - 1, np.int64)
        _count_gone(self.arrays.offsets, self.arrays.passages, gone, found)
        if (found != gone_frequencies(self)).any():
            self._damaged()

    def frequency(self, term: int) -> int:
        """In how many of the passages that are left a term (a number of the segment) occurs; 0 for -1."""
        if term < 0:
            return 0
        removed = self.removed
        place = int(np.searchsorted(removed.terms, term))
        gone = int(removed.counts[place]) if place < len(removed.terms) and removed.terms[place] == term else 0
        return int(self.arrays.offsets[term + 1] - self.arrays.offsets[term]) - gone

    def _damaged(self) -> NoReturn:
        raise DamagedFolderError(
            f"{self.arrays.folder} is damaged: what was removed from it does not fit it; build the index again or "
            "restore it from a copy."
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """The passages of an index: how many have any term, and how many terms all of them have."""

    with_terms: int
    tokens: int

    @property
    def average_length(self) -> float:
        """The average length, in terms, of the passages that have any."""
        return self.tokens / max(self.with_terms, 1)


def totals_of(segments: Sequence[Segment]) -> Totals:
    """The totals of the passages that are left."""
    return Totals(
        with_terms=sum(int(one.arrays.totals[1]) - one.removed.with_terms for one in segments),
        tokens=sum(int(one.arrays.totals[0]) - one.removed.tokens for one in segments),
    )


def first_rows(segments: Sequence[Segment]) -> list[int]:
    """The row of the first passage of each segment."""
    return [sum(one.passages for one in segments[:place]) for place in range(len(segments))]


def numbering_of(segments: Sequence[Segment]) -> Numbering:
    """The numbers of the passages that are left."""
    removed = [first + one.removed.rows for first, one in zip(first_rows(segments), segments, strict=True)]
    return Numbering(sum(one.passages for one in segments), np.concatenate([_none(), *removed]))


def gone_frequencies(segment: Segment) -> NDArray[np.int64]:
    """In how many removed rows each term of a segment occurs (int64, one per term)."""
    gone = np.zeros(len(segment.arrays.offsets) - 1, np.int64)
    gone[segment.removed.terms] = segment.removed.counts
    return gone


@kernel
def _count_gone(
    offsets: NDArray[np.int64], passages: NDArray[np.int32], gone: NDArray[np.bool_], found: NDArray[np.int64]
) -> None:
    """Count the postings of each term whose passages are gone."""
    for term in range(len(found)):
        for posting in range(offsets[term], offsets[term + 1]):
            found[term] += gone[passages[posting]]
