"""Random passages: the control that says how much of a gain is due to retrieval and not to any text in front."""

from collections.abc import Sequence

import numpy as np

from ralm.bounds import check_seed
from ralm.records import NO_PASSAGE, Hits, IntArray


class RandomRetriever:
    """Passages drawn uniformly, without repetition within a query; the same draws for the same seed and number of
    queries, and the first of them whatever `k`.


    `passages`: how many there are, or the numbers (int64) of those to draw from.
    """

    def __init__(self, passages: int | IntArray, seed: int = 0) -> None:
        self._passages = np.arange(passages) if isinstance(passages, int) else passages
        check_seed("--seed", seed)
        self._seed = seed

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """`k` random passages for each query, all with score 0."""
        generator = np.random.default_rng(self._seed)
        numbers_QK = np.full((len(queries), k), NO_PASSAGE, dtype=np.int64)
        count = len(self._passages)
        places_QK = np.zeros((len(queries), min(k, count)), dtype=np.int64)
        for column in range(places_QK.shape[1]):
            places_QK[:, column] = _drawn(generator, count, places_QK[:, :column])
        numbers_QK[:, : places_QK.shape[1]] = self._passages[places_QK]
        return Hits(numbers_QK=numbers_QK, scores_QK=np.zeros((len(queries), k), dtype=np.float32))


def _drawn(generator: np.random.Generator, count: int, before_QK: IntArray) -> IntArray:
    """A place below `count` for each query that is none of those drawn before: the n-th of those that are left."""
    places_Q = generator.integers(count - before_QK.shape[1], size=len(before_QK))
    for drawn_Q in np.sort(before_QK, axis=1).T:
        places_Q += places_Q >= drawn_Q
    return places_Q
