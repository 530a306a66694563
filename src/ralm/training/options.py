"""Options of a training, its outcome, and the extra that it needs; importing them does not import torch."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np

from ralm.errors import UsageError, extra
from ralm.options import Checked, Option, check_options
from ralm.reading.plan import BosOption, QueryTokens
from ralm.records import DoubleArray, IntArray
from ralm.validation import MAX_SEED

Precision = Literal["float32", "bfloat16"]
LikelihoodSemantics = Literal["paper", "mean"]

_PACKAGES: Final = tuple("torch transformers sentence_transformers safetensors faiss accelerate datasets".split())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions(Checked):
    """How a small model is trained.

    The learning rate falls to 0 at the last step. A training repeats bit for bit on a CPU with as many threads. Weights
    are float32 whatever the `precision`. Raises UsageError if a value is out of range.
    """

    steps: Annotated[int, Option("Most optimiser steps.")] = 10_000
    batch: Annotated[int, Option("Examples per step.")] = 32
    learning_rate: Annotated[float, Option("Peak learning rate.", above=True)] = 1e-5
    warmup: Annotated[float, Option("Share of the steps in which the learning rate rises.", maximum=1)] = 0.1
    held_out: Annotated[
        float, Option("Share of the documents, at least two, held out for evaluation; 0: no evaluation.", maximum=0.9)
    ] = 0.1
    evaluated: Annotated[int, Option("Most held-out examples that an evaluation reads.")] = 256
    evaluate_every: Annotated[int, Option("Steps between evaluations, and between checkpoints.")] = 100
    patience: Annotated[int, Option("Stop after this many evaluations without a lower loss.")] = 5
    precision: Annotated[
        Precision, Option("Number format of the computation; bfloat16 is for GPUs, and CPUs with AVX512-BF16 or AMX.")
    ] = "float32"
    dropout: Annotated[bool, Option("Train with the model's dropout; without it bfloat16 is faster on a CPU.")] = True
    seed: Annotated[int, Option("Seed of order, new weights and dropout.", minimum=0, maximum=MAX_SEED)] = 0
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Option("Where to train: cpu, cuda (the first GPU), or auto (a GPU if any).")
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankerOptions(Checked):
    """How a reranker reads pairs, and what counts besides its score.

    `rank_prior` lowers the score of a candidate by a weight times the logarithm of its rank: training begins from the
    retriever's order. The paper has no such term. Raises UsageError if a value is out of range.
    """

    tokens: Annotated[int, Option("Number of last tokens of the prefix that the reranker reads.")] = 64
    max_length: Annotated[
        int | None, Option("Most tokens of prefix and passage together.", default_text="as many as the model takes")
    ] = None
    rank_prior: Annotated[bool, Option("Let the retriever's rank count too, with a weight that is fitted.")] = True
    pairs: Annotated[int, Option("Pairs of prefix and passage in memory at once.")] = 32


REPLUG: Final = TrainingOptions(steps=25_000, batch=64, learning_rate=2e-5)
"""The paper's steps, batch and learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LSROptions(Checked):
    """How encoders that made the vectors of an index are trained by the loss of LSR (REPLUG, section 4).

    See `ralm.training.losses.divergence_loss`. Raises UsageError if a value is out of range.
    """

    vectors: Annotated[
        str | None, Option("Begin from the encoders of the vectors of this name.", default_text="the default ones")
    ] = None
    semantics: Annotated[
        LikelihoodSemantics,
        Option(
            "What Q prefers by: the probability of the whole continuation, as the paper writes, which makes Q nearly "
            "uniform (paper), or the mean log-probability of a token (mean)."
        ),
    ] = "mean"
    gamma: Annotated[float, Option("Temperature of the retriever's scores.", above=True)] = 0.1
    beta: Annotated[float, Option("Temperature of the language model's preference, see `semantics`.", above=True)] = 0.1

    def lm_scores(self, log_probs: DoubleArray, tokens: IntArray | int) -> DoubleArray:
        """Return what Q is the softmax of, over beta (REPLUG, section 4.2); 0 or -inf if y is impossible."""
        return np.exp(log_probs) if self.semantics == "paper" else log_probs / tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieverTrainingOptions(LSROptions):
    """How the encoders of queries and passages are trained together: the one that made the vectors, or the pair.

    `refresh_every=None` never encodes the passages again.
    """

    candidates: Annotated[int, Option("Passages retrieved for an example.", minimum=2)] = 20
    refresh_every: Annotated[
        int | None, Option("Steps after which the passages are encoded again, at the next checkpoint.")
    ] = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEncoderOptions(LSROptions):
    """How a query encoder is trained for passage vectors that stay as they are.

    `init` must be the encoder that belongs to the vectors, or one that was trained for them.
    """

    init: Annotated[
        str | None,
        Option("Query encoder to begin from: a hub name or folder.", default_text="the one that the index names"),
    ] = None


def training_extra() -> AbstractContextManager[None]:
    """Turn a missing package of the extra `train` into MissingExtraError."""
    return extra("train", "training needs", _PACKAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleOptions:
    """How examples are sampled: prefixes x with continuations y. All lengths are in tokens of the language model.

    A continuation has 4 tokens in In-Context RALM and 128 in REPLUG. Raises UsageError if values do not fit together.
    """

    examples: Annotated[int, Option("Number of examples to sample.")] = 10_000
    continuation_tokens: Annotated[int, Option("Tokens of a continuation, which a passage should make likely.")] = 4
    prefix_tokens: Annotated[int, Option("Minimum number of tokens before a continuation.")] = 128
    sequence_tokens: Annotated[int, Option("Tokens of a sequence: a prefix and its continuations.", minimum=2)] = 256
    per_sequence: Annotated[int, Option("Consecutive examples per sequence, which share forward passes.")] = 32
    query_tokens: QueryTokens = 32
    seed: Annotated[int, Option("Seed of random draws.", minimum=0, maximum=MAX_SEED)] = 0

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


REPLUG_EXAMPLES: Final = ExampleOptions(examples=800_000, continuation_tokens=128, per_sequence=1, query_tokens=128)
"""The examples of REPLUG (section 5.2): 256 tokens, of which the first half is the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateOptions(Checked):
    """Which passages are candidates, and how the language model reads them.

    In-Context RALM has 16 candidates per example, REPLUG 20. Passages of the example's own document, and those that
    share 13 words in a row with the text at its continuation, would teach copying: they are left out.
    """

    candidates: Annotated[int, Option("Passages per example.")] = 16
    document_tokens: Annotated[int, Option("Length in tokens that a passage is cut to.")] = 256
    bos: BosOption = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The outcome of a training in the folder `out`: `steps` were done, and the weights after `best_step` were kept.

    `losses`: a row for each evaluation, as in losses.csv. `held_out`: what the training gained on held-out documents,
    by `encoder_gains` or `reranker_gains` of `ralm.training.gains`; None if too few were held out.
    """

    out: Path
    steps: int
    best_step: int
    losses: Sequence[dict[str, Any]]
    held_out: dict[str, Any] | None = None
