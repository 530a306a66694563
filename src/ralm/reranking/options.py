"""How a passage is chosen among candidates."""

from dataclasses import dataclass
from typing import Literal, get_args

from ralm.bounds import check_counts, check_seed
from ralm.errors import UsageError

Method = Literal["none", "zero-shot", "oracle", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankOptions:
    """How the passage of a row is chosen among its first `candidates` hits.

    `none`: the first. `zero-shot`: the one under which a language model finds the last `tokens` tokens of the prefix
    likeliest (In-Context RALM, section 6.1, with its 16 of 16). `oracle`: the one under which the targets are likeliest
    (Figure 7), which looks at what is to be predicted. `random`: any, drawn with `seed`.

    Raises UsageError where the values make no sense.
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

    @property
    def hits(self) -> int:
        """How many passages must be retrieved for a row."""
        return 1 if self.method == "none" else self.candidates
