"""Mixers that look at whole distributions: contrast with the prediction without passages, and backoff to it.

With p the average over the passages of a row (REPLUG, Eq. 2) and p_0 the prediction without passages:

    contrast             softmax( (1 + a) log p - a log p_0 )              CAD, Shi et al., 2023 (arXiv 2305.14739)
    adaptive contrast    the same with a = max(JSD(p, p_0), floor)         AdaCAD, Wang et al., 2024 (arXiv 2409.07394)
    backoff              p, or p_0 where p is less certain of its top token by more than a margin

With one passage p is its prediction, as in both papers. The Jensen-Shannon divergence is in nats, as in the published
code of AdaCAD, so it is at most ln 2. No token is cut, so that every text has a probability. Distributions are torch
tensors on the device of the model; letters of shapes: K predictions, T targets, V vocabulary.
"""

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import numpy as np
from pydantic import JsonValue

from ralm.options import Option, check_options
from ralm.records import DoubleArray, MixerNeeds, Predictions

_NEEDS: Final = MixerNeeds(plain=True, distributions=True)
_LOWEST: Final = -1e4
"""A log-probability for impossible tokens of p_0, whose logarithm would turn a sum into NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """softmax((1 + `alpha`) log p - `alpha` log p_0): CAD (arXiv 2305.14739). Raises UsageError if `alpha` is out of
    range."""

    alpha: Annotated[float, Option("Contrast: the weight of what passages change.", maximum=100)] = 0.5

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def config(self) -> dict[str, JsonValue]:
        """All options, by name."""
        return {"mixer": "contrast", **asdict(self)}

    @property
    def needs(self) -> MixerNeeds:
        """The distributions, also the one without passages."""
        return _NEEDS

    def log_probs(self, given: Predictions) -> Any:
        """The contrasted distribution (T x V) of each target."""
        return _contrasted(given.average_TV, given.log_probs_KTV[-1], self.alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveContrast:
    """Contrast whose weight is the Jensen-Shannon divergence of p and p_0 in nats, at least `floor`: AdaCAD (arXiv
    2409.07394). Raises UsageError if `floor` is out of range."""

    floor: Annotated[
        float, Option("Adaptive contrast: the lowest weight of what passages change.", maximum=100, flag="alpha-floor")
    ] = 0.0

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def config(self) -> dict[str, JsonValue]:
        """All options, by name."""
        return {"mixer": "adaptive-contrast", **asdict(self)}

    @property
    def needs(self) -> MixerNeeds:
        """The distributions, also the one without passages."""
        return _NEEDS

    def log_probs(self, given: Predictions) -> Any:
        """The contrasted distribution (T x V) of each target."""
        average_TV, plain_TV = given.average_TV, given.log_probs_KTV[-1]
        middle_TV = average_TV.logaddexp(plain_TV) - math.log(2)
        divergence_T = (_relative_entropy(average_TV, middle_TV) + _relative_entropy(plain_TV, middle_TV)) / 2
        return _contrasted(average_TV, plain_TV, divergence_T.clamp_min(self.floor)[:, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The average over the passages, or the prediction without any where its top token is more probable than that
    of the average by more than `margin`. Raises UsageError if `margin` is out of range."""

    margin: Annotated[
        float,
        Option(
            "Backoff: by how much more the prediction without passages must be certain of its top token.",
            minimum=-1,
            maximum=1,
            flag="backoff-margin",
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def config(self) -> dict[str, JsonValue]:
        """All options, by name."""
        return {"mixer": "backoff", **asdict(self)}

    @property
    def needs(self) -> MixerNeeds:
        """The distributions, also the one without passages."""
        return _NEEDS

    def log_weights(self, given: Predictions) -> DoubleArray:
        """The weights of the reader, or all for the prediction without passages (T x K)."""
        lead_T = given.log_probs_KTV[-1].amax(-1).exp() - given.average_TV.amax(-1).exp()
        plain_K = np.where(np.arange(len(given.log_weights_K)) == len(given.log_weights_K) - 1, 0.0, -np.inf)
        return np.where((lead_T > self.margin).cpu().numpy()[:, None], plain_K, given.log_weights_K)


def _contrasted(average_TV: Any, plain_TV: Any, alpha: Any) -> Any:
    return ((1 + alpha) * average_TV - alpha * plain_TV.clamp_min(_LOWEST)).log_softmax(-1)


def _relative_entropy(log_probs_TV: Any, other_TV: Any) -> Any:
    """KL(p || q) in nats (T), where q is above 0 wherever p is."""
    return (log_probs_TV.exp() * (log_probs_TV.clamp_min(_LOWEST) - other_TV.clamp_min(_LOWEST))).sum(-1)
