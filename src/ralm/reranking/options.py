"""Options that select a reranker by name, as on the command line."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ralm.options import Needs, Option, check_options, seed_option
from ralm.protocols import LanguageModel, Reranker
from ralm.reranking.likelihood import Oracle, ZeroShot
from ralm.reranking.random import RandomChoice

Method = Literal["none", "zero-shot", "oracle", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankOptions:
    """Which reranker to use: `ZeroShot`, `Oracle` or `RandomChoice` among `candidates` passages, or none.

    `tokens` is how many tokens of the prefix `zero-shot` ranks by, `seed` that of `random`. Raises UsageError if a
    value is out of range.
    """

    method: Annotated[
        Method, Option("Choose among candidates: by a language model, by the targets, or at random.", flag="rerank")
    ] = "none"
    candidates: Annotated[
        int,
        Option(
            "Passages to choose from.",
            needs=Needs('`method="zero-shot"`, `"oracle"` or `"random"`', lambda reranking: reranking.method != "none"),
        ),
    ] = 16
    tokens: Annotated[
        int,
        Option(
            "Number of last tokens of the prefix to rank by (zero-shot).",
            flag="rerank-tokens",
            needs=Needs('`method="zero-shot"`', lambda reranking: reranking.method == "zero-shot"),
        ),
    ] = 16
    seed: Annotated[
        int,
        seed_option(Needs('`method="random"`', lambda reranking: reranking.method == "random")),
    ] = 0

    def __post_init__(self) -> None:
        check_options(self)

    def reranker(self, model: LanguageModel | None = None) -> Reranker | None:
        """The reranker, or None to keep the retriever's order. `model` ranks for `zero-shot`, by default the reading
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
