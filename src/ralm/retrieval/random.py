"""Random passages: the control that says how much of a gain is due to retrieval and not to any text in front."""

from collections.abc import Sequence

import numpy as np

from ralm.records import NO_PASSAGE, Hits, IntArray


class RandomRetriever:
    """Passages drawn uniformly, without repetition within a query; the same draws for the same seed and queries.

    `passages`: how many there are, or the numbers (int64) of those to draw from.
    """

    def __init__(self, passages: int | IntArray, seed: int = 0) -> None:
        self._passages = np.arange(passages) if isinstance(passages, int) else passages
        self._seed = seed

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """`k` random passages for each query, all with score 0."""
        generator = np.random.default_rng(self._seed)
        numbers_QK = np.full((len(queries), k), NO_PASSAGE, dtype=np.int64)
        drawn = min(k, len(self._passages))
        for row in numbers_QK:
            row[:drawn] = generator.choice(self._passages, size=drawn, replace=False)
        return Hits(numbers_QK=numbers_QK, scores_QK=np.zeros((len(queries), k), dtype=np.float32))
