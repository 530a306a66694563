"""The oracle (In-Context RALM, Eq. 5): the passage that makes the targets likeliest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import JsonValue

from ralm.protocols import Rows
from ralm.records import FloatArray, Hits, Passages
from ralm.validation import check_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Chooses the passage that makes the targets themselves likeliest (In-Context RALM, Eq. 5 and Figure 7).

    It is an upper bound for choosing among the candidates, not a method, since it looks at the text to be predicted.
    Raises UsageError if `candidates` is below 1.
    """

    needs_targets: ClassVar[bool] = True

    candidates: int = 16

    def __post_init__(self) -> None:
        check_count("candidates", self.candidates)

    @property
    def config(self) -> dict[str, JsonValue]:
        """The options."""
        return {"reranker": "oracle", "candidates": self.candidates}

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:  # noqa: ARG002
        """The k best of each row's hits; their scores are total log-probabilities of the targets.

        Raises UsageError during generation, when the targets are not known.
        """
        candidates = contested(hits)
        return likeliest_hits(hits, candidates, rows.target_log_probs(candidates), k)


def contested(hits: Hits) -> list[tuple[int, int]]:
    """The (row, passage) of every hit of the rows that have more than one."""
    of_rows = [(row, hits.of(row)) for row in range(len(hits))]
    return [(row, number) for row, found in of_rows if len(found) > 1 for number, _ in found]


def likeliest_hits(hits: Hits, contested: Sequence[tuple[int, int]], log_probs: Sequence[FloatArray], k: int) -> Hits:
    """The k best hits of each row by total log-probability (summed in float64); of equal ones the first."""
    totals: dict[int, list[float]] = {}
    for (row, _), scored in zip(contested, log_probs, strict=True):
        totals.setdefault(row, []).append(float(scored.sum(dtype=np.float64)))
    chosen = []
    for row in range(len(hits)):
        numbers = np.array([number for number, _ in hits.of(row)], dtype=np.int64)
        scores = np.array(totals.get(row, np.zeros(len(numbers))))
        best = np.argsort(-scores, kind="stable")[:k]
        chosen.append((numbers[best], scores[best].astype(np.float32)))
    return Hits.of_rows(chosen)
