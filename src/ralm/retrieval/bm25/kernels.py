"""Pieces of the kernels that search BM25: how they are compiled, fixed-point scores, and the heap of the best passages.

Scores are integers, which are summed exactly in any order, so every way of searching gives the same hits. The heap
holds keys: the score, followed by the inverted passage number in the low bits. The greater of two keys is the better:
the higher score, and for equal scores the lower number. The worst key is at the top.

Letters of shapes: Q queries, K hits per query, C rows of the code table.
"""

import os
from collections.abc import Callable
from functools import cache, update_wrapper
from threading import RLock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ralm.errors import CorpusError
from ralm.records import NO_PASSAGE

FRACTION_BITS: Final = 20
"""Binary places of a fixed-point score: finer than Lucene's float32 for any score above 1."""
UNIT: Final = 2.0**-FRACTION_BITS
"""The score of one point, unless a query is so long that its scores would overflow."""
NUMBER_BITS: Final = 31
MAX_SCORE: Final = (1 << NUMBER_BITS) - 1
"""The highest score and the highest passage number that a key can hold."""
MAX_PASSAGES: Final = MAX_SCORE + 1
"""The most passages that an index for BM25 can have."""
LANES: Final = 16
"""Passages that are bounded at a time."""
MARKS: Final = 64
"""Blocks that are compared with the threshold at a time."""
_COMPILING: Final = RLock()


class Kernel:
    """A function that is compiled on its first call, to code that does not hold Python's lock.

    numba is loaded then, so that commands which do not search start without it. The code is cached on disk. If neither
    the installation nor the user's cache folder can be written, every process compiles it again.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns."""
        return (self._compiled or self.compiled)(*arguments)

    @property
    def compiled(self) -> Callable[..., Any]:
        """Return the function as numba compiles it."""
        with _COMPILING:
            if self._compiled is None:
                nb = load_compiler()
                try:
                    self._compiled = nb.njit(cache=True, nogil=True)(self._function)
                except RuntimeError as error:
                    if "cannot cache" not in str(error):
                        raise
                    self._compiled = nb.njit(nogil=True)(self._function)
            return self._compiled


@cache
def load_compiler() -> Any:
    """Load numba, which lets kernels call each other from now on; a server does so before its first request."""
    # else numba, if colorama is installed, replaces sys.stdout and sys.stderr while a thread compiles
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    import numba as nb
    from numba.extending import typeof_impl

    typeof_impl.register(Kernel, lambda kernel, _: nb.types.Dispatcher(kernel.compiled))
    return nb


kernel: Final[Callable[[Callable[..., Any]], Any]] = Kernel


def __getattr__(name: str) -> Any:
    """Return a vector instruction, which needs numba as soon as it is imported."""
    if name.startswith("_"):
        raise AttributeError(name)
    from ralm.retrieval.bm25 import instructions

    return getattr(instructions, name)


@kernel
def fill_points(weight: float, impact_C: NDArray[np.float64], unit: float, points_C: NDArray[np.int32]) -> None:
    """Write what one occurrence of a query term adds, by code: at least 1, since a passage with the term is a hit."""
    for code in range(len(impact_C)):  # numba takes seconds to compile this as an expression of arrays
        points_C[code] = max(np.rint(weight * impact_C[code] / unit), 1.0) if impact_C[code] > 0 else 0


def check_passage_count(passages: int) -> None:
    """Raise CorpusError if an index for BM25 cannot have so many passages."""
    if passages > MAX_PASSAGES:
        raise CorpusError(
            f"an index for BM25 can have at most {MAX_PASSAGES:,} passages, but this one would have {passages:,}, or "
            "more; make several indexes, or longer passages."
        )


@kernel
def offer(heap: NDArray[np.int64], filled: int, score: int, passage: int) -> int:
    """Add a passage to the heap if it is among the best; return how many the heap then holds."""
    key = np.int64(score) << NUMBER_BITS | (MAX_SCORE - passage)
    if filled < len(heap):
        _sift_up(heap, filled, key)
        return filled + 1
    if key > heap[0]:
        _sift_down(heap, key)
    return filled


@kernel
def worst_score(heap: NDArray[np.int64], filled: int) -> int:
    """Return the lowest score in the heap if it is full, else 0."""
    return int(heap[0] >> NUMBER_BITS) if filled == len(heap) else 0


@kernel
def passage_of(key: int) -> int:
    """Return the passage number of a key."""
    return MAX_SCORE - (key & MAX_SCORE)


@kernel
def drained(heaps_QK: NDArray[np.int64], unit_Q: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the passages and scores of the keys in heaps, best first; numpy takes longer than a short query."""
    numbers_QK, scores_QK = np.full_like(heaps_QK, NO_PASSAGE), np.zeros(heaps_QK.shape, np.float32)
    for query in range(len(heaps_QK)):
        heap = heaps_QK[query]
        for last in range(np.count_nonzero(heap) - 1, -1, -1):
            numbers_QK[query, last] = passage_of(heap[0])
            scores_QK[query, last] = (heap[0] >> NUMBER_BITS) * unit_Q[query]
            _sift_down(heap[: max(last, 1)], heap[last])
    return numbers_QK, scores_QK


@kernel
def _sift_up(heap: NDArray[np.int64], place: int, key: int) -> None:
    """Add a key at `place` and let it rise to its position."""
    while place > 0 and heap[(place - 1) // 2] > key:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = key


@kernel
def _sift_down(heap: NDArray[np.int64], key: int) -> None:
    """Replace the top of a full heap with a key and let it sink to its position."""
    place = 0
    while 2 * place + 1 < len(heap):
        child = 2 * place + 1
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = key
