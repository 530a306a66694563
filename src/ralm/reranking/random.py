"""Random choice among the candidates: the control for reranking."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from ralm.options import Part, seed_option
from ralm.protocols import Rows
from ralm.records import NO_PASSAGE, Hits, Passages
from ralm.reranking.oracle import CANDIDATES_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomChoice(Part):
    """Choose any of a row's candidates, all equally likely.

    The choice for a row depends only on `seed` and its place in the text. Raises UsageError if a number is out of
    range.
    """

    named: ClassVar = ("reranker", "random")

    candidates: Annotated[int, CANDIDATES_KEY] = 16
    seed: Annotated[int, seed_option()] = 0

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:  # noqa: ARG002
        """Return k hits of each row in random order, all with score 0."""
        hits, strides_Q = hits.first(self.candidates), rows.strides
        found_QK = hits.numbers_QK != NO_PASSAGE
        draws = int(strides_Q.max(initial=-1)) + 1
        first_Q = np.random.default_rng(self.seed).random(draws)[strides_Q] * found_QK.sum(axis=1)
        keys_QK = np.random.default_rng([self.seed, 1]).random((draws, self.candidates))[strides_Q]
        keys_QK = keys_QK[:, : hits.numbers_QK.shape[1]]  # retrievers give fewer columns if no row has more hits
        keys_QK[np.arange(len(hits)), first_Q.astype(np.int64)] = -1  # the same first passage for every k
        keys_QK[~found_QK] = 2
        order_QK = np.argsort(keys_QK, axis=1, kind="stable")[:, :k]
        numbers_QK = np.take_along_axis(hits.numbers_QK, order_QK, axis=1)
        return Hits(numbers_QK, np.zeros(numbers_QK.shape, dtype=np.float32))
