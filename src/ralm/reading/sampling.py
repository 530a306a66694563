"""One token from a distribution: the likeliest, or one drawn at random.

Works on log-probabilities; knows nothing of the model or the mixture that they came from. V: vocabulary.
"""

import numpy as np

from ralm.records import DoubleArray, FloatArray, IntArray


def sample(
    log_probs_V: FloatArray,
    generator: np.random.Generator,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> int:
    """A token id: the likeliest at temperature 0 (the first of equals), else drawn by top-k and nucleus sampling.

    The nucleus is the smallest set of likeliest tokens whose probability reaches `top_p`, after temperature and
    relative to the `top_k` likeliest tokens.
    """
    if temperature == 0:
        return int(np.argmax(log_probs_V))
    scaled_V = log_probs_V.astype(np.float64) / temperature
    weights_V = np.exp(scaled_V - scaled_V.max())
    tokens = np.arange(len(weights_V)) if top_k is None else _likeliest(weights_V, top_k)
    if top_p < 1:
        tokens = _nucleus(weights_V, tokens, top_p)
    cumulated = np.cumsum(weights_V[tokens])
    # in the order of ids, so that a change in the last digits of the weights does not change the drawn token
    place = np.searchsorted(cumulated, generator.random() * cumulated[-1], side="right")
    return int(tokens[min(place, len(tokens) - 1)])


def _likeliest(weights_V: DoubleArray, count: int) -> IntArray:
    """The ids of the `count` largest weights."""
    if count >= len(weights_V):
        return np.arange(len(weights_V))
    return np.sort(np.argpartition(weights_V, -count)[-count:])


def _nucleus(weights_V: DoubleArray, tokens: IntArray, top_p: float) -> IntArray:
    """The smallest set of largest weights among `tokens` whose sum reaches `top_p` of the total.

    Weights below (1 - top_p) of the mean sum to less than the part that is left out, so they are not sorted.
    """
    weights = weights_V[tokens]
    enough = top_p * weights.sum()
    candidates = tokens[weights >= (1 - top_p) * weights.mean()]
    ordered = candidates[np.argsort(-weights_V[candidates], kind="stable")]
    return np.sort(ordered[: int(np.searchsorted(np.cumsum(weights_V[ordered]), enough)) + 1])
