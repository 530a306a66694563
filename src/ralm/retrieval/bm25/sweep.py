"""The kernel of stream search: consecutive queries over one partition of the passages, each worked out from the last.

For every passage it keeps the sum of what the query's rare terms add, in bound units (16 bits): going from a query to
the next it adds the postings of terms that came and subtracts those of terms that left. For every range of 8 passages
it keeps two bounds: the highest such sum plus the most that the common terms can add there, and what an exact look
found the last time plus all that came since. Only ranges whose lower bound reaches the k-th best score so far are
looked at, and in them only passages whose bound still does after the common terms' postings are scored.

The threshold is high from the start: the best passages of the query before are scored first.

Letters of shapes: W queries, T terms known to the stream, C rows of the code table, D common terms, R ranges of the
partition, S slices of postings by partition, K hits a query, H passages kept from query to query.
"""

from typing import Any, Final, NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.common_terms import BLOCK, RANGE, UNIT_BITS

_CROWDED: Final = 6
"""Where more than one in so many ranges would be looked at, all postings are added up instead."""
_LANES: Final = 64


class Postings(NamedTuple):
    """The index: passage numbers (int32) and codes of all postings."""

    passages: NDArray[np.int32]
    codes: NDArray[np.unsignedinteger[Any]]


class Terms(NamedTuple):
    """The terms that a stream knows; `common_T` is the place among the common terms, -1 for a rare one."""

    slices_TS: NDArray[np.int64]
    points_TC: NDArray[np.int32]
    bounds_TC: NDArray[np.uint16]
    common_T: NDArray[np.int64]
    highest_DR: NDArray[np.uint8]
    skips_DB: NDArray[np.uint32]


class Queries(NamedTuple):
    """Queries as terms with counts, rare ones first; and what changes from each query to the next, removals first."""

    ends_W: NDArray[np.int64]
    terms: NDArray[np.int64]
    counts: NDArray[np.int64]
    change_ends_W: NDArray[np.int64]
    changed: NDArray[np.int64]
    changes: NDArray[np.int64]


class State(NamedTuple):
    """What is carried from query to query, for one partition."""

    sums: NDArray[np.uint16]
    rare_R: NDArray[np.uint16]
    common_R: NDArray[np.uint16]
    bound_R: NDArray[np.uint16]
    kept_H: NDArray[np.int64]
    kept_scores_H: NDArray[np.int32]
    kept: NDArray[np.int64]


class Scratch(NamedTuple):
    """Room to work in, for one thread."""

    flagged: NDArray[np.int64]
    bounds: NDArray[np.int64]
    common: NDArray[np.int64]
    scores: NDArray[np.int32]
    fresh_H: NDArray[np.int64]
    fresh_scores_H: NDArray[np.int32]


@nb.njit(cache=True, nogil=True)
def sweep(
    postings: Postings,
    terms: Terms,
    queries: Queries,
    state: State,
    scratch: Scratch,
    partition: int,
    base: int,
    numbers_WK: NDArray[np.int64],
    scores_WK: NDArray[np.int32],
    found_W: NDArray[np.int64],
) -> None:
    """Add this partition's passages, which begin at number `base`, to the best of each query."""
    most = numbers_WK.shape[1]
    for w in range(len(found_W)):
        first, last = queries.change_ends_W[w], queries.change_ends_W[w + 1]
        for i in range(first, last):
            _change(postings, terms, state, queries.changed[i], queries.changes[i], partition, base)
        found = found_W[w]
        fresh = _score_kept(postings, terms, queries, state, scratch, first, last, partition)
        for i in range(fresh):
            found = push(numbers_WK[w], scores_WK[w], found, scratch.fresh_H[i], scratch.fresh_scores_H[i])
        threshold = scores_WK[w, most - 1] if found == most else np.int32(1)
        flagged = _flag(state, _units(threshold), scratch.flagged)
        if flagged * _CROWDED > len(state.bound_R):
            found, fresh = _scan(
                postings, terms, queries, state, scratch, w, partition, base, numbers_WK[w], scores_WK[w], found, fresh
            )
        else:
            found, fresh = _look(
                postings, terms, queries, state, scratch, w, flagged, partition, base, numbers_WK[w], scores_WK[w],
                found, fresh,
            )  # fmt: skip
        found_W[w] = found
        state.kept[0] = fresh
        state.kept_H[:fresh] = scratch.fresh_H[:fresh]
        state.kept_scores_H[:fresh] = scratch.fresh_scores_H[:fresh]


