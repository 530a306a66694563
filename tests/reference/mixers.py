"""Mixers as plain loops over probabilities, one target and one document at a time, in Python's floats."""

import math
from collections.abc import Sequence


def posterior(
    start: Sequence[float], log_probs: Sequence[Sequence[float]], first: int, eta: float, decay: float, evidence: int
) -> list[list[float]]:
    """The weights for each target from index `first` on.

    `log_probs[d][s]` is log p(x_s | [d; x_<s]) of the tokens before the targets and of the targets:

    w(d, t) = start_d exp(eta sum over t - evidence <= s < t of exp(-(t - s) / decay) log_probs[d][s]), normalised
    """
    weights = []
    for t in range(first, len(log_probs[0])):
        unnormalised = []
        for prior, of_document in zip(start, log_probs, strict=True):
            weight = prior
            for s in range(max(0, t - evidence), t):
                weight *= math.exp(of_document[s]) ** (eta * math.exp(-(t - s) / decay))
            unnormalised.append(weight)
        weights.append([weight / sum(unnormalised) for weight in unnormalised])
    return weights


def with_none(scores: Sequence[float], temperature: float, none_score: float) -> list[float]:
    """softmax over [scores / temperature, none_score]."""
    powers = [*(math.exp(score / temperature) for score in scores), math.exp(none_score)]
    return [power / sum(powers) for power in powers]
