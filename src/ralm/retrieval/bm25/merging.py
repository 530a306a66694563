"""Merges the arrays of passages that an index keeps with those of new passages; no text is analysed again.

The merged arrays equal those that are built of the same passages at once, byte for byte. Terms get their ids in the
order of the passages in which they occur first, and those of one passage in byte order (`ralm.retrieval.bm25.words`).

Letters of shapes: P passages, V terms, and C rows of the code table of a source; M terms of all sources, in byte order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25 import formula, kernels, writing
from ralm.retrieval.bm25.arrays import Arrays, PostingCodes, compare_terms, row_of

NOT_KEPT: Final = -1
"""In place of the new number of a passage that is not kept."""
_NO_TERM: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class MergedArrays:
    """Arrays, and the new number (int32) of each of their passages or `NOT_KEPT`."""

    arrays: Arrays
    number_P: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class _PostingCounts:
    """The kept postings of a source, counted by term and by row, and the pair of each row (`CodeTable`)."""

    frequency_V: NDArray[np.int64]
    first_V: NDArray[np.int64]
    count_C: NDArray[np.int64]
    tokens: int
    with_terms: int
    pair_C: NDArray[np.int64]


def merge_arrays(sources: Sequence[MergedArrays], folder: Path, at_a_time: int) -> writing.IndexCounts:
    """Write the arrays of the kept passages of one or two sources, some `at_a_time` postings at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    passages = sum(int(np.count_nonzero(source.number_P != NOT_KEPT)) for source in sources)
    kernels.check_passage_count(passages)
    every_kept = [_kept(source) for source in sources]
    place_VM, terms = _merged_places(sources)
    frequency_M = np.zeros(terms, np.int64)
    first_M = np.full(terms, passages, np.int64)
    for kept, place_V in zip(every_kept, place_VM, strict=True):
        frequency_M[place_V] += kept.frequency_V
        first_M[place_V] = np.minimum(first_M[place_V], kept.first_V)
    stays_M = frequency_M > 0
    ids = np.empty(np.count_nonzero(stays_M), np.int32)
    ids[np.argsort(first_M[stays_M], kind="stable")] = np.arange(len(ids))
    id_M = np.full(terms, _NO_TERM, np.int64)
    id_M[stays_M] = ids
    offsets = np.zeros(len(ids) + 1, np.int64)
    offsets[ids + 1] = frequency_M[stays_M]
    np.cumsum(offsets, out=offsets)
    tokens, with_terms = sum(kept.tokens for kept in every_kept), sum(kept.with_terms for kept in every_kept)
    writing.write_totals(folder, tokens, with_terms)
    writing.write_vocabulary(folder, *_merged_vocabulary(sources, place_VM, stays_M), ids)
    counted = writing.PairCounts()
    for kept in every_kept:
        counted.add_counted(kept.pair_C, kept.count_C)
    table = counted.table()
    old_terms = [_old_terms(id_M[place_V], len(ids)) for place_V in place_VM]
    rows = [table.rows_of(kept.pair_C) for kept in every_kept]
    postings = _postings(sources, old_terms, rows, offsets, at_a_time)
    writing.write_postings(folder, offsets, table.pairs, postings)
    return writing.IndexCounts(passages, len(ids), int(offsets[-1]), tokens)


def _kept(source: MergedArrays) -> _PostingCounts:
    """Check the postings of a source, and count those that are kept."""
    arrays, passages = source.arrays, len(source.number_P)
    arrays.check(passages)
    terms = len(arrays.offsets) - 1
    frequency_C, length_C = arrays.code_table.astype(np.int64).T
    frequency_V, first_V = np.zeros(terms, np.int64), np.full(terms, np.iinfo(np.int64).max)
    count_C, has_terms_P = np.zeros(len(frequency_C), np.int64), np.zeros(passages, np.bool_)
    _count_kept(
        arrays.offsets, arrays.passages, arrays.posting_codes, source.number_P, frequency_V, first_V, count_C,
        has_terms_P,
    )  # fmt: skip
    return _PostingCounts(
        frequency_V,
        first_V,
        count_C,
        int(count_C @ frequency_C),
        int(np.count_nonzero(has_terms_P)),
        frequency_C << 8 | formula.length_bytes(length_C),
    )


def _merged_places(sources: Sequence[MergedArrays]) -> tuple[list[NDArray[np.int64]], int]:
    """Return the place of each term of each source among all terms in byte order, and the number of all."""
    places = [np.arange(len(source.arrays.term_ends)) for source in sources]
    terms = len(places[0])
    if len(sources) > 1:
        first, second = (source.arrays for source in sources)
        terms = _merge_terms(first.vocabulary, first.term_ends, second.vocabulary, second.term_ends, *places)
    by_id = []
    for source, place in zip(sources, places, strict=True):
        place_V = np.empty(len(place), np.int64)
        place_V[source.arrays.term_ids] = place
        by_id.append(place_V)
    return by_id, terms


