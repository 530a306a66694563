"""Ensembles over documents: each is read alone, and the distributions are averaged (REPLUG, section 3.2, Eq. 2).

    p(y | x) = sum over d of  lambda_d  p(y | [d; x]),     lambda = softmax of the similarities

Works on log-probabilities; knows nothing of how they were scored. All sums are taken in log space, in float64.
Letters of shapes: Q rows of a plan, K documents of a row, T targets.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import JsonValue

from ralm.options import Needs, Option, check_options
from ralm.protocols import Documents
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, Hits, PromptPrefix

Weights = Literal["similarity", "uniform"]
COLDEST: Final = 1e-6
"""The lowest temperature: the best document has all the weight, and the likeliest token is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """An ensemble of the first `documents` hits of a row, with REPLUG's 10 as default.

    `weights` are softmax(similarity / `temperature`), with temperature 1 as in the paper, or the same for every
    document.

    Raises UsageError if a value is out of range.
    """

    documents: Annotated[int, Option("Passages that are read together.")] = 10
    weights: Annotated[
        Weights, Option("Weights of an ensemble: softmax of the scores of retrieval, or all the same.")
    ] = "similarity"
    temperature: Annotated[
        float,
        Option(
            "Temperature of the softmax over scores.",
            minimum=COLDEST,
            maximum=1 / COLDEST,
            flag="weights-temperature",
            needs=Needs('`weights="similarity"`', lambda ensemble: ensemble.weights == "similarity"),
        ),
    ] = 1.0

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def config(self) -> dict[str, JsonValue]:
        """All options, by name."""
        return {"reader": "ensemble", **asdict(self)}

    @property
    def hits(self) -> int:
        """How many passages are retrieved for a row."""
        return self.documents

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        """One prompt prefix for each of the first `documents` passages, weighted by its score."""
        numbers, scores = zip(*hits[: self.documents], strict=True)
        log_weights = document_log_weights(Hits.of_rows([(numbers, scores)]), self)[0].tolist()
        return [
            PromptPrefix(documents[number], (number,), log_weight)
            for number, log_weight in zip(numbers, log_weights, strict=True)
        ]


def document_log_weights(hits: Hits, options: Ensemble) -> DoubleArray:
    """The logarithm of the weight (float64, Q x K) of each hit; minus infinity for a missing hit.

    The weights of a row sum to 1. A row without hits has all its weight in its first column.
    """
    found_QK = hits.numbers_QK != NO_PASSAGE
    similarity_QK = hits.scores_QK.astype(np.float64) / options.temperature
    if options.weights == "uniform":
        similarity_QK = np.zeros_like(similarity_QK)
    similarity_QK = np.where(found_QK, similarity_QK, -np.inf)
    similarity_QK[~found_QK.any(axis=1), 0] = 0.0
    return similarity_QK - log_sum_exp(similarity_QK)[:, None]


def mixture(log_probs_KT: FloatArray, log_weights_K: DoubleArray) -> FloatArray:
    """The log-probability (float32, T) of each target under the weighted average of the documents' distributions."""
    return log_sum_exp(log_probs_KT.astype(np.float64) + log_weights_K[:, None], axis=0).astype(np.float32)


def posterior(log_probs_KT: FloatArray, log_weights_K: DoubleArray) -> FloatArray:
    """The share of each target's probability (float32, T x K) that came from each document: every row sums to 1.

    lambda_d p(y | [d; x]) / sum over d' of lambda_d' p(y | [d'; x])
    """
    joint_TK = (log_probs_KT.astype(np.float64) + log_weights_K[:, None]).T
    impossible_T = np.isneginf(joint_TK).all(axis=1)
    joint_TK[impossible_T] = log_weights_K  # no document gives the target any probability: keep the weights
    return np.exp(joint_TK - log_sum_exp(joint_TK)[:, None]).astype(np.float32)


def log_sum_exp(values: DoubleArray, axis: int = -1) -> DoubleArray:
    """log(sum(exp)) over an axis; minus infinity if all values are."""
    highest = values.max(axis=axis)
    highest = np.where(np.isneginf(highest), 0.0, highest)
    with np.errstate(divide="ignore"):
        return np.asarray(highest + np.log(np.exp(values - np.expand_dims(highest, axis)).sum(axis=axis)))
