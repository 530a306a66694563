"""A reranker by its name and options, as a command line gives them."""

from dataclasses import dataclass
from typing import Literal, get_args

from ralm.bounds import check_counts, check_seed
from ralm.errors import UsageError
from ralm.protocols import LanguageModel, Reranker
from ralm.reranking.likelihood import Oracle, ZeroShot
from ralm.reranking.random import RandomChoice

Method = Literal["none", "zero-shot", "oracle", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankOptions:
    """Which reranker, and its options: `ZeroShot`, `Oracle` or `RandomChoice` of so many `candidates`.

    `tokens` are those of the prefix that `zero-shot` ranks by, `seed` is that of `random`. Raises UsageError where the
    values make no sense.
    """

    method: Method = "none"
    candidates: int = 16
    tokens: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise UsageError(f"--rerank must be one of {', '.join(get_args(Method))}, not {self.method!r}.")
        check_counts({"--candidates": self.candidates, "--rerank-tokens": self.tokens})
        check_seed("--seed", self.seed)

    def reranker(self, model: LanguageModel | None = None) -> Reranker | None:
        """The reranker; none where the retriever's order stands. `model` ranks for `zero-shot`, else the reading
        model."""
        match self.method:
            case "none":
                return None
            case "zero-shot":
                return ZeroShot(candidates=self.candidates, tokens=self.tokens, model=model)
            case "oracle":
                return Oracle(candidates=self.candidates)
            case "random":
                return RandomChoice(candidates=self.candidates, seed=self.seed)