@nb.njit(cache=True, nogil=True, inline="always")
def _units(score: int) -> Any:
    """A score in bound units, rounded up."""
    return (np.int64(score) + ((1 << UNIT_BITS) - 1)) >> UNIT_BITS


@nb.njit(cache=True, nogil=True)
def push(numbers_K: NDArray[np.int64], scores_K: NDArray[np.int32], found: int, number: int, score: int) -> int:
    """Put a passage in its place among the best, equal scores by lower number; how many there are then."""
    most = len(numbers_K)
    if found == most:
        last = most - 1
        if score < scores_K[last] or (score == scores_K[last] and number > numbers_K[last]):
            return found
        place = last
    else:
        place = found
        found += 1
    while place > 0 and (
        scores_K[place - 1] < score or (scores_K[place - 1] == score and numbers_K[place - 1] > number)
    ):
        scores_K[place] = scores_K[place - 1]
        numbers_K[place] = numbers_K[place - 1]
        place -= 1
    scores_K[place] = score
    numbers_K[place] = number
    return found


@nb.njit(cache=True, nogil=True)
def _change(postings: Postings, terms: Terms, state: State, term: int, change: int, partition: int, base: int) -> None:
    """Bring the bounds up to date with a term that stands more often in the query, or less often."""
    common = terms.common_T[term]
    if common >= 0:
        first = base // RANGE
        highest_R = terms.highest_DR[common, first : first + len(state.common_R)]
        if change > 0:
            more = np.uint16(change)
            for r in range(len(highest_R)):
                added = np.uint16(highest_R[r] * more)
                state.common_R[r] += added
                state.bound_R[r] = _saturating(state.bound_R[r], added)
        else:
            less = np.uint16(-change)
            for r in range(len(highest_R)):
                state.common_R[r] -= np.uint16(highest_R[r] * less)
        return
    begin, end = terms.slices_TS[term, partition], terms.slices_TS[term, partition + 1]
    passages, codes = postings.passages[begin:end], postings.codes[begin:end]
    bounds_C = terms.bounds_TC[term]
    sums, rare_R, bound_R = state.sums, state.rare_R, state.bound_R
    if change < 0:
        less = np.uint16(-change)
        for i in range(len(passages)):
            sums[passages[i] - base] -= np.uint16(bounds_C[codes[i]] * less)
    else:
        more = np.uint16(change)
        for i in range(len(passages)):
            passage = passages[i] - base
            added = np.uint16(bounds_C[codes[i]] * more)
            total = np.uint16(sums[passage] + added)
            sums[passage] = total
            r = passage // RANGE
            rare_R[r] = max(rare_R[r], total)
            bound_R[r] = _saturating(bound_R[r], added)


@nb.njit(cache=True, nogil=True, inline="always")
def _saturating(bound: int, added: int) -> Any:
    """The sum in 16 bits, or their highest where it does not fit: many passages of a range may come at once."""
    total = np.uint16(bound + added)
    return total if total >= bound else np.uint16(65_535)


@nb.njit(cache=True, nogil=True)
def _score_kept(
    postings: Postings,
    terms: Terms,
    queries: Queries,
    state: State,
    scratch: Scratch,
    first: int,
    last: int,
    partition: int,
) -> int:
    """The kept passages by their scores for this query, from those for the last; how many have any left."""
    kept = state.kept[0]
    for i in range(first, last):
        term, change = queries.changed[i], queries.changes[i]
        for h in range(kept):
            posting = _find(postings, terms, term, state.kept_H[h], partition)
            if posting >= 0:
                state.kept_scores_H[h] += np.int32(terms.points_TC[term, postings.codes[posting]] * change)
    fresh = 0
    for h in range(kept):
        if state.kept_scores_H[h] > 0:
            fresh = push(scratch.fresh_H, scratch.fresh_scores_H, fresh, state.kept_H[h], state.kept_scores_H[h])
    return fresh


