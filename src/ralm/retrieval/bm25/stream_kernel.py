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
from ralm.retrieval.bm25.batch import ALIGNED, BLOCK_BITS, Allowed, Forbidden, allowed_for, is_in, may_be_found
from ralm.retrieval.bm25.collection import (
    WORD_BITS,
    CommonQueryTerms,
    Postings,
    Terms,
    common_score,
    reach_threshold,
    rounded_up,
)


class Queries(NamedTuple):
    """Queries as terms with counts, rare terms first, and the changes from each query to the next, removals first."""

    ends_W: NDArray[np.int64]
    terms: NDArray[np.int64]
    counts: NDArray[np.int64]
    change_ends_W: NDArray[np.int64]
    changed: NDArray[np.int64]
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
    forbidden: Forbidden,
    partition: int,
    passages: int,
    heaps_WK: NDArray[np.int64],
    found_W: NDArray[np.int64],
) -> None:
    """Advance the state from query to query, and write the best passages of each query into its heap.

    A partition is finished before the next one, so that its sums stay in cache.
    """
    max_terms = len(queries.terms)
    common = CommonQueryTerms(
        np.empty(max_terms, np.int64), np.empty(max_terms, np.int64), np.empty(max_terms, np.int32)
    )
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
        for w in range(len(found_W)):
            _change_common(postings, terms, queries, here, w, base, size)
            _change_rare(postings, terms, queries, here, w, number, base)
            count = _common_terms(terms, queries, w, common)
            found_W[w] = _collect(
                postings, terms, here, common, count, allowed_for(forbidden, w), base, heaps_WK[w], found_W[w],
                floors_K, lanes,
            )  # fmt: skip


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
        if queries.changes[i] > 0:
            _raise(common_B, bound_B, highest_B, np.uint16(queries.changes[i]))
        else:
            _lower(common_B, highest_B, np.uint16(-queries.changes[i]))


@kernels.kernel
def _lower(sums: NDArray[np.uint16], row: NDArray[np.uint8], times: np.uint16) -> None:
    # A loop over plain slices is compiled to vector instructions; the bounds themselves are lowered later, on demand.
    for i in range(len(row)):
        sums[i] -= np.uint16(np.uint16(row[i]) * times)


@kernels.kernel
def _raise(sums: NDArray[np.uint16], bounds: NDArray[np.uint16], row: NDArray[np.uint8], times: np.uint16) -> None:
    for i in range(len(row)):
        more = np.uint16(np.uint16(row[i]) * times)
        sums[i] += more
        bounds[i] += more


@kernels.kernel
def _change_rare(
    postings: Postings, terms: Terms, queries: Queries, here: State, w: int, number: int, base: int
) -> None:
    """Update the sums of the rare terms for a query, and the bounds of the blocks that gain."""
    passages = postings.passages
    codes, escaped, _ = postings.codes
    sums_N, rare_B, common_B, bound_B = here.sums_N, here.rare_B, here.common_B, here.bound_B
    for i in range(queries.change_ends_W[w], queries.change_ends_W[w + 1]):
        term, times = queries.changed[i], np.int32(queries.changes[i])
        if terms.words_T[term] >= 0:
            continue
        points_C = terms.points_TC[term]
        begin, end = terms.slices_TS[term, number], terms.slices_TS[term, number + 1]
        if times < 0:
            for posting in range(begin, end):
                sums_N[passages[posting] - base] += points_C[codes[posting]] * times
        else:
            for posting in range(begin, end):
                passage = passages[posting] - base
                total = sums_N[passage] + points_C[codes[posting]] * times
                sums_N[passage] = total
                block = passage >> BLOCK_BITS
                bound = rounded_up(total)
                rare_B[block] = max(rare_B[block], bound)
                bound_B[block] = max(bound_B[block], bound + common_B[block])
        if len(escaped):
            _change_escaped(postings, here, base, begin, end, points_C, times)


