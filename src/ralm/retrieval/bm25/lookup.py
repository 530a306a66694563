"""Search for queries that do not follow one another: rare terms are summed, common ones looked up.

The postings of a query's rare terms are few. They are summed exactly, and only those passages are scored whose sum can
reach the k-th best score together with the most that the common terms add. The postings of common terms are read only
if these terms alone can reach that score (MaxScore of Turtle and Flood, 1995, with two groups of terms). Nothing is
kept between queries, as in a scan.

Letters of shapes: Q queries, K hits per query, T terms of a query, C rows of the code table, N passages and B blocks of
a partition.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25 import kernels, stream_kernel
from ralm.retrieval.bm25.collection import BLOCK_BITS, PARTITION, STEP_BITS, WORD_BITS, Collection
from ralm.retrieval.bm25.scan import Forbidden, ScanQueries, SearchBatch, add_postings, listed_for, weighted
from ralm.retrieval.bm25.stream_kernel import ALIGNED, CommonQueryTerms, PartitionRows, Postings, Terms

_WORD_BLOCKS: Final = 1 << (WORD_BITS - BLOCK_BITS)
_BLOCKS: Final = 64
"""Blocks whose highest bound is compared with the threshold at a time."""


class _QueryTerms(NamedTuple):
    """The terms of queries in a segment, those of one query after those of another.

    `begins`, `stops`: their postings. `words`: where the words of a common term begin, -1 for a rare one. `most`: the
    most that one occurrence of a common term adds, in steps.
    """

    begins: NDArray[np.int64]
    stops: NDArray[np.int64]
    words: NDArray[np.int64]
    most: NDArray[np.int64]


class _Query(NamedTuple):
    """A query in a segment: its terms by rising frequency in the index, the rows of the rare ones, the `commons` common
    ones, and the most points that these add to a passage."""

    terms: Terms
    rare: NDArray[np.int64]
    common: CommonQueryTerms
    commons: int
    rest: int


class _Room(NamedTuple):
    """Arrays that are used again for each query. `sums_N` is 0 between partitions."""

    sums_N: NDArray[np.int32]
    bound_B: NDArray[np.uint16]
    lanes: NDArray[np.int32]
    floors_K: NDArray[np.int64]


def search_lookups(collection: Collection, batch: SearchBatch, partition: int = PARTITION) -> None:
    """Fill in the hits of queries, which the collection must support.

    `partition`: passages at a time, a multiple of 1,024, which does not affect the hits.
    """
    assert partition % ALIGNED == 0
    lexicon = collection.lexicon
    terms, queries = weighted(batch.queries, lexicon.frequency_V, lexicon.idf_V)
    heaps_QK = np.zeros(batch.numbers_QK.shape, np.int64)
    found_Q = np.zeros(len(batch.queries), np.int64)
    for place, (segment, common) in enumerate(zip(collection.segments, collection.common, strict=True)):
        numbers = lexicon.terms_SV[place, terms]
        _look_up(
            queries, _QueryTerms(*segment.postings_of(numbers), *common.of_terms(numbers)), segment.impact_C,
            Postings.of(segment.arrays, common), segment.passages, segment.first, partition,
            batch.forbidden.in_segment(segment.first_word, segment.passages), heaps_QK, found_Q,
        )  # fmt: skip
    unit_Q = np.full(len(found_Q), kernels.UNIT)
    kernels.drain_heaps(heaps_QK, found_Q, batch.numbers_QK, batch.scores_QK, unit_Q)


@kernels.kernel
def _look_up(
    queries: ScanQueries,
    found: _QueryTerms,
    impact_C: NDArray[np.float64],
    postings: Postings,
    passages: int,
    first_row: int,
    partition: int,
    forbidden: Forbidden,
    heaps_QK: NDArray[np.int64],
    found_Q: NDArray[np.int64],
) -> None:
    """Offer the passages of a segment that are among the best to the heap of each query; `first_row` is the row of the
    segment's first passage."""
    size = (min(partition, passages) + ALIGNED - 1) // ALIGNED * ALIGNED
    room = _Room(
        np.zeros(size, np.int32), np.empty(size >> BLOCK_BITS, np.uint16), np.empty(kernels.LANES, np.int32),
        np.empty(heaps_QK.shape[1], np.int64),
    )  # fmt: skip
    for number in range(len(found_Q)):
        first, last = queries.ends[number], queries.ends[number + 1]
        query = _query(queries, found, first, last, impact_C)
        begins, stops = found.begins[first:last].copy(), found.stops[first:last]
        ends = begins.copy()
        for base in range(0, passages, partition):
            size = min(partition, passages - base)
            for term in query.rare:
                begins[term] = ends[term]
                ends[term] = add_postings(
                    postings.passages, postings.codes, ends[term], stops[term], query.terms.points_TC[term], base,
                    size, room.sums_N,
                )  # fmt: skip
            rows = PartitionRows(
                base, first_row, listed_for(forbidden, number),
                forbidden.bits_B[base >> BLOCK_BITS :], forbidden.open_W,
            )  # fmt: skip
            found_Q[number] = _collect(
                postings, query, begins, ends, rows, size, room, heaps_QK[number], found_Q[number]
            )