def _merged_vocabulary(
    sources: Sequence[MergedArrays], place_VM: Sequence[NDArray[np.int64]], stays_M: NDArray[np.bool_]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the terms that stay, in byte order and one after the other, and their sizes in bytes."""
    size_M = np.zeros(len(stays_M), np.int64)
    places = [place_V[source.arrays.term_ids] for source, place_V in zip(sources, place_VM, strict=True)]
    for source, place in zip(sources, places, strict=True):
        size_M[place] = np.diff(source.arrays.term_ends, prepend=0)
    size_M[~stays_M] = 0
    begin_M = np.cumsum(size_M) - size_M
    vocabulary = np.empty(int(size_M.sum()), np.uint8)
    for arrays, place in zip((source.arrays for source in sources), places, strict=True):
        _copy_terms(arrays.vocabulary, arrays.term_ends, begin_M[place], size_M[place], vocabulary)
    return vocabulary, size_M[stays_M]


def _old_terms(id_V: NDArray[np.int64], terms: int) -> NDArray[np.int64]:
    """Return the id in a source of each new term; `_NO_TERM` for a term that the source does not have."""
    old = np.full(terms, _NO_TERM, np.int64)
    stays = np.flatnonzero(id_V != _NO_TERM)
    old[id_V[stays]] = stays
    return old


def _postings(
    sources: Sequence[MergedArrays],
    old_terms: Sequence[NDArray[np.int64]],
    rows: Sequence[NDArray[np.int32]],
    offsets: NDArray[np.int64],
    at_a_time: int,
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Yield the kept postings, by term: new numbers of passages, and rows of the new code table."""
    for first, last in writing.term_ranges(offsets, at_a_time):
        numbers, codes = np.empty((2, offsets[last] - offsets[first]), np.int32)
        begins = offsets[first:last] - offsets[first]
        ends = begins.copy()
        for source, old, row_C in zip(sources, old_terms, rows, strict=True):
            arrays = source.arrays
            _insert_postings(
                old[first:last], arrays.offsets, arrays.passages, arrays.posting_codes, source.number_P, row_C, begins,
                ends, numbers, codes,
            )  # fmt: skip
        yield numbers, codes


@kernels.kernel
def _count_kept(
    offsets: NDArray[np.int64],
    passages: NDArray[np.int32],
    codes: PostingCodes,
    number_P: NDArray[np.int32],
    frequency_V: NDArray[np.int64],
    first_V: NDArray[np.int64],
    count_C: NDArray[np.int64],
    has_terms_P: NDArray[np.bool_],
) -> None:
    """Count the kept postings by term and by row of the code table, and note the first passage of each term."""
    for term in range(len(frequency_V)):
        for posting in range(offsets[term], offsets[term + 1]):
            number = number_P[passages[posting]]
            if number == NOT_KEPT:
                continue
            first_V[term] = min(first_V[term], number)
            frequency_V[term] += 1
            count_C[row_of(codes.codes, codes.escaped, codes.escaped_rows, posting)] += 1
            has_terms_P[passages[posting]] = True


@kernels.kernel
def _insert_postings(
    old: NDArray[np.int64],
    offsets: NDArray[np.int64],
    passages: NDArray[np.int32],
    codes: PostingCodes,
    number_P: NDArray[np.int32],
    row_C: NDArray[np.int32],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    numbers: NDArray[np.int32],
    rows: NDArray[np.int32],
) -> None:
    """Insert kept postings among those from `begins` to `ends`, from the last to the first: each moves once."""
    for place in range(len(old)):
        if old[place] == _NO_TERM:
            continue
        first, last = offsets[old[place]], offsets[old[place] + 1]
        key, kept = np.empty(last - first, np.int64), 0
        rises = True
        for posting in range(first, last):
            number = number_P[passages[posting]]
            if number != NOT_KEPT:
                row = row_C[row_of(codes.codes, codes.escaped, codes.escaped_rows, posting)]
                key[kept] = np.int64(number) << 32 | row
                rises &= kept == 0 or key[kept - 1] < key[kept]
                kept += 1
        if not rises:
            key[:kept].sort()
        before, to = ends[place] - 1, ends[place] + kept - 1
        for i in range(kept - 1, -1, -1):
            number = key[i] >> 32
            while before >= begins[place] and numbers[before] > number:
                numbers[to], rows[to] = numbers[before], rows[before]
                before -= 1
                to -= 1
            numbers[to], rows[to] = number, key[i] & 0xFFFFFFFF
            to -= 1
        ends[place] += kept


@kernels.kernel
def _merge_terms(
    first: NDArray[np.uint8],
    first_ends: NDArray[np.int64],
    second: NDArray[np.uint8],
    second_ends: NDArray[np.int64],
    first_places: NDArray[np.int64],
    second_places: NDArray[np.int64],
) -> int:
    """Write the places of two lists' terms, which are in byte order, among those of both; return how many these are."""
    i = j = place = 0
    while i < len(first_ends) or j < len(second_ends):
        if i == len(first_ends):
            order = 1
        elif j == len(second_ends):
            order = -1
        else:
            order = compare_terms(
                first[first_ends[i - 1] if i else 0 : first_ends[i]],
                second[second_ends[j - 1] if j else 0 : second_ends[j]],
            )
        if order <= 0:
            first_places[i] = place
            i += 1
        if order >= 0:
            second_places[j] = place
            j += 1
        place += 1
    return place


@kernels.kernel
def _copy_terms(
    vocabulary: NDArray[np.uint8],
    ends: NDArray[np.int64],
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    to: NDArray[np.uint8],
) -> None:
    """Copy the terms of a source to where they begin; a term of size 0 is left out."""
    for term in range(len(ends)):
        begin = ends[term - 1] if term else 0
        for i in range(sizes[term]):
            to[begins[term] + i] = vocabulary[begin + i]
