"""One token from a distribution: the likeliest, or one that is drawn.

Works on log-probabilities; knows nothing of the model or the mixture that they came from. V: vocabulary.
"""

import numpy as np

from ralm.records import FloatArray


def sample(
    log_probs_V: FloatArray,
    generator: np.random.Generator,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> int:
    """A token id: the likeliest at temperature 0 (the first of equals), else drawn by top-k and nucleus sampling.

    Of the `top_k` likeliest tokens, the nucleus is the smallest set of likeliest ones whose probability, after
    temperature and among these, reaches `top_p`.
    """
    if temperature == 0:
        return int(np.argmax(log_probs_V))
    logits_V = log_probs_V.astype(np.float64) / temperature
    order_V = np.argsort(-logits_V, kind="stable")[:top_k]
    probs_V = np.exp(logits_V[order_V] - logits_V[order_V[0]])
    probs_V /= probs_V.sum()
    kept = int(np.searchsorted(np.cumsum(probs_V), top_p)) + 1
    nucleus = probs_V[:kept] / probs_V[:kept].sum()
    return int(order_V[generator.choice(len(nucleus), p=nucleus)])
