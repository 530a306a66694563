"""The best few of many scored passages, in a heap of keys.

A key is the score, and below it the passage number turned round, so that of two keys the greater is the better: the
higher score, and of equal scores the lower number. The worst key stands on top.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.compiled import kernel

NUMBER_BITS: Final = 31
HIGHEST: Final = (1 << NUMBER_BITS) - 1
"""The highest score and the highest passage number that a key can hold."""


@kernel
def offer(heap: NDArray[np.int64], found: int, score: int, passage: int) -> int:
    """Put a passage among the best where it belongs there; how many the heap then holds."""
    key = np.int64(score) << NUMBER_BITS | (HIGHEST - passage)
    if found < len(heap):
        _sift_up(heap, found, key)
        return found + 1
    if key > heap[0]:
        _sift_down(heap, found, key)
    return found


@kernel
def worst(heap: NDArray[np.int64], found: int) -> int:
    """The least score among the best once the heap is full; until then 0."""
    return int(heap[0] >> NUMBER_BITS) if found == len(heap) else 0


@kernel
def passage_of(key: int) -> int:
    """The passage number of a key."""
    return HIGHEST - (key & HIGHEST)


@kernel
def empty(
    heap: NDArray[np.int64], found: int, numbers: NDArray[np.int64], scores: NDArray[np.float32], unit: float
) -> None:
    """Move what the heap holds to the front of `numbers` and `scores`, the best first; a score is in `unit`."""
    for last in range(found - 1, -1, -1):
        key = heap[0]
        _sift_down(heap, last + 1, heap[last])
        numbers[last] = passage_of(key)
        scores[last] = (key >> NUMBER_BITS) * unit


@kernel
def _sift_up(heap: NDArray[np.int64], place: int, key: int) -> None:
    """Let a key that is added at `place` rise to where it belongs."""
    while place > 0 and heap[(place - 1) // 2] > key:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = key


@kernel
def _sift_down(heap: NDArray[np.int64], size: int, key: int) -> None:
    """Put a key in the place of the top and let it sink to where it belongs among the first `size`."""
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
