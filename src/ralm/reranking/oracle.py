"""The oracle (In-Context RALM, Eq. 5): the passage after which the text to be predicted is most likely.

    i* = argmax over i of  p(y | [d_i; x])                                            Eq. 5

with y the targets of the stride. The other rerankers estimate this choice without y; they share the helpers below.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np
from pydantic import JsonValue

from ralm.options import Option, check_options
from ralm.protocols import Rows
from ralm.records import DoubleArray, FloatArray, Hits, Passages

CANDIDATES_KEY: Final = Option("Passages to choose from.")
"""The declaration of the key that every reranker has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Chooses the passage after which the targets are most likely (In-Context RALM, Eq. 5 and Figure 7).

    It is an upper bound for choosing among the candidates, not a method, since it looks at the text to be predicted.
    Raises UsageError if `candidates` is below 1.
    """

    needs_targets: ClassVar[bool] = True

    candidates: Annotated[int, CANDIDATES_KEY] = 16

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def config(self) -> dict[str, JsonValue]:
        """The options."""
        return {"reranker": "oracle", "candidates": self.candidates}

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:  # noqa: ARG002
        """The k best of each row's hits; their scores are total log-probabilities of the targets.

        Raises UsageError during generation, when the targets are not known.
        """
        candidates = contested(hits)
        return most_likely(hits, candidates, rows.target_log_probs(candidates), k)


def contested(hits: Hits) -> list[tuple[int, int]]:
    """The (row, passage) of every hit of the rows that have more than one."""
    found = [(row, hits.of(row)) for row in range(len(hits))]
    return [(row, number) for row, own in found if len(own) > 1 for number, _ in own]


def most_likely(hits: Hits, candidates: Sequence[tuple[int, int]], log_probs: Sequence[FloatArray], k: int) -> Hits:
    """The k best hits of each row by total log-probability, in float64; the first on a tie. `log_probs` are those of
    the contested `candidates`; a row with a single hit keeps it with score 0."""
    totals: dict[int, list[float]] = {}
    for (row, _), scored in zip(candidates, log_probs, strict=True):
        totals.setdefault(row, []).append(float(scored.sum(dtype=np.float64)))
    return best_hits(hits, [np.array(totals.get(row, [0.0] * len(hits.of(row)))) for row in range(len(hits))], k)


def best_hits(hits: Hits, scores: Sequence[FloatArray | DoubleArray], k: int) -> Hits:
    """The k hits of each row with the highest scores; the first on a tie."""
    chosen = []
    for row, scores_K in enumerate(scores):
        numbers_K = np.array([number for number, _ in hits.of(row)], dtype=np.int64)
        best = np.argsort(-scores_K, kind="stable")[:k]
        chosen.append((numbers_K[best], scores_K[best].astype(np.float32)))
    return Hits.of_rows(chosen)