@nb.njit(cache=True, nogil=True)
def _find(postings: Postings, terms: Terms, term: int, number: int, partition: int) -> int:
    """The posting of a passage in a term's list, or -1."""
    low, high = terms.slices_TS[term, partition], terms.slices_TS[term, partition + 1]
    common = terms.common_T[term]
    if common >= 0:
        begin = terms.slices_TS[term, 0]
        high = begin + np.int64(terms.skips_DB[common, number // BLOCK + 1])
        low = begin + np.int64(terms.skips_DB[common, number // BLOCK])
    end = high
    while low < high:
        middle = (low + high) >> 1
        if postings.passages[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < end and postings.passages[low] == number else -1


@nb.njit(cache=True, nogil=True)
def _flag(state: State, threshold: int, flagged: NDArray[np.int64]) -> int:
    """The ranges whose bound reaches the threshold, by number; how many there are."""
    bound_R = state.bound_R
    _tighten(state.rare_R, state.common_R, bound_R)
    least = np.uint16(min(threshold, 65_535))
    count = 0
    for begin in range(0, len(bound_R), _LANES):
        end = min(begin + _LANES, len(bound_R))
        reached = np.uint16(0)
        for r in range(begin, end):
            reached |= np.uint16(bound_R[r] >= least)
        if reached:
            for r in range(begin, end):
                if bound_R[r] >= least:
                    flagged[count] = r
                    count += 1
    return count


@nb.njit(cache=True, nogil=True)
def _tighten(rare_R: NDArray[np.uint16], common_R: NDArray[np.uint16], bound_R: NDArray[np.uint16]) -> None:
    """The lower of the two bounds of every range; a loop of its own, so that it becomes vector instructions."""
    for r in range(len(bound_R)):
        bound = np.uint16(rare_R[r] + common_R[r])
        bound_R[r] = bound if bound < bound_R[r] else bound_R[r]


@nb.njit(cache=True, nogil=True)
def _look(
    postings: Postings,
    terms: Terms,
    queries: Queries,
    state: State,
    scratch: Scratch,
    w: int,
    flagged: int,
    partition: int,
    base: int,
    numbers_K: NDArray[np.int64],
    scores_K: NDArray[np.int32],
    found: int,
    fresh: int,
) -> tuple[int, int]:
    """Look into the flagged ranges; how many passages are among the best then, and among those that are kept."""
    most = len(numbers_K)
    threshold = scores_K[most - 1] if found == most else np.int32(1)
    least = _units(threshold)
    passages, codes, bounds = postings.passages, postings.codes, scratch.bounds
    bounds_TC, highest_DR, skips_DB = terms.bounds_TC, terms.highest_DR, terms.skips_DB
    sums, rare_R, common_R, bound_R = state.sums, state.rare_R, state.common_R, state.bound_R
    ranges = scratch.flagged
    common = scratch.common
    count = 0
    for i in range(queries.ends_W[w], queries.ends_W[w + 1]):
        term = queries.terms[i]
        if terms.common_T[term] >= 0:
            common[4 * count], common[4 * count + 1] = term, terms.common_T[term]
            common[4 * count + 2], common[4 * count + 3] = queries.counts[i], terms.slices_TS[term, 0]
            count += 1
    for f in range(flagged):
        r = ranges[f]
        if bound_R[r] < least:
            continue
        rare, highest = _bounds_of(
            passages, codes, bounds_TC, highest_DR, skips_DB, common, count, sums[r * RANGE : (r + 1) * RANGE],
            np.int64(common_R[r]), bounds, least, base + r * RANGE,
        )  # fmt: skip
        rare_R[r] = rare
        bound_R[r] = min(np.int64(bound_R[r]), highest)
        if highest < least:
            continue
        for i in range(RANGE):
            number = base + r * RANGE + i
            if bounds[i] >= least and not _is_in(scratch.fresh_H[:fresh], number):
                score = _score(postings, terms, queries, w, number, partition)
                if score >= threshold:
                    found = push(numbers_K, scores_K, found, number, score)
                    fresh = push(scratch.fresh_H, scratch.fresh_scores_H, fresh, number, score)
                    if found == most:
                        threshold = max(threshold, scores_K[most - 1])
                        least = _units(threshold)
    return found, fresh


@nb.njit(cache=True, nogil=True, inline="always")
def _bounds_of(
    postings_passages: NDArray[np.int32],
    postings_codes: NDArray[np.unsignedinteger[Any]],
    bounds_TC: NDArray[np.uint16],
    highest_DR: NDArray[np.uint8],
    skips_DB: NDArray[np.uint32],
    common: NDArray[np.int64],
    count: int,
    sums: NDArray[np.uint16],
    remaining: int,
    bounds: NDArray[np.int64],
    least: int,
    begin: int,
) -> Any:
    """The highest sum of a range's rare terms, and its bound; where that reaches `least`, `bounds` has each passage's.

    What the common terms can add is replaced, term by term, by what they do add, until the threshold is out of reach.
    """
    rare = np.int64(0)
    for i in range(RANGE):
        bounds[i] = sums[i]
        rare = max(rare, bounds[i])
    highest = rare
    for i in range(count):
        if highest + remaining < least:
            break
        term, place, times, start = common[4 * i], common[4 * i + 1], common[4 * i + 2], common[4 * i + 3]
        most = np.int64(highest_DR[place, begin // RANGE]) * times
        if most == 0:
            continue
        remaining -= most
        posting = start + np.int64(skips_DB[place, begin // BLOCK])
        end = start + np.int64(skips_DB[place, begin // BLOCK + 1])
        while posting < end and postings_passages[posting] < begin:
            posting += 1
        while posting < end and postings_passages[posting] < begin + RANGE:
            i_range = postings_passages[posting] - begin
            bounds[i_range] += np.int64(bounds_TC[term, postings_codes[posting]]) * times
            highest = max(highest, bounds[i_range])
            posting += 1
    return rare, highest + remaining


@nb.njit(cache=True, nogil=True)
def _score(postings: Postings, terms: Terms, queries: Queries, w: int, number: int, partition: int) -> Any:
    """The score of a passage for a query."""
    score = np.int64(0)
    for i in range(queries.ends_W[w], queries.ends_W[w + 1]):
        term = queries.terms[i]
        posting = _find(postings, terms, term, number, partition)
        if posting >= 0:
            score += np.int64(terms.points_TC[term, postings.codes[posting]]) * queries.counts[i]
    return score


@nb.njit(cache=True, nogil=True)
def _scan(
    postings: Postings,
    terms: Terms,
    queries: Queries,
    state: State,
    scratch: Scratch,
    w: int,
    partition: int,
    base: int,
    numbers_K: NDArray[np.int64],
    scores_K: NDArray[np.int32],
    found: int,
    fresh: int,
) -> tuple[int, int]:
    """Add up all postings of a query, for one that shares too little with the one before; the bounds are exact then."""
    most = len(numbers_K)
    scores = scratch.scores
    scores[:] = 0
    for i in range(queries.ends_W[w], queries.ends_W[w + 1]):
        term, times = queries.terms[i], np.int32(queries.counts[i])
        points_C = terms.points_TC[term]
        for posting in range(terms.slices_TS[term, partition], terms.slices_TS[term, partition + 1]):
            scores[postings.passages[posting] - base] += points_C[postings.codes[posting]] * times
    for r in range(len(state.bound_R)):
        begin, end = r * RANGE, min((r + 1) * RANGE, len(scores))
        threshold = scores_K[most - 1] if found == most else np.int32(1)
        highest = np.int32(0)
        for i in range(begin, end):
            highest = max(highest, scores[i])
        state.bound_R[r] = _units(highest)
        if highest >= threshold:
            for i in range(begin, end):
                if scores[i] >= threshold and not _is_in(scratch.fresh_H[:fresh], base + i):
                    found = push(numbers_K, scores_K, found, base + i, scores[i])
                    fresh = push(scratch.fresh_H, scratch.fresh_scores_H, fresh, base + i, scores[i])
    return found, fresh


@nb.njit(cache=True, nogil=True)
def _is_in(numbers: NDArray[np.int64], number: int) -> bool:
    """Whether a passage is among these few."""
    known = False
    for i in range(len(numbers)):
        known |= numbers[i] == number
    return known
