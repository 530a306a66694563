"""The losses of learning from a language model, and their gradients, as plain loops over one example.

In-Context RALM (Ram et al., 2023), Eq. 7-9; REPLUG (Shi et al., 2023), section 4.
"""

import math
from collections.abc import Sequence


def softmax(values: Sequence[float]) -> list[float]:
    highest = max(values)
    powers = [math.exp(value - highest) for value in values]
    return [power / sum(powers) for power in powers]


def marginal_loss(scores: Sequence[float], log_probs: Sequence[float]) -> float:
    """Eq. 9: minus the log of the likelihood of y, averaged over the candidates that the reranker may choose."""
    chosen = softmax(scores)
    highest = max(log_probs)
    total = sum(p * math.exp(log_prob - highest) for p, log_prob in zip(chosen, log_probs, strict=True))
    return -math.log(total) - highest


def marginal_gradient(scores: Sequence[float], log_probs: Sequence[float]) -> list[float]:
    """The derivative of Eq. 9 by each score: p_rank(d_i), minus its share of the averaged likelihood."""
    chosen = softmax(scores)
    highest = max(log_probs)
    shares = [p * math.exp(log_prob - highest) for p, log_prob in zip(chosen, log_probs, strict=True)]
    return [p - share / sum(shares) for p, share in zip(chosen, shares, strict=True)]


def lm_score(log_probs: Sequence[float], semantics: str) -> float:
    """What Q is the softmax of, from the log-probabilities of a continuation's tokens: as REPLUG writes, their product
    p(y | d, x); or their mean logarithm."""
    if semantics == "mean":
        return sum(log_probs) / len(log_probs)
    product = 1.0
    for log_prob in log_probs:
        product *= math.exp(log_prob)
    return product


def divergence_loss(scores: Sequence[float], lm_scores: Sequence[float], gamma: float, beta: float) -> float:
    """KL(Q || P): how far the retriever's choice is from that of the language model."""
    p = softmax([score / gamma for score in scores])
    q = softmax([score / beta for score in lm_scores])
    return sum(one * math.log(one / other) for one, other in zip(q, p, strict=True) if one > 0)


def divergence_gradient(scores: Sequence[float], lm_scores: Sequence[float], gamma: float, beta: float) -> list[float]:
    """The derivative of the divergence by each score; Q is constant."""
    p = softmax([score / gamma for score in scores])
    q = softmax([score / beta for score in lm_scores])
    return [(one - other) / gamma for one, other in zip(p, q, strict=True)]
