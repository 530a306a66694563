"""Mixers: the weights with which the predictions after several passages become one.

    p(x_t | x_<t) = sum over d of  w(d, t) p(x_t | [d; x_<t])          (REPLUG, Eq. 2, where w is lambda(d, x))

`PosteriorWeights` are Bayes' rule with forgetting: a passage that predicted the last tokens well gets more weight.

    w(d, t) = w(d, 0) exp( eta sum over s < t of exp(-(t - s) / decay) log p(x_s | [d; x_<s]) ),  normalised over d

The evidence for a target is read from the tokens before it alone. Weights are float64, in log space. Letters of shapes:
K predictions of a row, T targets, E tokens of evidence.
"""

from dataclasses import asdict, dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import JsonValue

from ralm.options import Needs, Option, check_options
from ralm.protocols import DistributionMixer, Mixer
from ralm.reading.contrast import Contrast
from ralm.reading.log_space import log_softmax
from ralm.records import DoubleArray, FloatArray, Predictions

MixerName = Literal["similarity", "uniform", "posterior", "contrast"]


@dataclass(frozen=True, slots=True)
class SimilarityWeights:
    """The weights of the reader; an `Ensemble` gives the softmax of the retrieval scores (REPLUG, Eq. 3)."""

    evidence: ClassVar[int] = 0

    @property
    def config(self) -> dict[str, JsonValue]:
        """The name; there are no options."""
        return {"mixer": "similarity"}

    def log_weights(self, given: Predictions) -> DoubleArray:
        """The weights of the reader."""
        return given.log_weights_K


@dataclass(frozen=True, slots=True)
class UniformWeights:
    """The same weight for every prediction."""

    evidence: ClassVar[int] = 0

    @property
    def config(self) -> dict[str, JsonValue]:
        """The name; there are no options."""
        return {"mixer": "uniform"}

    def log_weights(self, given: Predictions) -> DoubleArray:
        """1 / K each."""
        return np.full_like(given.log_weights_K, -np.log(len(given.log_weights_K)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PosteriorWeights:
    """Weights by how well each passage predicted the last `evidence` tokens: Bayes' rule with forgetting.

    The weights before any evidence are those of the reader. With `eta` 0 they stay; with `eta` 1 and a large `decay`
    the weights are the posterior of a Bayesian who read these tokens. Raises UsageError if a value is out of range.
    """

    eta: Annotated[float, Option("Posterior: the weight of the evidence.", maximum=100)] = 0.7
    decay: Annotated[float, Option("Posterior: evidence so many tokens ago counts 1/e.", minimum=0.1, maximum=1e6)] = (
        8.0
    )
    evidence: Annotated[int, Option("Posterior: tokens before each target that are evidence.", maximum=1024)] = 32

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def config(self) -> dict[str, JsonValue]:
        """All options, by name."""
        return {"mixer": "posterior", **asdict(self)}

    def log_weights(self, given: Predictions) -> DoubleArray:
        """The weights for each target (T x K)."""
        return log_softmax(_updated(given.log_weights_K, given.evidence_TKE, self.eta, self.decay))


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerOptions:
    """Which mixer an ensemble has; the other fields are the options of the mixers of these names."""

    mixer: Annotated[
        MixerName,
        Option(
            "Weights of an ensemble: softmax of the scores of retrieval (similarity: REPLUG), all the same (uniform), "
            "or by how well each passage predicted the tokens before (posterior). To generate text also contrast: the "
            "average contrasted with the prediction without passages (CAD)."
        ),
    ] = "similarity"
    posterior: Annotated[
        PosteriorWeights,
        Option("Weights by evidence.", needs=Needs.value("mixer", "posterior")),
    ] = field(default_factory=PosteriorWeights)
    contrast: Annotated[Contrast, Option("Contrast.", needs=Needs.value("mixer", "contrast"))] = field(
        default_factory=Contrast
    )

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def chosen(self) -> Mixer | DistributionMixer:
        """The selected mixer."""
        match self.mixer:
            case "similarity":
                return SimilarityWeights()
            case "uniform":
                return UniformWeights()
            case "posterior":
                return self.posterior
            case "contrast":
                return self.contrast


def _updated(start_K: DoubleArray, evidence_TKE: FloatArray, eta: float, decay: float) -> DoubleArray:
    """The logarithms of weights (T x K), not normalised, after evidence that is forgotten."""
    shares_E = eta * np.exp(-np.arange(evidence_TKE.shape[2], 0, -1) / decay)
    counted_E = shares_E > 0  # 0 times the log-probability of an impossible token would be NaN
    weighted_TK = start_K + evidence_TKE[:, :, counted_E].astype(np.float64) @ shares_E[counted_E]
    impossible_T = np.isneginf(weighted_TK).all(axis=1)
    weighted_TK[impossible_T] = start_K  # the tokens before were impossible after every passage
    return weighted_TK
