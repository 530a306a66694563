"""Average the predictions of one model after several documents (REPLUG, Eq. 2 and 3).

    p(y | x) = sum over d of  lambda(d, x) p(y | [d; x])                              Eq. 2
    lambda(d, x) = exp(s(d, x)) / sum over d' of exp(s(d', x))                        Eq. 3

This module works with arrays alone: it knows neither models, nor tokens, nor documents. All sums are taken in log space
and in float64, since the probability of a text underflows any float. Letters of shapes: K documents, T targets.

A mixer gives the weights: a function of the scores of the K readings of a row and of their evidence, the
log-probabilities of the last E tokens before a target, the oldest first, after each prompt prefix. It never sees the
target, so its weights are causal.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np

from ralm.grammar import Catalogue
from ralm.options import Option, Part
from ralm.records import LOWEST, DoubleArray, FloatArray


def similarity_log_weights(scores_K: DoubleArray | FloatArray, temperature: float = 1.0) -> DoubleArray:
    """Return REPLUG's weights of the documents, softmax(score / temperature) (REPLUG, Eq. 3), as logarithms.

    Args:
        scores_K: Similarity of each document and the context, on any scale.
        temperature: Above 1 evens the weights out, below 1 sharpens them. Scores of BM25 differ by several units, so
            that 1 gives nearly all weight to the first document; 4 suits them.

    Returns:
        Log-weights (float64, K) whose exponentials sum to 1.

    Example:
        >>> np.exp(similarity_log_weights(np.array([2.0, 0.0]), temperature=2.0)).round(3).tolist()
        [0.731, 0.269]
    """
    return log_softmax(np.asarray(scores_K, dtype=np.float64) / temperature)


def posterior_log_weights(
    log_probs_KT: DoubleArray | FloatArray, log_weights_K: DoubleArray, eta: float = 1.0, decay: float = 4.0
) -> DoubleArray:
    """Return weights that follow how well each document has predicted the text so far.

    A document that made the last tokens likely is likely to hold the next ones. The weight of document d for target t
    is, normalised over d,

        lambda_d exp( eta * sum over s < t of exp(-(t - s) / decay) log p(x_s | [d; x_<s]) )

    With `eta` 1 and no decay this is Bayes' rule. If every document made a token before a target impossible, the
    weights of the target are those before any evidence.

    Args:
        log_probs_KT: Log-probability of each target after each document. A column is evidence for later columns only.
        log_weights_K: Log-weights before any evidence, such as `similarity_log_weights`.
        eta: Weight of the evidence; 0 leaves the weights as they are.
        decay: Number of tokens after which evidence counts 1/e.

    Returns:
        Log-weights (float64, K x T); the exponentials of every column sum to 1.
    """
    evidence_KT = np.zeros(log_probs_KT.shape)
    for t in range(1, log_probs_KT.shape[1] if eta else 0):
        evidence_KT[:, t] = np.exp(-1 / decay) * (evidence_KT[:, t - 1] + log_probs_KT[:, t - 1])
    weights_TK = (log_weights_K[:, None] + eta * evidence_KT).T
    weights_TK[np.isneginf(weights_TK).all(axis=1)] = log_weights_K
    return log_softmax(weights_TK).T


def mix(log_probs_KT: DoubleArray | FloatArray, log_weights: DoubleArray) -> DoubleArray:
    """Return the log-probability of each target under the weighted average of the predictions (REPLUG, Eq. 2).

    Args:
        log_probs_KT: Log-probability of each target after each document; -inf is allowed.
        log_weights: A log-weight for each document (float64, K), or for each document and target (K x T).

    Returns:
        Log-probabilities (float64, T).

    Example:
        >>> np.exp(mix(np.log([[0.5], [0.1]]), np.log([0.5, 0.5]))).round(3).tolist()
        [0.3]
    """
    return log_sum_exp(_weighted(log_probs_KT, log_weights), axis=0)


def shares(log_probs_KT: DoubleArray | FloatArray, log_weights: DoubleArray) -> DoubleArray:
    """Return the share of each target's probability that came from each document: its summand in `mix` over the sum.

    By Bayes' rule this is p(d | y, x). A target that is impossible after every document keeps the weights.

    Args:
        log_probs_KT: Log-probability of each target after each document.
        log_weights: As for `mix`.

    Returns:
        Shares (float64, T x K); every row sums to 1.
    """
    joint_TK = _weighted(log_probs_KT, log_weights).T
    weights_TK = np.broadcast_to(np.transpose(log_weights), joint_TK.shape)
    impossible_T = np.isneginf(joint_TK).all(axis=1)
    return np.exp(log_softmax(np.where(np.expand_dims(impossible_T, 1), weights_TK, joint_TK)))


def log_sum_exp(values: DoubleArray, axis: int = -1) -> DoubleArray:
    """Return log(sum(exp)) over an axis; minus infinity if all values are."""
    highest = values.max(axis=axis)
    highest = np.where(np.isneginf(highest), 0.0, highest)  # -inf minus -inf would be NaN
    with np.errstate(divide="ignore"):
        return np.asarray(highest + np.log(np.exp(values - np.expand_dims(highest, axis)).sum(axis=axis)))


def log_softmax(values: DoubleArray) -> DoubleArray:
    """Return the logarithms of probabilities in proportion to exp(values) over the last axis."""
    return np.asarray(values - log_sum_exp(values)[..., None])


def _weighted(log_probs_KT: DoubleArray | FloatArray, log_weights: DoubleArray) -> DoubleArray:
    """Return the logarithm of each summand of Eq. 2 (float64, K x T)."""
    return np.asarray(log_probs_KT, dtype=np.float64) + (log_weights if log_weights.ndim == 2 else log_weights[:, None])


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
