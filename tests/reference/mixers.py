"""Mixers as plain loops over probabilities, one target and one document at a time, in Python's floats."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np


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


def average(weights: Sequence[float], log_probs: Sequence[np.ndarray]) -> np.ndarray:
    """The logarithm of the average of the distributions `log_probs[d]`."""
    probabilities = np.zeros(len(log_probs[0]))
    for weight, one in zip(weights, log_probs, strict=True):
        probabilities += weight * np.exp(one)
    return np.asarray(np.log(probabilities))


def contrast(with_documents: np.ndarray, without: np.ndarray, alpha: float) -> np.ndarray:
    """CAD: log softmax of (1 + alpha) times the logits with documents less alpha times those without."""
    scores = (1 + alpha) * with_documents - alpha * without
    return np.asarray(scores - scores.max() - math.log(np.sum(np.exp(scores - scores.max()))))


def generate(
    prompt: Sequence[int],
    documents: Mapping[int, Sequence[int]],
    retrieve: Callable[[Sequence[int]], Sequence[tuple[int, float]]],
    next_log_probs: Callable[[Sequence[int]], np.ndarray],
    pick: Callable[[np.ndarray], int],
    *,
    eta: float,
    decay: float,
    evidence: int,
    new_tokens: int,
    stride: int,
    max_length: int,
) -> list[tuple[int, float, list[float]]]:
    """Generation with posterior weights, reading everything from the start: tokens, their log-probabilities, and the
    shares of the documents. `retrieve` gives the documents of a text, each with its weight before any evidence.

    When passages are chosen, each reads the last tokens of the text, as many as all of them have; then every token that
    is drawn is evidence too.
    """
    text, written = list(prompt), []
    for step in range(new_tokens):
        if step % stride == 0:
            found = retrieve(text)
            reads = [trimmed(documents[number], text, max_length) for number, _ in found]
            firsts = [max(1, len(documents[number])) for number, _ in found]
            last = min([evidence, *(len(read) - first for read, first in zip(reads, firsts, strict=True))])
            past = [[next_log_probs(read[:s])[read[s]] for s in range(len(read) - last, len(read))] for read in reads]
        reads = [trimmed(documents[number], text, max_length) for number, _ in found]
        log_probs = [next_log_probs(read) for read in reads]
        start = [weight for _, weight in found]
        padded = [[*map(float, of_document), 0.0] for of_document in past]
        [weights] = posterior(start, padded, len(past[0]), eta, decay, evidence)
        mixed = sum(weight * np.exp(one) for weight, one in zip(weights, log_probs, strict=True))
        token = pick(np.asarray(mixed))
        shares = [
            weight * math.exp(one[token]) / float(mixed[token]) for weight, one in zip(weights, log_probs, strict=True)
        ]
        written.append((token, math.log(mixed[token]), shares))
        text.append(token)
        for of_document, one in zip(past, log_probs, strict=True):
            of_document.append(float(one[token]))
    return written


def score(
    texts: Sequence[Sequence[int]],
    shared: int,
    targets: Sequence[int],
    start: Sequence[float],
    next_log_probs: Callable[[Sequence[int]], np.ndarray],
    *,
    eta: float,
    decay: float,
    evidence: int,
) -> tuple[list[float], list[list[float]]]:
    """The log-probability of each target after texts of which the last `shared` tokens are the same, and the shares of
    the texts in it. These tokens, and then the targets, are the evidence."""
    last = min(evidence, shared)
    log_probs = [
        [
            float(next_log_probs([*text, *targets][:s])[[*text, *targets][s]])
            for s in range(len(text) - last, len(text) + len(targets))
        ]
        for text in texts
    ]
    totals, shares = [], []
    for t, weights in enumerate(posterior(start, log_probs, last, eta, decay, evidence), start=last):
        joint = [weight * math.exp(of_text[t]) for weight, of_text in zip(weights, log_probs, strict=True)]
        totals.append(math.log(sum(joint)))
        shares.append([one / sum(joint) for one in joint])
    return totals, shares


def trimmed(document: Sequence[int], text: Sequence[int], max_length: int) -> list[int]:
    """The document and the text, without its oldest tokens, so that they and the next token fit."""
    return [*document, *text[max(0, len(document) + len(text) + 1 - max_length) :]]