@kernels.kernel
def _query(queries: ScanQueries, found: _QueryTerms, first: int, last: int, impact_C: NDArray[np.float64]) -> _Query:
    """The terms from `first` to `last`; the points of rare ones are those of all their occurrences."""
    points_TC = np.empty((last - first, len(impact_C)), np.int32)
    rare = np.empty(last - first, np.int64)
    common = CommonQueryTerms(
        np.empty(last - first, np.int64), np.empty(last - first, np.int64), np.empty(last - first, np.int32)
    )
    count = rares = rest = 0
    for term in range(last - first):
        times = queries.counts[first + term]
        kernels.fill_points(queries.weights[first + term], impact_C, kernels.UNIT, points_TC[term])
        if found.words[first + term] < 0:
            points_TC[term] *= np.int32(times)
            rare[rares] = term
            rares += 1
        else:
            common.terms[count], common.words[count], common.times[count] = term, found.words[first + term], times
            rest += found.most[first + term] * times << STEP_BITS
            count += 1
    terms = Terms(found.begins[first:last].copy().reshape(-1, 1), points_TC, found.words[first:last])
    return _Query(terms, rare[:rares], common, count, rest)


@kernels.kernel
def _collect(
    postings: Postings,
    query: _Query,
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    rows: PartitionRows,
    size: int,
    room: _Room,
    heap: NDArray[np.int64],
    found: int,
) -> int:
    """Offer the passages of a partition that may be among the best, and set its sums to 0 again; returns how many the
    heap then holds. The postings of the rare terms in the partition are those from `begins` to `ends`."""
    sums_N, bound_B = room.sums_N, room.bound_B
    threshold = max(kernels.worst_score(heap, found), np.int64(1))
    if found < len(heap):
        threshold = max(threshold, _floor(postings, query, begins, ends, rows, room))
    _bound(postings, query, rows.base, size, bound_B)
    alone = query.rest >= threshold
    for term in query.rare:
        for posting in range(begins[term], ends[term]):
            place = np.uint32(postings.passages[posting] - rows.base)
            rare = np.int64(sums_N[place])
            sums_N[place] = -abs(rare) if alone else 0  # each passage is looked at once
            spare = rare + (np.int64(bound_B[place >> np.uint32(BLOCK_BITS)]) << STEP_BITS) - threshold
            if spare < 0 or rare <= 0:
                continue
            passage = rows.base + np.int64(place)
            if _reaches(postings, query, passage, spare) and stream_kernel.may_be_found(rows, passage):
                common = stream_kernel.common_score(postings, query.terms, query.common, query.commons, passage)
                if rare + common >= threshold:
                    found = kernels.offer(heap, found, rare + common, rows.first + passage)
                    threshold = max(threshold, kernels.worst_score(heap, found))
    if alone:
        found = _collect_common(postings, query, rows, size, room, heap, found, threshold)
        for term in query.rare:
            for posting in range(begins[term], ends[term]):
                sums_N[np.uint32(postings.passages[posting] - rows.base)] = 0
    return found


