"""Zero-shot reranking (In-Context RALM, Eq. 6): the passage after which the end of the prefix is most likely.

    i^ = argmax over i of  p(y' | [d_i; x'])                                          Eq. 6

with y' the last s' tokens of the prefix, and x' the tokens before them. Beyond the paper, tokens near the end may count
more, and the retriever's rank may count too.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import JsonValue

from ralm.options import Checked, Option
from ralm.protocols import LanguageModel, Rows
from ralm.records import FloatArray, Hits, Passages
from ralm.reranking.oracle import CANDIDATES_KEY, best_hits, contested


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(Checked):
    """How many passages are ranked, by which tokens. Raises UsageError if a value is out of range."""

    candidates: Annotated[int, CANDIDATES_KEY] = 16
    tokens: Annotated[int, Option("Last tokens of the prefix to rank by.")] = 16
    decay: Annotated[
        float | None,
        Option(
            "A token j places before the end of the prefix has the weight exp(-j / this).",
            above=True,
            default_text="all the same",
        ),
    ] = None
    rank_weight: Annotated[
        float, Option("Subtract this times the logarithm of the retriever's rank, in nats.", minimum=0)
    ] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroShot(Ranking):
    """Reranking by the end of the prefix: the passage after which it is most likely (In-Context RALM, Eq. 6).

    The end is the last `tokens` tokens, with the paper's 16 tokens and 16 `candidates`. With `decay`, the
    log-probability of the token j places before the end has the weight exp(-j / decay); `rank_weight` times the
    logarithm of the retriever's rank is subtracted. Raises UsageError if a number is out of range.

    Args:
        model: Ranks; None is the reading model.
    """

    model: LanguageModel | None = None

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return the options, and the configuration of the ranking model; None if the reading model ranks."""
        model = None if self.model is None else dict(self.model.config)
        paper: dict[str, JsonValue] = {"candidates": self.candidates, "tokens": self.tokens, "model": model}
        more: dict[str, JsonValue] = {} if self.decay is None else {"decay": self.decay}
        if self.rank_weight:
            more["rank_weight"] = self.rank_weight
        return {"reranker": "zero-shot", **paper, **more}

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:  # noqa: ARG002
        """Return the k best of each row's hits; their scores are weighted log-probabilities of the end of the prefix.

        Raises:
            UsageError: If a passage and the tokens do not fit into the ranking model.
        """
        log_probs = rows.prefix_log_probs(contested(hits), self.tokens, self.model)
        return best_hits(hits, [self._total(of_end) for of_end in log_probs], k, self.rank_weight)

    def _total(self, log_probs: FloatArray) -> float:
        if self.decay is None:
            return float(log_probs.sum(dtype=np.float64))
        return float(log_probs.astype(np.float64) @ np.exp(-np.arange(len(log_probs), 0, -1) / self.decay))
