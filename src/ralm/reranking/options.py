"""How a passage is chosen among candidates."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ralm.bounds import MOST_SEEDS
from ralm.options import Needs, Option, check_options

Method = Literal["none", "zero-shot", "oracle", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankOptions:
    """How the passage of a row is chosen among its first `candidates` hits.

    `none`: the first. `zero-shot`: the one under which a language model finds the last `tokens` tokens of the prefix
    likeliest (In-Context RALM, section 6.1, with its 16 of 16). `oracle`: the one under which the targets are likeliest
    (Figure 7), which looks at what is to be predicted. `random`: any, drawn with `seed`.

    Raises UsageError where the values make no sense.
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
            "Rank by so many last tokens of the prefix (zero-shot).",
            flag="rerank-tokens",
            needs=Needs('`method="zero-shot"`', lambda reranking: reranking.method == "zero-shot"),
        ),
    ] = 16
    seed: Annotated[
        int,
        Option(
            "Seed of whatever is drawn at random.",
            least=0,
            most=MOST_SEEDS,
            needs=Needs('`method="random"`', lambda reranking: reranking.method == "random"),
        ),
    ] = 0

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def hits(self) -> int:
        """How many passages must be retrieved for a row."""
        return 1 if self.method == "none" else self.candidates
