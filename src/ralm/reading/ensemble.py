"""REPLUG's ensemble (REPLUG, Eq. 2 and 3): each passage is read alone, and the predictions are averaged.

    p(y | x) = sum over d of  lambda(d, x) p(y | [d; x])                              Eq. 2
    lambda(d, x) = exp(s(d, x)) / sum over d' of exp(s(d', x))                        Eq. 3

All sums are taken in log space and in float64: a probability of many tokens underflows any float. Letters of shapes:
K documents of a row, T targets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.options import Option, check_options
from ralm.protocols import DistributionMixer, Documents, Mixer
from ralm.reading.log_space import log_softmax, log_sum_exp
from ralm.reading.mixers import SimilarityWeights
from ralm.records import DoubleArray, FloatArray, IntArray, PromptPrefix
from ralm.validation import config_of

MIN_TEMPERATURE: Final = 1e-6
"""The lowest temperature: the best document has all the weight, and the most likely token is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Reads each of the first `documents` hits of a row alone (REPLUG, Eq. 2; 10 documents as in the paper).

    The weights are softmax(similarity / `temperature`), with temperature 1 as in the paper, as `mixer` changes them.

    Raises UsageError if a value is out of range, or if one document is read by a mixer that weighs several.
    """

    documents: Annotated[int, Option("Passages that are read together.")] = 10
    temperature: Annotated[
        float,
        Option(
            "Temperature of the softmax over scores.",
            minimum=MIN_TEMPERATURE,
            maximum=1 / MIN_TEMPERATURE,
            flag="weights-temperature",
        ),
    ] = 1.0
    mixer: Mixer | DistributionMixer = field(default_factory=SimilarityWeights)

    def __post_init__(self) -> None:
        check_options(self)
        if self.documents == 1 and isinstance(self.mixer, Mixer) and self.mixer.evidence:
            raise UsageError(
                f"the mixer {type(self.mixer).__name__} weighs several passages: set `documents` to 2 or more."
            )

    @property
    def config(self) -> dict[str, JsonValue]:
        """All options, by name."""
        mixer = config_of(self.mixer, "mixer")
        return {"reader": "ensemble", "documents": self.documents, "temperature": self.temperature, "mixer": mixer}

    @property
    def hits(self) -> int:
        """The number of passages that are retrieved for a row."""
        return self.documents

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        """One prompt prefix for each of the first `documents` passages, weighted by its score."""
        hits = hits[: self.documents]
        log_weights_K = document_log_weights(np.array([score for _, score in hits], dtype=np.float32), self)
        return [
            PromptPrefix(documents[number], (number,), log_weight)
            for (number, _), log_weight in zip(hits, log_weights_K.tolist(), strict=True)
        ]


def document_log_weights(scores_K: FloatArray, options: Ensemble) -> DoubleArray:
    """The logarithm of the weight lambda (float64, K) of each hit of a row (REPLUG, Eq. 3); the weights sum to 1."""
    return log_softmax(scores_K.astype(np.float64) / options.temperature)


def mixture(log_probs_KT: FloatArray, log_weights: DoubleArray) -> FloatArray:
    """The log-probability (float32, T) of each target under the average of the K predictions (REPLUG, Eq. 2), with
    weights for all targets (float64, K) or a row for each (T x K)."""
    weighted_KT = log_probs_KT.astype(np.float64) + np.atleast_2d(log_weights).T
    return log_sum_exp(weighted_KT, axis=0).astype(np.float32)


def posterior(log_probs_KT: FloatArray, log_weights: DoubleArray) -> FloatArray:
    """The share of each target's probability (float32, T x K) that came from each document; every row sums to 1.

    It is the summand of document d over the sum in the mixture (REPLUG, Eq. 2), by Bayes' rule p(d | y, x):

    lambda_d p(y | [d; x]) / sum over d' of lambda_d' p(y | [d'; x])
    """
    joint_TK = (log_probs_KT.astype(np.float64) + np.atleast_2d(log_weights).T).T
    impossible_T = np.isneginf(joint_TK).all(axis=1)  # no document gives the target any probability: keep the weights
    joint_TK[impossible_T] = np.broadcast_to(log_weights, joint_TK.shape)[impossible_T]
    return np.exp(log_softmax(joint_TK)).astype(np.float32)


def log_weights_of(prompt_prefixes: Sequence[PromptPrefix]) -> DoubleArray:
    """The logarithms of the weights (float64, K) of the prompt prefixes of a row."""
    return np.array([one.log_weight for one in prompt_prefixes], dtype=np.float64)


def credited_passages(prompt_prefixes: Sequence[PromptPrefix]) -> IntArray:
    """The passage (int64, K) that each prompt prefix of a row credits, or `NO_PASSAGE`."""
    return np.array([one.passage for one in prompt_prefixes], dtype=np.int64)
