"""The segments of an index, which are runs of consecutive passages with arrays of their own, and how they are merged.

An index that was built at once has one segment. Adding passages adds a segment; removing passages only records which
rows of a segment are gone, and how often their terms counted. So every statistic of BM25 is that of the passages that
are left, as if the index had been built of them at once.

Merging analyses no text again. Terms keep their order: first those of the first segment, then those that later segments
added. So if nothing was removed, the merged arrays equal those of an index of all passages, byte for byte.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from ralm.corpus.numbering import Numbering, rise_within
from ralm.errors import DamagedFolderError
from ralm.records import IntArray, Passage
from ralm.retrieval.analysis import Analysis
from ralm.retrieval.bm25.arrays import Arrays, PostingCodes, row_of
from ralm.retrieval.bm25.formula import stored_lengths
from ralm.retrieval.bm25.kernels import check_passage_count, kernel
from ralm.retrieval.bm25.writing import (
    CodeTable,
    IndexCounts,
    PairCounts,
    term_ranges,
    write_postings,
    write_totals,
    write_vocabulary,
)


def _none() -> IntArray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RemovedPassages:
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
    removed: RemovedPassages = RemovedPassages()

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


_GONE: Final = -1
_STORED_LENGTHS: Final = stored_lengths(np.arange(256).astype(np.uint8))


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """A segment and how it enters the merged arrays: the new number of each passage (int32, `_GONE` if it was removed),
    how often each term is left, and its new number (`_GONE` if it is not)."""

    segment: Segment
    numbers: NDArray[np.int32]
    frequencies: NDArray[np.int64]
    terms: NDArray[np.int64]


def merge_arrays(segments: Sequence[Segment], folder: Path, at_a_time: int) -> IndexCounts:
    """Write into `folder` the arrays of what is left of consecutive segments, about `at_a_time` postings at a time.

    Raises DamagedFolderError if a segment is damaged, CorpusError if they have more passages than BM25 can number.
    """
    check_passage_count(sum(one.passages - len(one.removed.rows) for one in segments))
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
        left = source.terms != _GONE
        offsets[source.terms[left] + 1] += source.frequencies[left]
    np.cumsum(offsets, out=offsets)
    pairs = [_pairs(one) for one in segments]
    table = _table(sources, pairs)
    totals = totals_of(segments)
    write_totals(folder, totals.tokens, totals.with_terms)
    write_vocabulary(folder, list(vocabulary))
    rows = [table.rows_of(own) for own in pairs]
    write_postings(folder, offsets, table.pairs, _postings(sources, rows, offsets, at_a_time))
    return IndexCounts(passages, len(vocabulary), int(offsets[-1]), totals.tokens)


def _source(segment: Segment, first: int, vocabulary: dict[str, int]) -> _Source:
    """Number the passages of a segment from `first` on, and add its terms to the vocabulary."""
    left = np.ones(segment.passages, np.bool_)
    left[segment.removed.rows] = False
    numbers = np.where(left, first + np.cumsum(left) - 1, _GONE).astype(np.int32)
    frequencies = np.diff(segment.arrays.offsets) - gone_frequencies(segment)
    terms = np.full(len(frequencies), _GONE, np.int64)
    kept = np.flatnonzero(frequencies)
    terms[kept] = [vocabulary.setdefault(term, len(vocabulary)) for term in segment.arrays.spelt(kept)]
    return _Source(segment, numbers, frequencies, terms)


def _pairs(segment: Segment) -> NDArray[np.int64]:
    """The pair of each row of a segment's code table, as `CodeTable` writes pairs."""
    frequency, length = segment.arrays.code_table.astype(np.int64).T
    return frequency << 8 | np.searchsorted(_STORED_LENGTHS, length)


def _table(sources: Sequence[_Source], pairs: Sequence[NDArray[np.int64]]) -> CodeTable:
    """The code table of all postings that are left."""
    counted = PairCounts()
    for source, own in zip(sources, pairs, strict=True):
        counts = np.zeros(len(own), np.int64)
        _count_rows(source.segment.arrays.passages, source.segment.arrays.posting_codes, source.numbers, counts)
        seen = counts > 0
        counted.add_counted(own[seen], counts[seen])
    return counted.table()


def _postings(
    sources: Sequence[_Source], rows: Sequence[NDArray[np.int32]], offsets: NDArray[np.int64], at_a_time: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """The postings that are left, by term: new numbers of passages, and rows of the new code table."""
    olds = [_old_terms(source, len(offsets) - 1) for source in sources]
    for first, last in term_ranges(offsets, at_a_time):
        count = int(offsets[last] - offsets[first])
        new_numbers, new_rows = np.empty(count, np.int32), np.empty(count, np.int32)
        filled = offsets[first:last] - offsets[first]
        for source, old, own in zip(sources, olds, rows, strict=True):
            arrays = source.segment.arrays
            _take(
                old[first:last], arrays.offsets, arrays.passages, arrays.posting_codes, source.numbers, own, filled,
                new_numbers, new_rows,
            )  # fmt: skip
        yield new_numbers, new_rows


def _old_terms(source: _Source, terms: int) -> NDArray[np.int64]:
    """The term of a segment for each new term; `_GONE` if the segment does not have it."""
    old = np.full(terms, _GONE, np.int64)
    kept = np.flatnonzero(source.terms != _GONE)
    old[source.terms[kept]] = kept
    return old


@kernel
def _count_rows(
    passages: NDArray[np.int32], codes: PostingCodes, numbers: NDArray[np.int32], counts: NDArray[np.int64]
) -> None:
    """Count the postings that are left by their rows of the code table."""
    for posting in range(len(passages)):
        if numbers[passages[posting]] != _GONE:
            counts[row_of(codes.codes, codes.escaped, codes.escaped_rows, posting)] += 1


@kernel
def _take(
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
    """Append what is left of the postings of some terms to those from earlier segments."""
    for place in range(len(old)):
        if old[place] == _GONE:
            continue
        to = filled[place]
        for posting in range(offsets[old[place]], offsets[old[place] + 1]):
            number = numbers[passages[posting]]
            if number != _GONE:
                new_numbers[to] = number
                new_rows[to] = rows[row_of(codes.codes, codes.escaped, codes.escaped_rows, posting)]
                to += 1
        filled[place] = to


SAMPLED: Final = 500
"""How many passages are compared at most; they are spread evenly, and have some ten thousand different words."""


def changed_word(passages: Sequence[Passage], arrays: Arrays, analysis: Analysis) -> str | None:
    """A word of some passage that the analyser gives other terms than the index has; None if there is none.

    Raises DamagedFolderError if the postings of a term are invalid.
    """
    terms_of_run, known = analysis.prepare(), set[str]()
    for number in range(0, len(passages), -(-len(passages) // SAMPLED)):
        new = set(passages[number].contents.split()) - known
        known |= new
        for run in sorted(new):
            if not all(_has(arrays, len(passages), term, number) for term in terms_of_run(run)):
                return run
    return None


def _has(arrays: Arrays, passages: int, term: str, number: int) -> bool:
    """Whether a passage has a term."""
    row = arrays.term(term)
    if row < 0:
        return False
    arrays.check_terms(np.array([row]), passages)
    numbers = arrays.passages[arrays.offsets[row] : arrays.offsets[row + 1]]
    at = int(np.searchsorted(numbers, number))
    return at < len(numbers) and int(numbers[at]) == number
