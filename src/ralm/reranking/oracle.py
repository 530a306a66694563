"""The oracle (In-Context RALM, Eq. 5): the passage after which the text to be predicted is most likely.

    i* = argmax over i of  p(y | [d_i; x])                                            Eq. 5

with y the targets of the stride. The other rerankers estimate this choice without y; they share the helpers below. A
random choice is the control.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np

from ralm.options import Option, Part, seed_option
from ralm.protocols import Rows
from ralm.records import NO_PASSAGE, FloatArray, Hits, Passages

CANDIDATES_KEY: Final = Option("Passages to choose from.")
"""The declaration of the key that every reranker has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle(Part):
    """Choose the passage after which the targets are most likely (In-Context RALM, Eq. 5 and Figure 7).

    It is an upper bound for choosing among the candidates, not a method, since it looks at the text to be predicted.
    """

    named: ClassVar = ("reranker", "oracle")
    needs_targets: ClassVar[bool] = True

    candidates: Annotated[int, CANDIDATES_KEY] = 16

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:  # noqa: ARG002
        """Return the k best of each row's hits; their scores are total log-probabilities of the targets."""
        log_probs = rows.target_log_probs(contested(hits))
        return best_hits(hits, [of_targets.sum(dtype=np.float64) for of_targets in log_probs], k)


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


def contested(hits: Hits) -> list[tuple[int, int]]:
    """Return the (row, passage) of every hit of the rows that have more than one."""
    rows = [(row, hits.of(row)) for row in range(len(hits))]
    return [(row, number) for row, pairs in rows if len(pairs) > 1 for number, _ in pairs]


def best_hits(hits: Hits, scores: Sequence[float] | FloatArray, k: int, rank_weight: float = 0.0) -> Hits:
    """Return the k best hits of each row by the scores of the `contested` ones and the rank prior, stably."""
    there_QK = hits.numbers_QK != NO_PASSAGE
    scores_C = np.asarray(scores)
    scores_QK = np.where(there_QK, 0, -np.inf).astype(scores_C.dtype)
    scores_QK[there_QK & (there_QK.sum(axis=1, keepdims=True) > 1)] = scores_C
    scores_QK += rank_prior(rank_weight, there_QK.shape[1])
    order_QK = np.argsort(-scores_QK, axis=1, kind="stable")[:, :k]
    numbers_QK, best_QK = (
        np.take_along_axis(values_QK, order_QK, axis=1) for values_QK in (hits.numbers_QK, scores_QK)
    )
    return Hits(numbers_QK, np.where(numbers_QK == NO_PASSAGE, 0, best_QK).astype(np.float32))


def rank_prior(weight: float, count: int) -> FloatArray:
    """Return -weight * log(rank), which is added to the scores (float32, `count`) of a retriever's hits."""
    return (-weight * np.log(np.arange(1, count + 1))).astype(np.float32)
