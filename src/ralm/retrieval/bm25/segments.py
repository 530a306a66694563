"""The segments of an index, which are runs of consecutive passages with arrays of their own, and how they are merged.

An index that was built at once has one segment. Adding passages adds a segment; removing passages only records which
rows of a segment are gone, and how often their terms counted. So every statistic of BM25 is that of the passages that
are left, as if the index had been built of them at once.

Merging analyses no text again. Terms keep their order: first those of the first segment, then those that later segments
added. So if nothing was removed, the merged arrays equal those of an index of all passages, byte for byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ralm.corpus.numbering import Numbering, rise_within
from ralm.errors import DamagedFolderError
from ralm.records import IntArray
from ralm.retrieval.bm25.arrays import Arrays


def _none() -> IntArray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RemovedPassages:
    """The passages that were removed from a segment.

    `rows` (int64, rising) are their rows, `terms` (int64, rising) the numbers of their terms in the segment, and
    `counts` in how many of the rows each of these occurs. `tokens` counts all their terms, `with_terms` the rows that
    have any.
    """

    rows: IntArray = field(default_factory=_none)
    terms: IntArray = field(default_factory=_none)
    counts: IntArray = field(default_factory=_none)
    tokens: int = 0
    with_terms: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The arrays of `passages` consecutive passages, and the passages that were removed from them."""

    arrays: Arrays
    passages: int
    removed: RemovedPassages = RemovedPassages()

    def check(self) -> None:
        """Raise DamagedFolderError if the totals or `removed` do not fit the arrays."""
        self.arrays.check_totals(self.passages)
        removed, frequencies = self.removed, np.diff(self.arrays.offsets)
        tokens, with_terms = self.arrays.totals.tolist()
        fits = (
            rise_within(removed.rows, self.passages)
            and rise_within(removed.terms, len(frequencies))
            and len(removed.counts) == len(removed.terms)
            and (removed.counts > 0).all()
            and (removed.counts <= frequencies[removed.terms]).all()
            and 0 <= removed.with_terms <= min(with_terms, len(removed.rows))
            and removed.with_terms <= removed.tokens <= tokens
        )
        if not fits:
            self._damaged()

    def frequency(self, term: int) -> int:
        """In how many of the remaining passages a term (a number of the segment) occurs; 0 for -1."""
        if term < 0:
            return 0
        removed = self.removed
        place = int(np.searchsorted(removed.terms, term))
        lost = int(removed.counts[place]) if place < len(removed.terms) and removed.terms[place] == term else 0
        return int(self.arrays.offsets[term + 1] - self.arrays.offsets[term]) - lost

    def _damaged(self) -> NoReturn:
        raise DamagedFolderError(
            f"{self.arrays.folder} is damaged: its list of removed passages does not fit it; build the index again or "
            "restore it from a copy."
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """How many passages of an index have any term, and how many terms all passages have."""

    with_terms: int
    tokens: int

    @property
    def average_length(self) -> float:
        """The average length, in terms, of the passages that have any."""
        return self.tokens / max(self.with_terms, 1)


def totals_of(segments: Sequence[Segment]) -> Totals:
    """The totals of the remaining passages."""
    return Totals(
        with_terms=sum(int(one.arrays.totals[1]) - one.removed.with_terms for one in segments),
        tokens=sum(int(one.arrays.totals[0]) - one.removed.tokens for one in segments),
    )


def numbering_of(segments: Sequence[Segment]) -> Numbering:
    """The numbers of the remaining passages."""
    first_rows = accumulate((one.passages for one in segments), initial=0)
    removed = [first + one.removed.rows for first, one in zip(first_rows, segments, strict=False)]
    return Numbering(sum(one.passages for one in segments), np.concatenate([_none(), *removed]))


def removed_frequencies(segment: Segment) -> NDArray[np.int64]:
    """In how many removed rows each term of a segment occurs (int64, one per term)."""
    frequencies = np.zeros(len(segment.arrays.offsets) - 1, np.int64)
    frequencies[segment.removed.terms] = segment.removed.counts
    return frequencies
