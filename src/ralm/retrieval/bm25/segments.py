"""The segments of an index, which are runs of consecutive passages with arrays of their own, and how they are merged.

An index that was built at once has one segment. Adding passages adds a segment; removing passages only records which
rows of a segment are gone, and how often their terms counted. So every statistic of BM25 is that of the passages that
are left, as if the index had been built of them at once.

Merging analyses no text again. Terms keep their order: first those of the first segment, then those that later segments
added. So if nothing was removed, the merged arrays equal those of an index of all passages, byte for byte.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from ralm.corpus.numbering import Numbering, rise_within
from ralm.errors import DamagedFolderError
from ralm.records import IntArray, Passage
from ralm.retrieval.analysis import Analysis
from ralm.retrieval.bm25 import formula, kernels, writing
from ralm.retrieval.bm25.arrays import Arrays, PostingCodes, row_of

_REMOVED: Final = -1
"""The new number of a passage or a term that a merge leaves out."""
_STORED_LENGTHS: Final = formula.stored_lengths(np.arange(256).astype(np.uint8))
_MAX_COMPARED: Final = 500
"""Passages that are analysed again at most; they are spread evenly and have some ten thousand different words."""


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

    def check_removed(self) -> None:
        """Raise DamagedFolderError if the counts of removed terms are wrong.

        This reads all postings, which must have been checked.
        """
        is_removed = np.zeros(self.passages, np.bool_)
        is_removed[self.removed.rows] = True
        found = np.zeros(len(self.arrays.offsets) - 1, np.int64)
        _count_removed(self.arrays.offsets, self.arrays.passages, is_removed, found)
        if (found != removed_frequencies(self)).any():
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


@kernels.kernel
def _count_removed(
    offsets: NDArray[np.int64], passages: NDArray[np.int32], is_removed: NDArray[np.bool_], found: NDArray[np.int64]
) -> None:
    """Count the postings of each term whose passages were removed."""
    for term in range(len(found)):
        for posting in range(offsets[term], offsets[term + 1]):
            found[term] += is_removed[passages[posting]]


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """A segment that is merged: the new number of each passage (int32), for each term the remaining frequency and the
    new number, and the pair of each row of its code table, as `CodeTable` writes pairs."""

    segment: Segment
    numbers: NDArray[np.int32]
    frequencies: NDArray[np.int64]
    terms: NDArray[np.int64]
    pairs: NDArray[np.int64]


def merge_arrays(segments: Sequence[Segment], folder: Path, at_a_time: int) -> writing.IndexCounts:
    """Write into `folder` the arrays of the remaining passages of segments, about `at_a_time` postings at a time.

    Raises DamagedFolderError if a segment is damaged, CorpusError if they have more passages than BM25 can number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kernels.check_passage_count(sum(one.passages - len(one.removed.rows) for one in segments))
    for one in segments:
        one.check()
        one.arrays.check_terms(np.arange(len(one.arrays.offsets) - 1), one.passages)
        one.check_removed()
    vocabulary: dict[str, int] = {}
    sources, passages = [], 0
    for one in segments:
        sources.append(_source(one, passages, vocabulary))
        passages += one.passages - len(one.removed.rows)
    offsets = np.zeros(len(vocabulary) + 1, np.int64)
    for source in sources:
        remains = source.terms != _REMOVED
        offsets[source.terms[remains] + 1] += source.frequencies[remains]
    np.cumsum(offsets, out=offsets)
    table = _table(sources)
    totals = totals_of(segments)
    writing.write_totals(folder, totals.tokens, totals.with_terms)
    writing.write_vocabulary(folder, list(vocabulary))
    writing.write_postings(folder, offsets, table.pairs, _postings(sources, table, offsets, at_a_time))
    return writing.IndexCounts(passages, len(vocabulary), int(offsets[-1]), totals.tokens)


def _source(segment: Segment, first: int, vocabulary: dict[str, int]) -> _Source:
    """Number the passages of a segment from `first` on, and add its terms to the vocabulary."""
    remains = np.ones(segment.passages, np.bool_)
    remains[segment.removed.rows] = False
    numbers = np.where(remains, first + np.cumsum(remains) - 1, _REMOVED).astype(np.int32)
    frequencies = np.diff(segment.arrays.offsets) - removed_frequencies(segment)
    terms = np.full(len(frequencies), _REMOVED, np.int64)
    kept = np.flatnonzero(frequencies)
    terms[kept] = [vocabulary.setdefault(term, len(vocabulary)) for term in segment.arrays.term_texts(kept)]
    frequency, length = segment.arrays.code_table.astype(np.int64).T
    pairs = frequency << 8 | np.searchsorted(_STORED_LENGTHS, length)
    return _Source(segment, numbers, frequencies, terms, pairs)


