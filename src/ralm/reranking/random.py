"""Any of the candidates: the control of reranking."""

import numpy as np

from ralm.records import Hits, IntArray


def drawn(hits: Hits, seed: int) -> IntArray:
    """A passage (int64) of each row, all its hits equally likely; `NO_PASSAGE` for a row without hits."""
    counts_Q = np.array([len(hits.of(row)) for row in range(len(hits))], dtype=np.int64)
    places_Q = np.random.default_rng(seed).integers(np.maximum(counts_Q, 1))
    return hits.numbers_QK[np.arange(len(hits)), places_Q]
