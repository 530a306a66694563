"""Search for queries that do not follow one another: the postings of rare terms are summed, common terms looked up.

Without a layout of common terms, all terms of a query are rare. Sums are exact. If there are common terms, only those
passages are scored whose sum can reach the k-th best score together with the most that the common terms add; the
passages of common terms alone are looked at only if these alone can reach that score (MaxScore of Turtle and Flood,
1995, with two groups of terms). Passages go through it in partitions, so that their sums stay in cache. Nothing is kept
between queries.

Letters of shapes: Q queries, K hits per query, T terms of a query, C rows of the code table, N passages and B blocks of
a partition.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25 import kernels
from ralm.retrieval.bm25.collection import (
    ALIGNED,
    BLOCK_BITS,
    PARTITION,
    STEP_BITS,
    WORD_BLOCKS,
    Collection,
    CommonQueryTerms,
    MaskBits,
    Postings,
    SearchBatch,
    Terms,
    WeightedQueries,
    add_row,
    common_score,
    may_be_found,
    reach_threshold,
    rounded_up,
)

_MAX_STEPS: Final = (1 << 15) - 1
"""The highest bound that the rare terms of a block can have, and its common ones; the sum of both fits into 16 bits."""
_SPARSE: Final = 16
"""With at most one posting in so many passages, the postings are walked through again; else all sums are compared."""


class _Query(NamedTuple):
    """A query: its terms, the rare ones and their postings in a partition, the common ones, and the score of a point.

    If a query is so long that its scores would not fit into 31 bits, or the bounds of its common terms into 16, all its
    terms are rare; in the first case the score of a point grows by powers of two.
    """

    terms: Terms
    rare: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    common: CommonQueryTerms
    unit: float


class _Room(NamedTuple):
    """Arrays that are used again for each query. `sums_N` and `rare_B` are 0 between partitions."""

    sums_N: NDArray[np.int32]
    rare_B: NDArray[np.uint16]
    common_B: NDArray[np.uint16]
    lanes: NDArray[np.int32]
    floors_K: NDArray[np.int64]


def search_lookups(collection: Collection, batch: SearchBatch, partition: int = PARTITION) -> None:
    """Fill in the hits of queries; `partition` (a multiple of 1,024 passages) does not affect them."""
    assert partition % ALIGNED == 0
    collection.arrays.check_terms(batch.queries.terms, collection.passages)
    _look_up(collection.postings, collection.impact_C, collection.passages, partition, batch)


@kernels.kernel
def _look_up(
    postings: Postings, impact_C: NDArray[np.float64], passages: int, partition: int, batch: SearchBatch
) -> None:
    """Write the best passages of each query into its heap, and the score of a point."""
    queries = batch.queries
    size = (min(partition, passages) + ALIGNED - 1) // ALIGNED * ALIGNED
    blocks = size >> BLOCK_BITS
    room = _Room(
        np.zeros(size, np.int32), np.zeros(blocks, np.uint16), np.empty(blocks, np.uint16),
        np.empty(kernels.LANES, np.int32), np.empty(batch.heaps_QK.shape[1], np.int64),
    )  # fmt: skip
    for number in range(len(batch.heaps_QK)):
        query = _query(postings, impact_C, queries, queries.ends[number], queries.ends[number + 1])
        mask, heap = batch.mask, batch.heaps_QK[number]
        filled = 0
        for base in range(0, passages, partition):
            size = min(partition, passages - base)
            added = _add_rare(postings, query, queries.terms[queries.ends[number] :], base, size, room)
            sparse = added * _SPARSE <= size
            floor = _floor(postings, query, mask, base, room) if filled < len(heap) else 1
            _bound_rare(postings, query, base, room, sparse)
            _bound_common(postings, query, base, size, room.common_B)
            filled = _collect(postings, query, mask, base, size, room, heap, filled, floor)
            _clear(postings, query, base, room, sparse)
        batch.unit_Q[number] = query.unit


@kernels.kernel
def _query(
    postings: Postings, impact_C: NDArray[np.float64], queries: WeightedQueries, first: int, last: int
) -> _Query:
    """Return the query of the terms from `first` to `last`; the points of rare ones are those of all occurrences."""
    unit = _unit(queries.weights[first:last], queries.counts[first:last])
    rows, most = np.full(last - first, -1, np.int64), 0
    if len(postings.row_V) and unit == kernels.UNIT:
        for term in range(last - first):
            rows[term] = postings.row_V[queries.terms[first + term]]
            if rows[term] >= 0:
                most += postings.most_M[rows[term]] * queries.counts[first + term]
        if most > _MAX_STEPS:
            rows[:], most = -1, 0
    points_TC = np.empty((last - first, len(impact_C)), np.int32)
    slices_TS = np.empty((last - first, 1), np.int64)
    rare = np.empty(last - first, np.int64)
    terms, words = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
    counts = np.empty(last - first, np.int32)
    commons = rares = 0
    for term in range(last - first):
        times = queries.counts[first + term]
        slices_TS[term, 0] = postings.offsets[queries.terms[first + term]]
        kernels.fill_points(queries.weights[first + term], impact_C, unit, points_TC[term])
        if rows[term] < 0:
            for code in range(len(impact_C)):
                points_TC[term, code] *= np.int32(times)
            rare[rares] = term
            rares += 1
        else:
            terms[commons], words[commons], counts[commons] = term, rows[term] * postings.words, times
            commons += 1
    begins, common = slices_TS[:, 0].copy(), CommonQueryTerms(commons, terms, words, counts)
    return _Query(Terms(slices_TS, points_TC, rows), rare[:rares], begins, begins.copy(), common, unit)


@kernels.kernel
def _unit(weights: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    """Return the score of a point for a query: the smallest with which scores rounded up to steps fit into 31 bits."""
    max_score, times, unit = 0.0, 0, kernels.UNIT
    for term in range(len(weights)):
        max_score += weights[term] * counts[term]
        times += counts[term]
    while unit < 1 and max_score / unit + times >= kernels.MAX_SCORE - (1 << STEP_BITS):
        unit *= 2
    return unit


@kernels.kernel
def _add_rare(
    postings: Postings,
    query: _Query,
    terms: NDArray[np.int64],
    base: int,
    size: int,
    room: _Room,
) -> int:
    """Add the postings of rare terms in a partition to its sums, write their bounds, and return their number."""
    passages, sums_N = postings.passages, room.sums_N
    codes, escaped, escaped_rows = postings.codes
    added = 0
    for term in query.rare:
        begin, stop, points_C = query.ends[term], postings.offsets[terms[term] + 1], query.terms.points_TC[term]
        end = begin + int(np.searchsorted(passages[begin:stop], base + size))
        for i in range(begin, end):
            sums_N[np.uint32(passages[i] - base)] += points_C[codes[i]]
        if len(escaped):  # their code stands for an empty row of the table, so the loop above added nothing
            for i in range(np.searchsorted(escaped, begin), np.searchsorted(escaped, end)):
                sums_N[passages[escaped[i]] - base] += points_C[escaped_rows[i]]
        query.begins[term], query.ends[term] = begin, end
        added += end - begin
    return added


@kernels.kernel
def _collect(
    postings: Postings,
    query: _Query,
    mask: MaskBits,
    base: int,
    size: int,
    room: _Room,
    heap: NDArray[np.int64],
    filled: int,
    floor: int,
) -> int:
    """Offer the passages of a partition that score more than the worst; return how many the heap then holds."""
    sums_N, rare_B, common_B = room.sums_N, room.rare_B, room.common_B
    bits_B, open_W = mask
    threshold = max(kernels.worst_score(heap, filled) + 1, floor)
    for begin in range(0, (size + kernels.LANES - 1) >> BLOCK_BITS, kernels.MARKS):
        marks = kernels.find_sums(rare_B, common_B, begin, np.uint16(_steps(threshold)))
        if len(open_W):
            marks &= open_W[base // ALIGNED + begin // kernels.MARKS]
        while marks:
            block = begin + kernels.lowest_bit(marks)
            marks &= marks - np.uint64(1)
            if rare_B[block] + common_B[block] < _steps(threshold):
                continue
            first = block << BLOCK_BITS
            candidates = reach_threshold(
                postings, query.common, bits_B, (base >> BLOCK_BITS) + block, sums_N, first, room.lanes, threshold
            )
            while candidates:
                lane = kernels.lowest_bit(candidates)
                candidates &= candidates - np.uint64(1)
                passage = base + first + lane
                score = sums_N[first + lane] + common_score(postings, query.terms, query.common, passage)
                if score >= threshold:
                    filled = kernels.offer(heap, filled, score, passage)
                    threshold = max(threshold, kernels.worst_score(heap, filled) + 1)
    return filled


@kernels.kernel
def _steps(points: int) -> int:
    """Return points as steps, rounded up, or the most that half of a bound holds."""
    return min(rounded_up(points), _MAX_STEPS)


@kernels.kernel
def _bound_rare(postings: Postings, query: _Query, base: int, room: _Room, sparse: bool) -> None:
    """Write the highest sum of each block of a partition, in steps."""
    sums_N, rare_B = room.sums_N, room.rare_B
    if not sparse:
        for block in range(len(rare_B)):
            rare_B[block] = _steps(np.int64(kernels.highest(sums_N, block << BLOCK_BITS)))
        return
    for term in query.rare:
        for posting in range(query.begins[term], query.ends[term]):
            place = np.uint32(postings.passages[posting] - base)
            bound = np.uint16(_steps(np.int64(sums_N[place])))
            rare_B[place >> np.uint32(BLOCK_BITS)] = max(rare_B[place >> np.uint32(BLOCK_BITS)], bound)


@kernels.kernel
def _clear(postings: Postings, query: _Query, base: int, room: _Room, sparse: bool) -> None:
    """Set the sums and the bounds of rare terms in a partition to 0 again."""
    if not sparse:
        room.sums_N[:] = 0
        room.rare_B[:] = 0
        return
    for term in query.rare:
        for posting in range(query.begins[term], query.ends[term]):
            place = np.uint32(postings.passages[posting] - base)
            room.sums_N[place] = 0
            room.rare_B[place >> np.uint32(BLOCK_BITS)] = 0


@kernels.kernel
def _floor(
    postings: Postings,
    query: _Query,
    mask: MaskBits,
    base: int,
    room: _Room,
) -> int:
    """Return a bound of the k-th best score, at least 1, from passages with the rarest term that has k of them."""
    best = -1
    for term in query.rare:
        if query.ends[term] - query.begins[term] >= len(room.floors_K):
            best = term
            break
    if best < 0:
        return 1
    filled = 0
    for posting in range(query.begins[best], query.ends[best]):
        passage = np.int64(postings.passages[posting])
        rare = np.int64(room.sums_N[passage - base])
        if rare > kernels.worst_score(room.floors_K, filled) and may_be_found(mask, passage):
            filled = kernels.offer(room.floors_K, filled, rare, passage)
    if filled < len(room.floors_K):
        return 1
    lowest = np.int64(kernels.MAX_SCORE)
    for place in range(filled):
        passage, rare = kernels.passage_of(room.floors_K[place]), room.floors_K[place] >> kernels.NUMBER_BITS
        common = common_score(postings, query.terms, query.common, passage)
        lowest = min(lowest, rare + common)
    return int(lowest)


@kernels.kernel
def _bound_common(postings: Postings, query: _Query, base: int, size: int, common_B: NDArray[np.uint16]) -> None:
    """Write the most that the common terms add to a passage of each block of a partition, in steps."""
    blocks = (size + kernels.LANES - 1) >> BLOCK_BITS
    common_B[:] = 0
    for i in range(query.common.size):
        first = query.common.words[i] * WORD_BLOCKS + (base >> BLOCK_BITS)
        add_row(common_B[:blocks], postings.highest[first : first + blocks], np.uint16(query.common.times[i]))
