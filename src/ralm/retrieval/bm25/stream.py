"""Stream search: exact BM25 for consecutive queries that overlap, each computed from the last, as those of strides.

    rare terms     their sum is kept exactly for every passage: new terms are added, removed ones subtracted
    common terms   their postings are not traversed; the most that they can add to a block is kept instead
    blocks         of 16 passages: passages are bounded one by one only if their block's bound reaches the k-th best
                   score, and scored only if their own bound still reaches it

The threshold is high from the start, since the best passages of the query before are scored first. A batch of queries
goes through one partition after the other, so that a partition's sums stay in cache.

Letters of shapes: W queries, V terms of the index, T terms known to the stream, C rows of the code table, S slices of
postings by partition, K hits per query, N passages, B blocks, P partitions.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25 import kernels
from ralm.retrieval.bm25.collection import (
    ALIGNED,
    BLOCK_BITS,
    PARTITION,
    WORD_BITS,
    Collection,
    CommonQueryTerms,
    MaskBits,
    Postings,
    SearchBatch,
    Terms,
    add_row,
    common_score,
    may_be_found,
    reach_threshold,
    rounded_up,
)
from ralm.retrieval.bm25.kernels import UNIT, fill_points, kernel

_TABLE_NUMBERS: Final = 1 << 23
"""Points that a stream keeps: 32 MiB."""


class Queries(NamedTuple):
    """Queries as terms with counts, rare terms first, and the changes from each query to the next, removals first."""

    ends_W: NDArray[np.int64]
    terms: NDArray[np.int32]
    counts: NDArray[np.int64]
    change_ends_W: NDArray[np.int64]
    changed: NDArray[np.int32]
    changes: NDArray[np.int64]


class State(NamedTuple):
    """The passages at the last query; bounds are in steps, rounded up.

    `sums_N` (int32): exact sums of the rare terms. `rare_B` (uint16): at least the highest of those in a block.
    `common_B` (uint16): the sum of the common terms' maxima. `bound_B` (uint16): at least the highest score in a block.
    `kept_PK` (int64), `kept_P`: the best passages of each partition.
    """

    sums_N: NDArray[np.int32]
    rare_B: NDArray[np.uint16]
    common_B: NDArray[np.uint16]
    bound_B: NDArray[np.uint16]
    kept_PK: NDArray[np.int64]
    kept_P: NDArray[np.int64]


class Stream:
    """A search for queries in order, each computed from the one before, by partitions; for one thread at a time."""

    def __init__(self, collection: Collection, k: int, partition: int = PARTITION) -> None:
        assert partition % ALIGNED == 0
        self._collection = collection
        self._k = k
        self._partition = partition
        self._reset(0)

    def _reset(self, terms: int) -> None:
        """Forget all terms and the last query; there is room for so many terms, and for as many more as are kept."""
        collection = self._collection
        partitions = max(1, -(-collection.passages // self._partition))
        codes, of_index = len(collection.impact_C), len(collection.arrays.offsets) - 1
        rows = max(terms, min(_TABLE_NUMBERS // max(1, codes), of_index))
        self._term_count = 0
        self._row_V = np.full(of_index, -1, np.int32)
        self._count_T = np.zeros(rows, np.int64)
        self._last = np.zeros(0, np.int32)
        self._terms = Terms(
            slices_TS=np.zeros((rows, partitions + 1), np.int64),
            points_TC=np.zeros((rows, codes), np.int32),
            words_T=np.zeros(rows, np.int64),
        )
        padded = -(-max(collection.passages, 1) // ALIGNED) * ALIGNED
        blocks = padded >> BLOCK_BITS
        self._state = State(
            sums_N=np.zeros(padded, np.int32),
            rare_B=np.zeros(blocks, np.uint16),
            common_B=np.zeros(blocks, np.uint16),
            bound_B=np.zeros(blocks, np.uint16),
            kept_PK=np.zeros((partitions, self._k), np.int64),
            kept_P=np.zeros(partitions, np.int64),
        )

    def fill(self, batch: SearchBatch) -> None:
        """Fill in the hits of the next queries, for which streams must have room (`has_room_for`)."""
        collection, ends = self._collection, batch.queries.ends
        self._learn(batch.queries.terms)
        rows = self._row_V[batch.queries.terms]
        queries = _differences(rows, ends, batch.queries.counts, self._count_T, self._last)
        self._last = rows[ends[-2] :]
        advance_partitions(
            collection.postings, self._terms, queries, self._state, batch.mask, self._partition,
            collection.passages, batch.heaps_QK,
        )  # fmt: skip

    def _learn(self, terms: NDArray[np.int64]) -> None:
        """Give each new term a row of the tables, after a reset if there are too few."""
        collection, new = self._collection, np.unique(terms[self._row_V[terms] < 0])
        if self._term_count + len(new) > len(self._count_T):
            new = np.unique(terms)
            self._reset(len(new))
        collection.arrays.check_terms(new, collection.passages)
        first = self._term_count
        self._term_count += len(new)
        self._row_V[new] = np.arange(first, self._term_count)
        idf = collection.idf(collection.frequency(new))
        _learn(new, first, idf, collection.impact_C, collection.postings, self._partition, self._terms)


@kernel
def _learn(
    terms: NDArray[np.int64],
    first: int,
    idf_T: NDArray[np.float64],
    impact_C: NDArray[np.float64],
    postings: Postings,
    partition: int,
    tables: Terms,
) -> None:
    """Fill the rows of the tables from `first` on with terms."""
    slices_TS, points_TC, words_T = tables
    for place in range(len(terms)):
        term, row = terms[place], first + place
        begin, end, common = postings.offsets[term], postings.offsets[term + 1], postings.row_V[term]
        words_T[row] = np.int64(common) * postings.words if common >= 0 else -1
        fill_points(idf_T[place], impact_C, UNIT, points_TC[row])
        slices_TS[row, 0] = begin
        for number in range(1, slices_TS.shape[1]):
            begin += np.searchsorted(postings.passages[begin:end], number * partition)
            slices_TS[row, number] = begin


@kernel
def _differences(
    rows: NDArray[np.int32],
    ends: NDArray[np.int64],
    counts: NDArray[np.int64],
    count_T: NDArray[np.int64],
    before: NDArray[np.int32],
) -> Queries:
    """Return queries as rows and counts, with the changes from each to the next; `count_T` becomes that of the last."""
    change_ends = np.zeros(len(ends), np.int64)
    changed = np.empty(2 * len(rows) + len(before), np.int32)
    changes = np.empty(len(changed), np.int64)
    new_count_T = np.zeros(len(count_T), np.int64)
    m = 0
    for query in range(len(ends) - 1):
        terms, own_counts = rows[ends[query] : ends[query + 1]], counts[ends[query] : ends[query + 1]]
        new_count_T[terms] = own_counts
        m = _changes(before, new_count_T, count_T, changed, changes, m, -1)
        m = _changes(terms, new_count_T, count_T, changed, changes, m, 1)
        count_T[before] = 0
        count_T[terms] = own_counts
        new_count_T[terms] = 0
        before = terms
        change_ends[query + 1] = m
    return Queries(ends, rows, counts, change_ends, changed[:m], changes[:m])


@kernel
def _changes(
    rows: NDArray[np.int32],
    new_count_T: NDArray[np.int64],
    count_T: NDArray[np.int64],
    changed: NDArray[np.int32],
    changes: NDArray[np.int64],
    m: int,
    sign: int,
) -> int:
    """Record the rows whose count rises (sign 1) or falls (-1)."""
    for row in rows:
        change = new_count_T[row] - count_T[row]
        if change * sign > 0:
            changed[m], changes[m] = row, change
            m += 1
    return m


@kernel
def advance_partitions(
    postings: Postings,
    terms: Terms,
    queries: Queries,
    state: State,
    mask: MaskBits,
    partition: int,
    passages: int,
    heaps_WK: NDArray[np.int64],
) -> None:
    """Write the best passages of each query into its heap, a partition at a time, so that its sums stay in cache."""
    most = len(queries.terms)
    room = CommonQueryTerms(0, np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int32))
    filled_W = np.zeros(len(heaps_WK), np.int64)
    floors_K = np.empty(heaps_WK.shape[1], np.int64)
    lanes = np.empty(kernels.LANES, np.int32)
    for number in range(len(state.kept_P)):
        base = number * partition
        size = min(partition, passages - base)
        first, last = base >> BLOCK_BITS, (base + size + ALIGNED - 1) // ALIGNED * kernels.MARKS
        here = State(
            state.sums_N[base : last << BLOCK_BITS],
            state.rare_B[first:last],
            state.common_B[first:last],
            state.bound_B[first:last],
            state.kept_PK[number],
            state.kept_P[number : number + 1],
        )
        for w in range(len(filled_W)):
            _change_common(postings, terms, queries, here, w, base, size)
            _change_rare(postings, terms, queries, here, w, number, base)
            common = _common_terms(terms, queries, w, room)
            filled_W[w] = _collect(postings, terms, here, common, mask, base, heaps_WK[w], filled_W[w], floors_K, lanes)


@kernel
def _change_common(
    postings: Postings, terms: Terms, queries: Queries, here: State, w: int, base: int, size: int
) -> None:
    """Update the bounds of the common terms for a query; a new term may raise every block's bound."""
    blocks = (size + kernels.LANES - 1) >> BLOCK_BITS
    common_B, bound_B = here.common_B[:blocks], here.bound_B[:blocks]
    for i in range(queries.change_ends_W[w], queries.change_ends_W[w + 1]):
        words = terms.words_T[queries.changed[i]]
        if words < 0:
            continue
        first = (words << (WORD_BITS - BLOCK_BITS)) + (base >> BLOCK_BITS)
        highest_B = postings.highest[first : first + blocks]
        times = np.uint16(queries.changes[i])  # adding a negative one modulo 65,536 subtracts
        add_row(common_B, highest_B, times)
        if queries.changes[i] > 0:  # the bounds are lowered later, on demand
            add_row(bound_B, highest_B, times)


