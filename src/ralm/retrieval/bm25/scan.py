"""The kernel of a scan: reads every posting of a query's terms once, partition by partition of the passages.

It keeps nothing between queries, so it serves any queries; it is the best choice for a few.

Letters of shapes: Q queries, K hits per query, T distinct terms of a query, C rows of the code table.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.best import HIGHEST, empty, offer, worst
from ralm.retrieval.bm25.codes import PostingCodes
from ralm.retrieval.bm25.compiled import kernel
from ralm.retrieval.bm25.forbidden import Forbidden, forbidden_to
from ralm.retrieval.bm25.points import UNIT, fill_points

_BLOCK: Final = 512


@kernel
def scan(
    ends: NDArray[np.int64],
    begins: NDArray[np.int64],
    stops: NDArray[np.int64],
    weights: NDArray[np.float64],
    counts: NDArray[np.int64],
    impact_C: NDArray[np.float64],
    passages: NDArray[np.int32],
    codes: PostingCodes,
    count: int,
    partition: int,
    forbidden: Forbidden,
    numbers_QK: NDArray[np.int64],
    scores_QK: NDArray[np.float32],
) -> None:
    """Fill in each query's best passages, best first; the rest of each row is left unchanged.

    The terms of query q, with their postings, weights and counts, are those from `ends[q]` to `ends[q + 1]`.
    """
    sums = np.zeros(partition, np.int32)
    heap = np.zeros(numbers_QK.shape[1], np.int64)
    for query in range(len(ends) - 1):
        first, last = ends[query], ends[query + 1]
        points_TC, unit = _points(weights[first:last], counts[first:last], impact_C)
        at = begins[first:last].copy()
        found = 0
        for base in range(0, count, partition):
            size = min(partition, count - base)
            sums[:size] = 0
            for term in range(last - first):
                at[term] = _add(passages, codes, at[term], stops[first + term], points_TC[term], base, size, sums)
            _strike_out(forbidden, query, base, sums[:size])
            found = _collect(sums[:size], base, heap, found)
        empty(heap, found, numbers_QK[query], scores_QK[query], unit)


@kernel
def _points(
    weights: NDArray[np.float64], counts: NDArray[np.int64], impact_C: NDArray[np.float64]
) -> tuple[NDArray[np.int32], float]:
    """What all occurrences of each term in the query add, for each code (int32), and the unit.

    If a query is so long that its scores would not fit into 31 bits, the unit grows by powers of two.
    """
    unit = UNIT
    while unit < 1 and (weights * counts).sum() / unit + counts.sum() >= HIGHEST:
        unit *= 2
    points_TC = np.empty((len(weights), len(impact_C)), np.int32)
    for term in range(len(weights)):
        fill_points(weights[term], impact_C, unit, points_TC[term])
        points_TC[term] *= np.int32(counts[term])
    return points_TC, unit


@kernel
def _add(
    passages: NDArray[np.int32],
    codes: PostingCodes,
    posting: int,
    stop: int,
    points_C: NDArray[np.int32],
    base: int,
    size: int,
    sums: NDArray[np.int32],
) -> int:
    """Add a term's postings in a partition to the sums; returns the first posting beyond the partition."""
    rows, escaped, escaped_rows = codes
    begin = posting
    while posting < stop and passages[posting] < base + size:
        sums[passages[posting] - base] += points_C[rows[posting]]
        posting += 1
    if len(escaped):
        for i in range(np.searchsorted(escaped, begin), np.searchsorted(escaped, posting)):
            sums[passages[escaped[i]] - base] += points_C[escaped_rows[i]]
    return posting


@kernel
def _strike_out(forbidden: Forbidden, query: int, base: int, sums: NDArray[np.int32]) -> None:
    """Set the scores of the passages that a query may not find to 0."""
    listed = forbidden_to(forbidden, query)
    for place in range(np.searchsorted(listed, base), np.searchsorted(listed, base + len(sums))):
        sums[listed[place] - base] = 0


@kernel
def _collect(sums: NDArray[np.int32], base: int, heap: NDArray[np.int64], found: int) -> int:
    """Offer the passages of a partition that may be among the best; returns how many the heap then holds.

    Later passages have higher numbers, so they must score more than the worst.
    """
    least = worst(heap, found)
    for block in range(0, len(sums), _BLOCK):
        stop = min(block + _BLOCK, len(sums))
        highest = np.int32(0)
        for i in range(block, stop):
            highest = max(highest, sums[i])
        if highest <= least:
            continue
        for i in range(block, stop):
            if sums[i] > least:
                found = offer(heap, found, sums[i], base + i)
                least = worst(heap, found)
    return found
