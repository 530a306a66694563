"""Any of the candidates: the control of reranking."""

import numpy as np

from ralm.records import NO_PASSAGE, Hits, IntArray


def drawn(hits: Hits, seed: int) -> IntArray:
    """A passage (int64) of each row, all its hits equally likely; `NO_PASSAGE` for a row without hits.

    What a row draws follows from the seed and its place alone.
    """
    counts_Q = np.count_nonzero(hits.numbers_QK != NO_PASSAGE, axis=1)
    places_Q = (np.random.default_rng(seed).random(len(hits)) * counts_Q).astype(np.int64)
    return hits.numbers_QK[np.arange(len(hits)), places_Q]
