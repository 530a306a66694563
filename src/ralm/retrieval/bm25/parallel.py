"""Streams on several cores: each takes a run of consecutive queries, and then helps the one with most left.

Streams are fastest on consecutive queries, so runs are long. Texts differ in cost, so runs are not fixed.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.forbidden import Forbidden
from ralm.retrieval.bm25.stream import BATCH, Collection, Stream


def search_streams(
    collection: Collection,
    queries: Sequence[Sequence[int]],
    forbidden: Forbidden,
    numbers_QK: NDArray[np.int64],
    scores_QK: NDArray[Any],
    workers: int,
) -> None:
    """Fill in the hits of queries (term numbers), which the collection must bear, with this many threads."""
    runs = Runs(len(queries), workers)

    def serve(worker: int) -> None:
        stream = Stream(collection, numbers_QK.shape[1])
        while some := runs.take(worker):
            part = slice(some.start, some.stop)
            numbers_QK[part], scores_QK[part] = stream.search(
                queries[part], forbidden.some(some.start, some.stop), scores_QK.dtype
            )

    if workers == 1:
        serve(0)
    else:
        with ThreadPoolExecutor(max_workers=workers) as pool:
            list(pool.map(serve, range(workers)))


class Runs:
    """The work left for each of some workers: one run each of the numbers below `count`."""

    def __init__(self, count: int, workers: int, step: int = BATCH) -> None:
        borders = [count * worker // workers for worker in range(workers + 1)]
        self._left = [range(begin, end) for begin, end in pairwise(borders)]
        self._step = step
        self._lock = Lock()

    def take(self, worker: int) -> range:
        """The next piece of a worker's own run, or of the second half of the longest run; empty when all is done."""
        with self._lock:
            if not self._left[worker]:
                longest = max(range(len(self._left)), key=lambda other: len(self._left[other]))
                left = self._left[longest]
                keeps = len(left) // 2 if len(left) > self._step else 0
                self._left[longest], self._left[worker] = left[:keeps], left[keeps:]
            own = self._left[worker]
            self._left[worker] = own[self._step :]
            return own[: self._step]