@kernels.kernel
def _floor(
    postings: Postings,
    query: _Query,
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    rows: PartitionRows,
    room: _Room,
) -> int:
    """A lower bound of the k-th best score of a partition, 0 if there is none: that of the k passages with the
    highest sums among those with the rarest term that as many have."""
    best = -1
    for term in query.rare:
        if ends[term] - begins[term] >= len(room.floors_K):
            best = term
            break
    if best < 0:
        return 0
    found = 0
    for posting in range(begins[best], ends[best]):
        passage = np.int64(postings.passages[posting])
        rare = np.int64(room.sums_N[passage - rows.base])
        if rare > kernels.worst_score(room.floors_K, found) and stream_kernel.may_be_found(rows, passage):
            found = kernels.offer(room.floors_K, found, rare, passage)
    if found < len(room.floors_K):
        return 0
    lowest = np.int64(kernels.MAX_SCORE)
    for place in range(found):
        passage, rare = kernels.passage_of(room.floors_K[place]), room.floors_K[place] >> kernels.NUMBER_BITS
        common = stream_kernel.common_score(postings, query.terms, query.common, query.commons, passage)
        lowest = min(lowest, rare + common)
    return int(lowest)


@kernels.kernel
def _bound(postings: Postings, query: _Query, base: int, size: int, bound_B: NDArray[np.uint16]) -> None:
    """Write the most that the common terms add to a passage of each block of a partition, in steps."""
    blocks = (size + kernels.LANES - 1) >> BLOCK_BITS
    bound_B[:blocks] = 0
    for i in range(query.commons):
        first = query.common.words[i] * _WORD_BLOCKS + (base >> BLOCK_BITS)
        _raise(bound_B[:blocks], postings.highest[first : first + blocks], np.uint16(query.common.times[i]))


@kernels.kernel
def _reaches(postings: Postings, query: _Query, passage: int, spare: int) -> bool:
    """Whether the common terms that a passage lacks add at most `spare` points to the bound of its block."""
    word, block, bit = passage >> WORD_BITS, passage >> BLOCK_BITS, np.uint64(passage & 63)
    for i in range(query.commons):
        begin = query.common.words[i]
        if not (postings.present[begin + word] >> bit) & np.uint64(1):
            lacking = np.int64(postings.highest[begin * _WORD_BLOCKS + block]) * query.common.times[i]
            spare -= lacking << STEP_BITS
            if spare < 0:
                return False
    return True


@kernels.kernel
def _collect_common(
    postings: Postings,
    query: _Query,
    rows: PartitionRows,
    size: int,
    room: _Room,
    heap: NDArray[np.int64],
    found: int,
    threshold: int,
) -> int:
    """Offer the passages without rare terms, whose sums are 0, that may be among the best; those with rare terms have
    negative sums. Returns how many the heap then holds."""
    common, count = query.common, query.commons
    first, blocks = rows.base >> BLOCK_BITS, (size + kernels.LANES - 1) >> BLOCK_BITS
    bound_B = room.bound_B[:blocks]
    for begin in range(0, blocks, _BLOCKS):
        if _highest(bound_B[begin : begin + _BLOCKS]) < stream_kernel.rounded_up(threshold):
            continue
        for block in range(begin, min(begin + _BLOCKS, blocks)):
            if bound_B[block] < stream_kernel.rounded_up(threshold):
                continue
            candidates = kernels.bound_lanes(
                room.sums_N, block << BLOCK_BITS, STEP_BITS, room.lanes, common.words, common.times, count,
                postings.highest, postings.present, first + block, stream_kernel.rounded_up(threshold),
            )  # fmt: skip
            while candidates:
                place = (block << BLOCK_BITS) + kernels.lowest_bit(candidates)
                candidates &= candidates - np.uint64(1)
                passage = rows.base + place
                if room.sums_N[place] or not stream_kernel.may_be_found(rows, passage):
                    continue
                score = stream_kernel.common_score(postings, query.terms, common, count, passage)
                if score >= threshold:
                    found = kernels.offer(heap, found, score, rows.first + passage)
                    threshold = max(threshold, kernels.worst_score(heap, found))
    return found


@kernels.kernel
def _raise(sums: NDArray[np.uint16], row: NDArray[np.uint8], times: np.uint16) -> None:
    for i in range(len(row)):
        sums[i] += np.uint16(np.uint16(row[i]) * times)


@kernels.kernel
def _highest(bounds: NDArray[np.uint16]) -> int:
    # The maximum is a vector loop, faster than a branch for each block.
    highest = np.uint16(0)
    for i in range(len(bounds)):
        highest = max(highest, bounds[i])
    return int(highest)