def _table(sources: Sequence[_Source]) -> writing.CodeTable:
    """The code table of all remaining postings."""
    counted = writing.PairCounts()
    for source in sources:
        counts = np.zeros(len(source.pairs), np.int64)
        _count_rows(source.segment.arrays.passages, source.segment.arrays.posting_codes, source.numbers, counts)
        seen = counts > 0
        counted.add_counted(source.pairs[seen], counts[seen])
    return counted.table()


def _postings(
    sources: Sequence[_Source], table: writing.CodeTable, offsets: NDArray[np.int64], at_a_time: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """The remaining postings, by term: new numbers of passages, and rows of the new code table."""
    old_terms = []  # the term of each segment for each new term; `_REMOVED` if the segment does not have it
    for source in sources:
        old = np.full(len(offsets) - 1, _REMOVED, np.int64)
        kept = np.flatnonzero(source.terms != _REMOVED)
        old[source.terms[kept]] = kept
        old_terms.append(old)
    rows = [table.rows_of(source.pairs) for source in sources]
    for first, last in writing.term_ranges(offsets, at_a_time):
        count = int(offsets[last] - offsets[first])
        new_numbers, new_rows = np.empty(count, np.int32), np.empty(count, np.int32)
        filled = offsets[first:last] - offsets[first]
        for source, old, own in zip(sources, old_terms, rows, strict=True):
            arrays = source.segment.arrays
            _append_postings(
                old[first:last], arrays.offsets, arrays.passages, arrays.posting_codes, source.numbers, own, filled,
                new_numbers, new_rows,
            )  # fmt: skip
        yield new_numbers, new_rows


@kernels.kernel
def _count_rows(
    passages: NDArray[np.int32], codes: PostingCodes, numbers: NDArray[np.int32], counts: NDArray[np.int64]
) -> None:
    """Count the remaining postings by their rows of the code table."""
    for posting in range(len(passages)):
        if numbers[passages[posting]] != _REMOVED:
            counts[row_of(codes.codes, codes.escaped, codes.escaped_rows, posting)] += 1


@kernels.kernel
def _append_postings(
    old: NDArray[np.int64],
    offsets: NDArray[np.int64],
    passages: NDArray[np.int32],
    codes: PostingCodes,
    numbers: NDArray[np.int32],
    rows: NDArray[np.int32],
    filled: NDArray[np.int64],
    new_numbers: NDArray[np.int32],
    new_rows: NDArray[np.int32],
) -> None:
    """Append the remaining postings of some terms to those from earlier segments."""
    for place in range(len(old)):
        if old[place] == _REMOVED:
            continue
        to = filled[place]
        for posting in range(offsets[old[place]], offsets[old[place] + 1]):
            number = numbers[passages[posting]]
            if number != _REMOVED:
                new_numbers[to] = number
                new_rows[to] = rows[row_of(codes.codes, codes.escaped, codes.escaped_rows, posting)]
                to += 1
        filled[place] = to


def find_changed_word(passages: Sequence[Passage], arrays: Arrays, analysis: Analysis) -> str | None:
    """A word that the analyser turns into other terms than the index has; None if there is none among some passages.

    A newer version of a stemming library may stem some words differently, and queries with them would miss passages.
    Raises DamagedFolderError if the postings of a term are invalid.
    """
    terms_of_word, known = analysis.prepare(), set[str]()
    for number in range(0, len(passages), -(-len(passages) // _MAX_COMPARED)):
        new = set(passages[number].contents.split()) - known
        known |= new
        for word in sorted(new):
            if not all(_has_term(arrays, len(passages), term, number) for term in terms_of_word(word)):
                return word
    return None


def _has_term(arrays: Arrays, passages: int, term: str, number: int) -> bool:
    """Whether a passage has a term."""
    row = arrays.term(term)
    if row < 0:
        return False
    arrays.check_terms(np.array([row]), passages)
    numbers = arrays.passages[arrays.offsets[row] : arrays.offsets[row + 1]]
    at = int(np.searchsorted(numbers, number))
    return at < len(numbers) and int(numbers[at]) == number
