"""REPLUG's ensemble as a plain loop (Shi et al., 2023, section 3.2 and Eq. 2): one document, one token at a time."""

import math
from collections.abc import Sequence

import torch


def weights(similarities: Sequence[float], temperature: float = 1.0) -> list[float]:
    """softmax(similarity / temperature)."""
    highest = max(similarities)
    powers = [math.exp((similarity - highest) / temperature) for similarity in similarities]
    return [power / sum(powers) for power in powers]


def target_probabilities(
    model: torch.nn.Module, contexts: Sequence[Sequence[int]], targets: Sequence[int], lambdas: Sequence[float]
) -> list[list[float]]:
    """lambda_d p(y | [d; x]) of every target, by document; `contexts[d]` is [d; x] as token ids."""
    shares = []
    for context, weight in zip(contexts, lambdas, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*context, *targets]])).logits[0].double()
        probabilities = logits.softmax(-1)
        shares.append([weight * float(probabilities[len(context) + i - 1, y]) for i, y in enumerate(targets)])
    return shares
