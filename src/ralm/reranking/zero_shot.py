"""Zero-shot reranking (In-Context RALM, Eq. 6): the passage after which the end of the prefix is most likely.

    i^ = argmax over i of  p(y' | [d_i; x'])                                          Eq. 6

with y' the last s' tokens of the prefix, and x' the tokens before them.
"""

from dataclasses import dataclass

from pydantic import JsonValue

from ralm.protocols import LanguageModel, Rows
from ralm.records import Hits, Passages
from ralm.reranking.oracle import contested, most_likely
from ralm.validation import check_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroShot:
    """Chooses the passage after which the end of the prefix is most likely (In-Context RALM, Eq. 6).

    The end is the last `tokens` tokens, with the paper's 16 tokens and 16 `candidates`. `model` ranks; by default the
    reading model does. Raises UsageError if a number is below 1.
    """

    candidates: int = 16
    tokens: int = 16
    model: LanguageModel | None = None

    def __post_init__(self) -> None:
        check_count("candidates", self.candidates)
        check_count("tokens", self.tokens)

    @property
    def config(self) -> dict[str, JsonValue]:
        """The options, and the configuration of the ranking model; None if the reading model ranks."""
        model = None if self.model is None else dict(self.model.config)
        return {"reranker": "zero-shot", "candidates": self.candidates, "tokens": self.tokens, "model": model}

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:  # noqa: ARG002
        """The k best of each row's hits; their scores are total log-probabilities of the end of the prefix.

        Raises UsageError if a passage and the tokens do not fit into the ranking model.
        """
        candidates = contested(hits)
        return most_likely(hits, candidates, rows.prefix_log_probs(candidates, self.tokens, self.model), k)
