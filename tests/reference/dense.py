"""Brute-force search and the fusion of rankings as plain loops, in double precision, straight from the formulae."""

from collections.abc import Sequence

Ranking = Sequence[tuple[int, float]]
"""Passage numbers with their scores, the best first."""


def ranked(query: Sequence[float], vectors: Sequence[Sequence[float]], k: int) -> list[tuple[int, float]]:
    """The k largest inner products; of equal ones the lower number first."""
    scores = [sum(float(a) * float(b) for a, b in zip(query, vector, strict=True)) for vector in vectors]
    best = sorted(range(len(vectors)), key=lambda number: (-scores[number], number))
    return [(number, scores[number]) for number in best[:k]]


def reciprocal_ranks(rankings: Sequence[Ranking], k: int) -> list[tuple[int, float]]:
    """Cormack et al. (2009): the sum over rankings of 1 / (60 + rank)."""
    numbers = {number for ranking in rankings for number, _ in ranking}
    scores = {}
    for number in numbers:
        scores[number] = 0.0
        for ranking in rankings:
            for rank, (other, _) in enumerate(ranking, 1):
                if other == number:
                    scores[number] += 1 / (60 + rank)
    return _best(scores, k)


def interpolated_scores(rankings: Sequence[Ranking], weights: Sequence[float], k: int) -> list[tuple[int, float]]:
    """Bruch et al. (2023): the weighted sum of scores scaled to 0 .. 1 within each ranking; 0 for what one lacks."""
    scores: dict[int, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for number, score in ranking:
            lowest, highest = min(s for _, s in ranking), max(s for _, s in ranking)
            scaled = (score - lowest) / (highest - lowest) if highest > lowest else 1.0
            scores[number] = scores.get(number, 0.0) + weight * scaled
    return _best(scores, k)


def _best(scores: dict[int, float], k: int) -> list[tuple[int, float]]:
    return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:k]
