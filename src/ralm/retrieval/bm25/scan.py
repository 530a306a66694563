"""The kernel of a scan, which reads every posting of a query's terms once, and the passages that must not be hits.

A scan keeps nothing between queries, so it serves any queries; it is the best choice for a few. Passages go through it
in partitions, so that their sums stay in cache.

Letters of shapes: Q queries, K hits per query, F lists of forbidden passages, T distinct terms of a query, C rows of
the code table.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ralm.corpus.numbering import Numbering, rising
from ralm.records import NO_PASSAGE
from ralm.retrieval.bm25 import arrays, kernels

WORD_ROWS: Final = kernels.LANES * kernels.MARKS
"""The rows of a word of blocks, of which each segment has a whole number."""
_EVERY: Final = (np.zeros(0, np.uint16), np.zeros(0, np.uint64))


class PassingRows(NamedTuple):
    """The rows that pass a filter, as bits of blocks and of words of blocks (`Forbidden`)."""

    bits_B: NDArray[np.uint16]
    open_W: NDArray[np.uint64]

    @classmethod
    def of(cls, rows: NDArray[np.bool_], sizes: Sequence[int]) -> Self:
        """The bits of rows of segments of these sizes, one after the other."""
        words = [-(-size // WORD_ROWS) for size in sizes]
        every = np.zeros(sum(words) * WORD_ROWS, np.bool_)
        first = begin = 0
        for size, count in zip(sizes, words, strict=True):
            every[begin : begin + size] = rows[first : first + size]
            first, begin = first + size, begin + count * WORD_ROWS
        bits_B = np.packbits(every, bitorder="little").view(np.dtype("<u2")).astype(np.uint16, copy=False)
        open_W = np.packbits(bits_B != 0, bitorder="little").view(np.dtype("<u8")).astype(np.uint64, copy=False)
        return cls(bits_B, open_W)


class Forbidden(NamedTuple):
    """Passages that must not be hits: for each query those of one list, and the rows without a bit.

    The lists are concatenated in `passages` and end at `ends_F`; numbers rise within each. `list_Q` is the number of
    the list of each query, -1 for none. If `bits_B` (uint16) is not empty, only rows with a bit in it may be hits: each
    segment begins a word of 1,024 rows, and `open_W` (uint64) says which blocks of 16 of a word have any.
    """

    ends_F: NDArray[np.int64]
    passages: NDArray[np.int64]
    list_Q: NDArray[np.int64]
    bits_B: NDArray[np.uint16]
    open_W: NDArray[np.uint64]

    @classmethod
    def none(cls, queries: int) -> Self:
        """Forbids nothing."""
        nothing = np.zeros(0, np.int64)
        return cls(np.zeros(1, np.int64), nothing, np.full(queries, -1, np.int64), *_EVERY)

    @classmethod
    def of(cls, lists: Sequence[Iterable[int]], list_Q: NDArray[np.int64]) -> Self:
        """Lists of passage numbers, in any order, and which of them applies to each query, -1 for none."""
        assert (list_Q < len(lists)).all(), "a query refers to a list that does not exist"
        sorted_lists = [rising(numbers) for numbers in lists]
        ends = np.cumsum([0, *map(len, sorted_lists)], dtype=np.int64)
        return cls(ends, np.concatenate([*sorted_lists, rising([])]), list_Q, *_EVERY)

    def in_rows(self, numbering: Numbering) -> Self:
        """The same lists as rows of the index instead of passage numbers."""
        return self._replace(passages=numbering.rows(self.passages))

    def within(self, passing: PassingRows | None) -> Self:
        """The same, with only the passages that pass a filter."""
        return self if passing is None else self._replace(bits_B=passing.bits_B, open_W=passing.open_W)

    def in_segment(self, first_word: int, passages: int) -> Self:
        """The same for a segment alone, whose bits begin at this word."""
        if not len(self.bits_B):
            return self
        words = slice(first_word, first_word + -(-passages // WORD_ROWS))
        bits_B = self.bits_B[words.start * kernels.MARKS : words.stop * kernels.MARKS]
        return self._replace(bits_B=bits_B, open_W=self.open_W[words])

    def for_queries(self, first: int, last: int) -> Self:
        """The lists of the queries from `first` to `last`."""
        return self._replace(list_Q=self.list_Q[first:last])


class SearchBatch(NamedTuple):
    """Queries as term numbers, the rows that must not be hits, and the arrays that get the numbers and the scores of
    hits."""

    queries: Sequence[Sequence[int]]
    forbidden: Forbidden
    numbers_QK: NDArray[np.int64]
    scores_QK: NDArray[np.float32]

    @classmethod
    def of(cls, queries: Sequence[Sequence[int]], k: int, forbidden: Forbidden | None) -> Self:
        """Queries without hits."""
        numbers_QK = np.full((len(queries), k), NO_PASSAGE, np.int64)
        scores_QK = np.zeros(numbers_QK.shape, np.float32)
        return cls(queries, forbidden or Forbidden.none(len(queries)), numbers_QK, scores_QK)

    def part(self, first: int, last: int) -> "SearchBatch":
        """The queries from `first` to `last`."""
        rows = slice(first, last)
        forbidden = self.forbidden.for_queries(first, last)
        return SearchBatch(self.queries[rows], forbidden, self.numbers_QK[rows], self.scores_QK[rows])


@kernels.kernel
def listed_for(forbidden: Forbidden, query: int) -> NDArray[np.int64]:
    """The list of a query."""
    number = forbidden.list_Q[query]
    if number < 0:
        return forbidden.passages[:0]
    return forbidden.passages[forbidden.ends_F[number] : forbidden.ends_F[number + 1]]


@kernels.kernel
def is_in(numbers: NDArray[np.int64], number: int) -> bool:
    """Whether a number is in a rising array."""
    place = np.searchsorted(numbers, number) if len(numbers) else 0
    return bool(place < len(numbers) and numbers[place] == number)


_BLOCK: Final = 512


class ScanQueries(NamedTuple):
    """Queries as terms with weights (float64) and counts (int64); those of query q are `ends[q]` to `ends[q + 1]`."""

    ends: NDArray[np.int64]
    weights: NDArray[np.float64]
    counts: NDArray[np.int64]


def weighted(
    queries: Sequence[Sequence[int]], frequency_V: NDArray[np.int64], idf_V: NDArray[np.float64]
) -> tuple[NDArray[np.int64], ScanQueries]:
    """The distinct terms of queries, those of a query by rising frequency, with their weights and counts."""
    ends = np.zeros(len(queries) + 1, np.int64)
    np.cumsum([*map(len, queries)], out=ends[1:])
    return _weighted(np.fromiter(chain.from_iterable(queries), np.int64, ends[-1]), ends, frequency_V, idf_V)


@kernels.kernel
def _weighted(
    terms: NDArray[np.int64], ends: NDArray[np.int64], frequency_V: NDArray[np.int64], idf_V: NDArray[np.float64]
) -> tuple[NDArray[np.int64], ScanQueries]:
    distinct, counts = np.empty(len(terms), np.int64), np.empty(len(terms), np.int64)
    new_ends = np.zeros(len(ends), np.int64)
    n = 0
    for query in range(len(ends) - 1):
        own = np.sort(terms[ends[query] : ends[query + 1]])
        begin = n
        for i in range(len(own)):
            if i and own[i] == own[i - 1]:
                counts[n - 1] += 1
            else:
                distinct[n], counts[n] = own[i], 1
                n += 1
        order = np.argsort(frequency_V[distinct[begin:n]])
        distinct[begin:n], counts[begin:n] = distinct[begin:n][order], counts[begin:n][order]
        new_ends[query + 1] = n
    return distinct[:n], ScanQueries(new_ends, idf_V[distinct[:n]], counts[:n])


@kernels.kernel
def scan(
    queries: ScanQueries,
    begins: NDArray[np.int64],
    stops: NDArray[np.int64],
    impact_C: NDArray[np.float64],
    passages: NDArray[np.int32],
    codes: arrays.PostingCodes,
    count: int,
    first: int,
    partition: int,
    forbidden: Forbidden,
    heaps_QK: NDArray[np.int64],
    found_Q: NDArray[np.int64],
) -> None:
    """Add the passages of a segment to the heap of each query, if they are among its best.

    The postings of each term are those from `begins` to `stops`. The segment has `count` passages, and `first` rows
    are before it.
    """
    sums = np.zeros(min(partition, count), np.int32)
    unit_Q = units(queries)
    for query in range(len(found_Q)):
        begin, end = queries.ends[query], queries.ends[query + 1]
        points_TC = _points(queries, query, unit_Q[query], impact_C)
        at = begins[begin:end].copy()
        for base in range(0, count, partition):
            size = min(partition, count - base)
            sums[:size] = 0
            for term in range(end - begin):
                at[term] = add_postings(
                    passages, codes, at[term], stops[begin + term], points_TC[term], base, size, sums
                )
            _strike_out(listed_for(forbidden, query), first + base, sums[:size])
            found_Q[query] = _collect(
                sums[:size], first + base, heaps_QK[query], found_Q[query], forbidden.bits_B, base
            )


@kernels.kernel
def units(queries: ScanQueries) -> NDArray[np.float64]:
    """The score of one point for each query (float64, Q).

    If a query is so long that its scores would not fit into 31 bits, the unit grows by powers of two.
    """
    unit_Q = np.empty(len(queries.ends) - 1, np.float64)
    for query in range(len(unit_Q)):
        begin, end = queries.ends[query], queries.ends[query + 1]
        max_score = (queries.weights[begin:end] * queries.counts[begin:end]).sum()
        times = queries.counts[begin:end].sum()
        unit = kernels.UNIT
        while unit < 1 and max_score / unit + times >= kernels.MAX_SCORE:
            unit *= 2
        unit_Q[query] = unit
    return unit_Q


@kernels.kernel
def _points(queries: ScanQueries, query: int, unit: float, impact_C: NDArray[np.float64]) -> NDArray[np.int32]:
    """What all occurrences of each term in a query add, for each code (int32)."""
    begin, end = queries.ends[query], queries.ends[query + 1]
    points_TC = np.empty((end - begin, len(impact_C)), np.int32)
    for term in range(end - begin):
        kernels.fill_points(queries.weights[begin + term], impact_C, unit, points_TC[term])
        points_TC[term] *= np.int32(queries.counts[begin + term])
    return points_TC


@kernels.kernel
def add_postings(
    passages: NDArray[np.int32],
    codes: arrays.PostingCodes,
    posting: int,
    stop: int,
    points_C: NDArray[np.int32],
    base: int,
    size: int,
    sums: NDArray[np.int32],
) -> int:
    """Add a term's postings in a partition to the sums; returns the first posting after the partition."""
    rows, escaped, escaped_rows = codes
    begin, posting = posting, posting + int(np.searchsorted(passages[posting:stop], base + size))
    for i in range(begin, posting):
        sums[np.uint32(passages[i] - base)] += points_C[rows[i]]
    if len(escaped):  # their code stands for an empty row of the table, so the loop above added nothing
        for i in range(np.searchsorted(escaped, begin), np.searchsorted(escaped, posting)):
            sums[passages[escaped[i]] - base] += points_C[escaped_rows[i]]
    return posting


