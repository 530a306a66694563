"""Random passages: the control that says how much of a gain is due to retrieval and not to any text in front."""

from collections.abc import Sequence

import numpy as np

from ralm.records import NO_PASSAGE, Hits, IntArray


class RandomRetriever:
    """Passages drawn uniformly, without repetition within a query; the same draws for the same seed and number of
    queries, and the first of them whatever `k`."""

    def __init__(self, passages: int, seed: int = 0) -> None:
        self._passages = passages
        self._seed = seed

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """`k` random passages for each query, all with score 0."""
        generator = np.random.default_rng(self._seed)
        numbers_QK = np.full((len(queries), k), NO_PASSAGE, dtype=np.int64)
        for column in range(min(k, self._passages)):
            numbers_QK[:, column] = self._drawn(generator, numbers_QK[:, :column])
        return Hits(numbers_QK=numbers_QK, scores_QK=np.zeros((len(queries), k), dtype=np.float32))

    def _drawn(self, generator: np.random.Generator, before_QK: IntArray) -> IntArray:
        """A passage for each query that is none of those drawn before: the n-th, by number, of those that are left."""
        passages_Q = generator.integers(self._passages - before_QK.shape[1], size=len(before_QK))
        for drawn_Q in np.sort(before_QK, axis=1).T:
            passages_Q += passages_Q >= drawn_Q
        return passages_Q