@kernel
def _change_rare(
    postings: Postings, terms: Terms, queries: Queries, here: State, w: int, number: int, base: int
) -> None:
    """Update the sums of the rare terms for a query, and the bounds of the blocks that gain."""
    passages = postings.passages
    codes, escaped, escaped_rows = postings.codes
    sums_N, rare_B, common_B, bound_B = here.sums_N, here.rare_B, here.common_B, here.bound_B
    for i in range(queries.change_ends_W[w], queries.change_ends_W[w + 1]):
        term, times = queries.changed[i], np.int32(queries.changes[i])
        if terms.words_T[term] >= 0:
            continue
        points_C = terms.points_TC[term]
        begin, end = terms.slices_TS[term, number], terms.slices_TS[term, number + 1]
        for posting in range(begin, end):
            points = points_C[codes[posting]] * times
            _change_sum(sums_N, rare_B, common_B, bound_B, passages[posting] - base, points)
        if len(escaped):  # their code stands for an empty row of the table, so the loop above added nothing
            for i in range(np.searchsorted(escaped, begin), np.searchsorted(escaped, end)):
                points = points_C[escaped_rows[i]] * times
                _change_sum(sums_N, rare_B, common_B, bound_B, passages[escaped[i]] - base, points)


@kernel
def _change_sum(
    sums_N: NDArray[np.int32],
    rare_B: NDArray[np.uint16],
    common_B: NDArray[np.uint16],
    bound_B: NDArray[np.uint16],
    passage: int,
    points: int,
) -> None:
    """Add points to a passage's sum, and raise the bounds of its block."""
    total = sums_N[passage] + points
    sums_N[passage] = total
    if points > 0:
        block, bound = passage >> BLOCK_BITS, rounded_up(total)
        rare_B[block] = max(rare_B[block], bound)
        bound_B[block] = max(bound_B[block], bound + common_B[block])


