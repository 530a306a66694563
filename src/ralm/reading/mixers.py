"""Mixers: the weights with which the predictions after several passages become one (`mixture.py`).

A mixer is a function of the scores of the K readings of a row and of their evidence: the log-probabilities of the last
tokens before a target, the oldest first, after each prompt prefix (K x E). It never sees the target, so its weights are
causal. Weights are float64, in log space.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np

from ralm.grammar import Catalogue
from ralm.options import Option, Part
from ralm.reading.mixture import log_softmax, posterior_log_weights, similarity_log_weights
from ralm.records import LOWEST, DoubleArray, FloatArray


@dataclass(frozen=True, slots=True)
class SimilarityWeights(Part):
    """Weigh each prediction by the softmax of the scores (REPLUG, Eq. 3)."""

    named: ClassVar = ("mixer", "similarity")
    evidence: ClassVar[int] = 0

    def __call__(self, scores_K: DoubleArray, evidence_KE: FloatArray) -> DoubleArray:  # noqa: ARG002
        """Return the weights, whatever the evidence."""
        return similarity_log_weights(scores_K)


@dataclass(frozen=True, slots=True)
class UniformWeights(Part):
    """Give every prediction the same weight."""

    named: ClassVar = ("mixer", "uniform")
    evidence: ClassVar[int] = 0

    def __call__(self, scores_K: DoubleArray, evidence_KE: FloatArray) -> DoubleArray:  # noqa: ARG002
        """Return 1 / K for each."""
        return np.full(len(scores_K), -np.log(len(scores_K)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PosteriorWeights(Part):
    """Weigh by how well each passage predicted the last `evidence` tokens: Bayes' rule with forgetting.

    The weights before any evidence are the softmax of the scores. With `eta` 0 they stay; with `eta` 1 and a large
    `decay` the weights are the posterior of a Bayesian who read these tokens.
    """

    named: ClassVar = ("mixer", "posterior")

    eta: Annotated[float, Option("Weight of the evidence.", maximum=100)] = 1.0
    decay: Annotated[float, Option("Evidence so many tokens ago counts 1/e.", minimum=0.1, maximum=1e6)] = 4.0
    evidence: Annotated[int, Option("Tokens before each target that are evidence.", maximum=1024)] = 32

    def __call__(self, scores_K: DoubleArray, evidence_KE: FloatArray) -> DoubleArray:
        """Return the weights for the token after the evidence."""
        with_next_KT = np.pad(evidence_KE, ((0, 0), (0, 1)))
        return posterior_log_weights(with_next_KT, similarity_log_weights(scores_K), self.eta, self.decay)[:, -1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast(Part):
    """Contrast generation with the prediction without passages: CAD (Shi et al., 2023, arXiv 2305.14739).

        softmax( (1 + alpha) log p - alpha log p_0 )

    p is the average over the passages of a row (REPLUG, Eq. 2), with one passage its prediction as in the paper, and
    p_0 the prediction without passages. No token is cut, so that every text has a probability.
    """

    named: ClassVar = ("mixer", "contrast")

    alpha: Annotated[float, Option("Weight of what passages change.", maximum=100)] = 0.5

    def log_probs(self, average_V: DoubleArray, plain_V: DoubleArray) -> DoubleArray:
        """Return the contrasted log-probabilities (float64, V) of the next token of a vocabulary of V."""
        return log_softmax((1 + self.alpha) * average_V - self.alpha * np.maximum(plain_V, LOWEST))


MIXERS: Final = Catalogue(
    "mixer",
    {
        "similarity": SimilarityWeights,
        "uniform": UniformWeights,
        "posterior": PosteriorWeights,
        "contrast": Contrast,
    },
    ("config",),
)
"""How the predictions of several readings become one; `contrast` generates text alone."""
