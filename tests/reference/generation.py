"""Ensemble generation as a plain loop (Ram et al., 2023, section 3.2; Shi et al., 2023, Eq. 2): no caches, one
document, one token at a time, and probabilities that are averaged as such."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

NO_DOCUMENT = -1


@dataclass(frozen=True)
class Step:
    """A token, its probability in the average, and for each document its number and its part of that probability."""

    token: int
    probability: float
    numbers: list[int]
    parts: list[float]
    average: np.ndarray


def generate(
    prompt: Sequence[int],
    documents: Mapping[int, Sequence[int]],
    retrieve: Callable[[Sequence[int]], Sequence[tuple[int, float]]],
    next_probabilities: Callable[[Sequence[int]], np.ndarray],
    pick: Callable[[np.ndarray], int],
    *,
    weights: Callable[[Sequence[float]], Sequence[float]],
    new_tokens: int,
    stride: int,
    max_length: int,
    end_tokens: Collection[int] = (),
    first: Sequence[int] = (),
) -> list[Step]:
    """`retrieve` gives numbers and scores for a text; `weights` turns scores into lambdas; `first` are the special
    tokens that a reading without document begins with, as documents do."""
    text = list(prompt)
    steps: list[Step] = []
    for step in range(new_tokens):
        if step % stride == 0:
            hits = retrieve(text) or [(NO_DOCUMENT, 0.0)]
            lambdas = weights([score for _, score in hits])
        parts = []
        for (number, _), weight in zip(hits, lambdas, strict=True):
            read = [*documents[number], *text] if number != NO_DOCUMENT else [*first, *text]
            document_length = len(read) - len(text)
            while len(read) + 1 > max_length:
                del read[document_length]
            parts.append(weight * next_probabilities(read))
        average = sum(parts)
        token = pick(np.asarray(average))
        if token in end_tokens:
            return steps
        of_token = [float(part[token]) for part in parts]
        steps.append(Step(token, sum(of_token), [number for number, _ in hits], of_token, np.asarray(average)))
        text.append(token)
    return steps


def model_probabilities(model: torch.nn.Module) -> Callable[[Sequence[int]], np.ndarray]:
    """The next token's probabilities (float64) under a transformers model that reads the whole text each time."""

    def next_probabilities(read: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([list(read)])).logits[0, -1].double()
        return np.asarray(logits.softmax(-1).numpy())

    return next_probabilities