@kernels.kernel
def _change_escaped(
    postings: Postings, here: State, base: int, begin: int, end: int, points_C: NDArray[np.int32], times: int
) -> None:
    """Do the same for the escaped postings of a range, whose code added nothing."""
    _, escaped, escaped_rows = postings.codes
    for i in range(np.searchsorted(escaped, begin), np.searchsorted(escaped, end)):
        passage = postings.passages[escaped[i]] - base
        total = here.sums_N[passage] + points_C[escaped_rows[i]] * times
        here.sums_N[passage] = total
        if times > 0:
            block, bound = passage >> BLOCK_BITS, rounded_up(np.int64(total))
            here.rare_B[block] = max(here.rare_B[block], bound)
            here.bound_B[block] = max(here.bound_B[block], bound + here.common_B[block])


@kernels.kernel
def _common_terms(terms: Terms, queries: Queries, w: int, room: CommonQueryTerms) -> int:
    """Write the common terms of a query into `room`; returns how many there are.

    Slices of that length would spare the callers a count, but make a stream 3% slower.
    """
    count = 0
    for i in range(queries.ends_W[w], queries.ends_W[w + 1]):
        term = queries.terms[i]
        if terms.words_T[term] >= 0:
            room.terms[count] = term
            room.words[count] = terms.words_T[term]
            room.times[count] = queries.counts[i]
            count += 1
    return count


@kernels.kernel
def _collect(
    postings: Postings,
    terms: Terms,
    here: State,
    common: CommonQueryTerms,
    count: int,
    allowed: Allowed,
    base: int,
    heap: NDArray[np.int64],
    found: int,
    floors_K: NDArray[np.int64],
    lanes: NDArray[np.int32],
) -> int:
    """Offer the passages of a partition that may be among the best; returns how many the heap then holds."""
    sums_N, rare_B, common_B, bound_B = here.sums_N, here.rare_B, here.common_B, here.bound_B
    bits_B, open_W = allowed.mask
    # A passage must score at least 1 to share a term with the query.
    threshold = max(_floor(postings, terms, here, common, count, allowed, base, floors_K, heap, found), np.int64(1))
    for begin in range(0, len(bound_B), kernels.MARKS):
        marks = kernels.tighten(bound_B, rare_B, common_B, begin, np.uint16(rounded_up(threshold)))
        if len(bits_B):
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
                postings, common, count, bits_B, (base >> BLOCK_BITS) + block, sums_N, first, lanes, threshold
            )
            while candidates:
                lane = kernels.lowest_bit(candidates)
                candidates &= candidates - np.uint64(1)
                passage = base + first + lane
                score = sums_N[first + lane] + common_score(postings, terms, common, count, passage)
                lanes[lane] = rounded_up(score)
                if score >= threshold and not is_in(allowed.listed, passage):
                    found = kernels.offer(heap, found, score, passage)
                    threshold = max(threshold, kernels.worst_score(heap, found) + 1)
            bound_B[block] = kernels.highest(lanes, 0)
    _keep(here, heap, found, base)
    return found


@kernels.kernel
def _floor(
    postings: Postings,
    terms: Terms,
    here: State,
    common: CommonQueryTerms,
    count: int,
    allowed: Allowed,
    base: int,
    floors_K: NDArray[np.int64],
    heap: NDArray[np.int64],
    found: int,
) -> int:
    """A lower bound of the k-th best score, from the partitions before and the kept passages of this one."""
    for i in range(found):
        floors_K[i] = heap[i]
    for i in range(here.kept_P[0]):
        passage = here.kept_PK[i]
        if may_be_found(allowed, passage):
            score = here.sums_N[passage - base] + common_score(postings, terms, common, count, passage)
            found = kernels.offer(floors_K, found, score, passage)
    return kernels.worst_score(floors_K, found)


@kernels.kernel
def _keep(here: State, heap: NDArray[np.int64], found: int, base: int) -> None:
    """Keep this partition's passages among the best so far for the next query."""
    count = 0
    for i in range(found):
        passage = kernels.passage_of(heap[i])
        if passage >= base:
            here.kept_PK[count] = passage
            count += 1
    here.kept_P[0] = count
