"""The best few of many scored passages, in a heap of keys.

A key is the score, followed by the inverted passage number in its low bits, so the greater of two keys is the better:
the higher score, and for equal scores the lower number. The worst key is at the top.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.errors import CorpusError
from ralm.retrieval.bm25.compiled import kernel

NUMBER_BITS: Final = 31
HIGHEST: Final = (1 << NUMBER_BITS) - 1
"""The highest score and the highest passage number that a key can hold."""
MOST_PASSAGES: Final = HIGHEST + 1
"""The most passages that an index for BM25 can have, those that were removed and not merged away yet included."""


def check_passage_count(passages: int) -> None:
    """Raise CorpusError if an index for BM25 cannot have so many passages."""
    if passages > MOST_PASSAGES:
        raise CorpusError(
            f"an index for BM25 can have at most {MOST_PASSAGES:,} passages, but this one would have {passages:,}, or "
            "more; make several indexes, or longer passages."
        )


@kernel
def offer(heap: NDArray[np.int64], found: int, score: int, passage: int) -> int:
    """Add a passage to the heap if it is among the best; returns how many the heap then holds."""
    key = np.int64(score) << NUMBER_BITS | (HIGHEST - passage)
    if found < len(heap):
        _sift_up(heap, found, key)
        return found + 1
    if key > heap[0]:
        _sift_down(heap, found, key)
    return found


@kernel
def worst(heap: NDArray[np.int64], found: int) -> int:
    """The lowest score in the heap once it is full; until then 0."""
    return int(heap[0] >> NUMBER_BITS) if found == len(heap) else 0


@kernel
def passage_of(key: int) -> int:
    """The passage number of a key."""
    return HIGHEST - (key & HIGHEST)


@kernel
def empty(
    heap: NDArray[np.int64], found: int, numbers: NDArray[np.int64], scores: NDArray[np.float32], unit: float
) -> None:
    """Move the heap's content to the front of `numbers` and `scores`, best first; scores are multiplied by `unit`."""
    for last in range(found - 1, -1, -1):
        key = heap[0]
        _sift_down(heap, last + 1, heap[last])
        numbers[last] = passage_of(key)
        scores[last] = (key >> NUMBER_BITS) * unit


@kernel
def empty_each(
    heaps_QK: NDArray[np.int64],
    found_Q: NDArray[np.int64],
    numbers_QK: NDArray[np.int64],
    scores_QK: NDArray[np.float32],
    unit_Q: NDArray[np.float64],
) -> None:
    """Do this for the heap of each query; the rest of each row is left unchanged."""
    for query in range(len(found_Q)):
        empty(heaps_QK[query], found_Q[query], numbers_QK[query], scores_QK[query], unit_Q[query])


@kernel
def _sift_up(heap: NDArray[np.int64], place: int, key: int) -> None:
    """Add a key at `place` and let it rise to its position."""
    while place > 0 and heap[(place - 1) // 2] > key:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = key


@kernel
def _sift_down(heap: NDArray[np.int64], size: int, key: int) -> None:
    """Replace the top with a key and let it sink to its position among the first `size`."""
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = key
