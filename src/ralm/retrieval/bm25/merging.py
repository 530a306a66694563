"""Merges consecutive segments into one: the arrays of what is left of them, without analysing any text again.

Terms keep their order: first those of the first segment, then those that later segments added. So if nothing was
removed, the arrays are the same, byte for byte, as if all passages had been indexed at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.best import check_passage_count
from ralm.retrieval.bm25.build import Counts
from ralm.retrieval.bm25.codes import CodeTable, PairCounts, PostingCodes, row_of
from ralm.retrieval.bm25.compiled import kernel
from ralm.retrieval.bm25.formula import stored_lengths
from ralm.retrieval.bm25.runs import some_terms
from ralm.retrieval.bm25.segments import Segment, gone_frequencies, totals_of
from ralm.retrieval.bm25.writing import write_postings, write_totals, write_vocabulary

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


def merge_arrays(segments: Sequence[Segment], folder: Path, at_a_time: int) -> Counts:
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
    return Counts(passages, len(vocabulary), int(offsets[-1]), totals.tokens)


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
    for first, last in some_terms(offsets, at_a_time):
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
