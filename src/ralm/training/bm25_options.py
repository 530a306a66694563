"""Options of learning weights for BM25."""

from dataclasses import dataclass
from typing import Annotated

from ralm.bounds import MOST_SEEDS
from ralm.options import Option, check_options


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightingOptions:
    """How weights of query terms are learned.

    `most_examples`: the most examples of the signals that are used; two weights need few. `held_out`: the share of
    them, whole documents, that decides whether the weights are better than none. `seed`: which documents those are, and
    the draws of the bootstrap. Raises UsageError if a value is invalid.
    """

    most_examples: Annotated[int, Option("Most examples to learn from.", least=2)] = 20_000
    held_out: Annotated[
        float, Option("Share of the examples, whole documents, held out to test the weights.", most=0.9, above=True)
    ] = 0.3
    seed: Annotated[int, Option("Seed of what is held out, and of the bootstrap.", least=0, most=MOST_SEEDS)] = 0

    def __post_init__(self) -> None:
        check_options(self)
