"""Options of learning: which examples are sampled, which passages are candidates for them, and how a small model is
trained. Importing them does not import torch.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from ralm.bounds import MOST_SEEDS
from ralm.errors import UsageError
from ralm.extras import extra
from ralm.options import Needs, Option, check_options, seed_option
from ralm.reading.beginning import BosOption

Precision = Literal["float32", "bfloat16"]

_ALWAYS: Final = Needs("training text", lambda _options: True)
_PACKAGES: Final = ("torch", "transformers", "sentence_transformers", "safetensors", "faiss", "matplotlib")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleOptions:
    """How examples are sampled. All lengths are in tokens of the language model.

    `examples`: how many, at most. `continuation_tokens` y: 4 in In-Context RALM, 128 in REPLUG. `prefix_tokens`: the
    least length of x. `sequence_tokens`: the most tokens of x and y together (REPLUG: 256). `per_sequence`: how many
    examples are drawn from a sequence; they share forward passes, so more of them cost less each and differ less.
    `query_tokens`: the last tokens of x that are the query. Raises UsageError if the values do not fit together.
    """

    examples: Annotated[int, Option("Number of examples to sample.")] = 10_000
    continuation_tokens: Annotated[int, Option("Length of the text that a passage should make likely.")] = 4
    prefix_tokens: Annotated[int, Option("Least number of tokens before it.")] = 128
    sequence_tokens: Annotated[int, Option("Most tokens of both together.", least=2)] = 256
    per_sequence: Annotated[int, Option("Examples per sequence; they share forward passes of the language model.")] = 8
    query_tokens: Annotated[int, Option("Number of last tokens to use as the query.")] = 32
    seed: Annotated[int, seed_option(_ALWAYS)] = 0

    def __post_init__(self) -> None:
        check_options(self)
        if self.prefix_tokens + self.continuation_tokens > self.sequence_tokens:
            raise UsageError(
                f"`prefix_tokens` {self.prefix_tokens} and `continuation_tokens` {self.continuation_tokens} do not fit "
                f"into `sequence_tokens` {self.sequence_tokens}: raise it or lower one of them."
            )
        if self.query_tokens > self.prefix_tokens:
            raise UsageError(
                f"`query_tokens` {self.query_tokens} must be at most `prefix_tokens` {self.prefix_tokens}: every "
                "example needs a whole query before it."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateOptions:
    """Which passages are candidates, and how the language model reads them.

    `candidates`: passages per example (In-Context RALM: 16, REPLUG: 20). `document_tokens`: the length that a passage
    is cut to. `exclude`: leave out passages of the example's own document, and those that share a run of 13 words with
    the text at the continuation: they would teach copying of the answer.
    """

    candidates: Annotated[int, Option("Passages per example.")] = 16
    document_tokens: Annotated[int, Option("Length in tokens that a passage is cut to.")] = 256
    bos: BosOption = "auto"
    exclude: Annotated[
        bool,
        Option(
            "Leave out passages of the example's own document, and those that share 13 words in a row with the text at "
            "its continuation."
        ),
    ] = True

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How a small model is trained.

    `steps`: the most optimiser steps. `batch`: examples per step. `learning_rate`: its peak; it rises over the share
    `warmup` of the steps and falls to 0 at the last one. `held_out`: the share of the examples, whole documents, that
    is not trained on; `evaluated`: the most of these that an evaluation reads. `evaluate_every`: steps between
    evaluations. `patience`: training stops after this many evaluations without a lower loss. `checkpoint_every`: steps
    between checkpoints, from which a killed training resumes. `precision`: number format of the computation; weights
    are always float32. `seed`: order of the examples, new weights and dropout. `device`: cpu, cuda, cuda:N, or auto (a
    GPU if there is one).

    Raises UsageError if a value is out of range.
    """

    steps: Annotated[int, Option("Most optimiser steps.")] = 10_000
    batch: Annotated[int, Option("Examples per step.")] = 32
    learning_rate: Annotated[float, Option("Peak learning rate.", above=True)] = 1e-5
    warmup: Annotated[float, Option("Share of the steps in which the learning rate rises.", most=1)] = 0.1
    held_out: Annotated[
        float, Option("Share of the examples, whole documents, held out for evaluation; 0: no evaluation.", most=0.9)
    ] = 0.1
    evaluated: Annotated[int, Option("Most held-out examples that an evaluation reads.")] = 256
    evaluate_every: Annotated[int, Option("Steps between evaluations.")] = 100
    patience: Annotated[int, Option("Stop after this many evaluations without a lower loss.")] = 5
    checkpoint_every: Annotated[int, Option("Steps between checkpoints.")] = 100
    precision: Annotated[Precision, Option("Number format of the computation; weights stay in float32.")] = "float32"
    seed: Annotated[
        int, Option("Seed of the order of examples, of new weights and of dropout.", least=0, most=MOST_SEEDS)
    ] = 0
    device: Annotated[str, Option("Where to train: cpu, cuda, cuda:N, or auto (a GPU if there is one).")] = "auto"

    def __post_init__(self) -> None:
        check_options(self)


def training_extra() -> AbstractContextManager[None]:
    """Turns a missing package of the extra `train` into MissingExtraError."""
    return extra("train", "training needs", _PACKAGES)