@kernel
def _common_terms(terms: Terms, queries: Queries, w: int, room: CommonQueryTerms) -> CommonQueryTerms:
    """Return the common terms of a query, in the arrays of `room`."""
    count = 0
    for i in range(queries.ends_W[w], queries.ends_W[w + 1]):
        term = queries.terms[i]
        if terms.words_T[term] >= 0:
            room.terms[count] = term
            room.words[count] = terms.words_T[term]
            room.times[count] = queries.counts[i]
            count += 1
    return CommonQueryTerms(count, room.terms, room.words, room.times)


@kernel
def _collect(
    postings: Postings,
    terms: Terms,
    here: State,
    common: CommonQueryTerms,
    mask: MaskBits,
    base: int,
    heap: NDArray[np.int64],
    filled: int,
    floors_K: NDArray[np.int64],
    lanes: NDArray[np.int32],
) -> int:
    """Offer the passages of a partition that may be among the best; return how many the heap then holds."""
    sums_N, rare_B, common_B, bound_B = here.sums_N, here.rare_B, here.common_B, here.bound_B
    bits_B, open_W = mask
    # A passage must score at least 1 to share a term with the query.
    threshold = max(_floor(postings, terms, here, common, mask, base, floors_K, heap, filled), np.int64(1))
    for begin in range(0, len(bound_B), kernels.MARKS):
        marks = kernels.tighten(bound_B, rare_B, common_B, begin, np.uint16(rounded_up(threshold)))
        if len(open_W):
            marks &= open_W[base // ALIGNED + begin // kernels.MARKS]
        while marks:
            block = begin + kernels.lowest_bit(marks)
            marks &= marks - np.uint64(1)
            first = block << BLOCK_BITS
            # Removed terms leave the bounds of a block too high; they are exact again once the block is looked at.
            rare = rounded_up(np.int64(kernels.highest(sums_N, first)))
            rare_B[block] = rare
            bound = rare + common_B[block]
            bound_B[block] = bound
            if bound < rounded_up(threshold):
                continue
            candidates = reach_threshold(
                postings, common, bits_B, (base >> BLOCK_BITS) + block, sums_N, first, lanes, threshold
            )
            while candidates:
                lane = kernels.lowest_bit(candidates)
                candidates &= candidates - np.uint64(1)
                passage = base + first + lane
                score = sums_N[first + lane] + common_score(postings, terms, common, passage)
                lanes[lane] = rounded_up(score)
                if score >= threshold:
                    filled = kernels.offer(heap, filled, score, passage)
                    threshold = max(threshold, kernels.worst_score(heap, filled) + 1)
            bound_B[block] = kernels.highest(lanes, 0)
    kept = 0  # this partition's passages among the best so far are where the next query begins
    for i in range(filled):
        passage = kernels.passage_of(heap[i])
        if passage >= base:
            here.kept_PK[kept] = passage
            kept += 1
    here.kept_P[0] = kept
    return filled


@kernel
def _floor(
    postings: Postings,
    terms: Terms,
    here: State,
    common: CommonQueryTerms,
    mask: MaskBits,
    base: int,
    floors_K: NDArray[np.int64],
    heap: NDArray[np.int64],
    filled: int,
) -> int:
    """Return a lower bound of the k-th best score, from the partitions before and the kept passages of this one."""
    for i in range(filled):
        floors_K[i] = heap[i]
    for i in range(here.kept_P[0]):
        passage = here.kept_PK[i]
        if may_be_found(mask, passage):
            score = here.sums_N[passage - base] + common_score(postings, terms, common, passage)
            filled = kernels.offer(floors_K, filled, score, passage)
    return kernels.worst_score(floors_K, filled)