@kernels.kernel
def _strike_out(listed: NDArray[np.int64], base: int, sums: NDArray[np.int32]) -> None:
    """Set the scores of the listed rows to 0; the sums are those of the rows from `base` on."""
    sums[listed[np.searchsorted(listed, base) : np.searchsorted(listed, base + len(sums))] - base] = 0


@kernels.kernel
def _collect(
    sums: NDArray[np.int32], base: int, heap: NDArray[np.int64], found: int, bits_B: NDArray[np.uint16], begin: int
) -> int:
    """Offer the passages of a partition that may be among the best; returns how many the heap then holds.

    Later passages have higher numbers, so they must score more than the worst score. `begin` is the first passage in
    the segment, for the bits of those that pass a filter.
    """
    threshold = kernels.worst_score(heap, found)
    for block in range(0, len(sums), _BLOCK):
        # The maximum is a vector loop, faster than a branch for each passage; few blocks need the branches.
        stop = min(block + _BLOCK, len(sums))
        highest = np.int32(0)
        for i in range(block, stop):
            highest = max(highest, sums[i])
        if highest <= threshold:
            continue
        if len(bits_B):
            found = _collect_passing(sums, base, block, stop, heap, found, bits_B, begin)
            threshold = kernels.worst_score(heap, found)
            continue
        for i in range(block, stop):
            if sums[i] > threshold:
                found = kernels.offer(heap, found, sums[i], base + i)
                threshold = kernels.worst_score(heap, found)
    return found


@kernels.kernel
def _collect_passing(
    sums: NDArray[np.int32],
    base: int,
    i: int,
    stop: int,
    heap: NDArray[np.int64],
    found: int,
    bits_B: NDArray[np.uint16],
    begin: int,
) -> int:
    """Offer those passages from `i` to `stop` that pass the filter."""
    threshold = kernels.worst_score(heap, found)
    while i < stop:
        place = begin + i
        bits = np.int64(bits_B[place >> 4]) >> (place & 15)
        if bits == 0:
            i += 16 - (place & 15)
            continue
        if bits & 1 and sums[i] > threshold:
            found = kernels.offer(heap, found, sums[i], base + i)
            threshold = kernels.worst_score(heap, found)
        i += 1
    return found
