"""The kernel of stream search: consecutive queries, each computed from the last, partition by partition.

    rare terms     their sum is kept exactly for every passage: new terms are added, removed ones subtracted
    common terms   their postings are not traversed; the most that they can add to a block is kept instead
    blocks         of 16 passages: passages are bounded one by one only if their block's bound reaches the k-th best
                   score, and scored only if their own bound still reaches it

The threshold is high from the start, since the best passages of the query before are scored first.

Letters of shapes: W queries, T terms known to the stream, C rows of the code table, S slices of postings by partition,
K hits per query, N passages, B blocks, P partitions.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25 import kernels
from ralm.retrieval.bm25.batch import ALIGNED, BLOCK_BITS, MaskBits, may_be_found
from ralm.retrieval.bm25.collection import (
    WORD_BITS,
    CommonQueryTerms,
    Postings,
    Terms,
    add_row,
    common_score,
    reach_threshold,
    rounded_up,
)


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


@kernels.kernel
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


@kernels.kernel
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


@kernels.kernel
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


@kernels.kernel
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


@kernels.kernel
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


@kernels.kernel
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
    _keep(here, heap, filled, base)
    return filled


@kernels.kernel
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


@kernels.kernel
def _keep(here: State, heap: NDArray[np.int64], filled: int, base: int) -> None:
    """Keep this partition's passages among the best so far for the next query."""
    count = 0
    for i in range(filled):
        passage = kernels.passage_of(heap[i])
        if passage >= base:
            here.kept_PK[count] = passage
            count += 1
    here.kept_P[0] = count
