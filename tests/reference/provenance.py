"""Gains and what each passage was worth, as a plain loop over targets and documents."""

from collections.abc import Sequence

NO_PASSAGE = -1


def contributions(
    log_probs: Sequence[float],
    baseline: Sequence[float],
    passages: Sequence[Sequence[int]],
    posteriors: Sequence[Sequence[float]],
) -> dict[int, dict[str, float]]:
    """By passage: gain, tokens, helped, hurt. A target gives each of its documents posterior x gain."""
    worth: dict[int, dict[str, float]] = {}
    for target in range(len(log_probs)):
        gain = log_probs[target] - baseline[target]
        documents = list(zip(passages[target], posteriors[target], strict=True))
        for passage, posterior in documents:
            if passage != NO_PASSAGE:
                row = worth.setdefault(passage, {"gain": 0.0, "tokens": 0, "helped": 0, "hurt": 0})
                row["gain"] += posterior * gain
        lead, _ = max(documents, key=lambda document: document[1])
        if lead != NO_PASSAGE:
            worth[lead]["tokens"] += 1
            worth[lead]["helped"] += gain > 0
            worth[lead]["hurt"] += gain < 0
    return worth
