"""Brute-force search and the fusion of rankings as plain loops, in double precision, straight from the formulae."""

from collections.abc import Sequence

Ranking = Sequence[tuple[int, float]]
"""Passage numbers with their scores, the best first."""


def ranked(query: Sequence[float], vectors: Sequence[Sequence[float]], k: int) -> list[tuple[int, float]]:
    """The k largest inner products; of equal ones the lower number first."""
    scores = [sum(float(a) * float(b) for a, b in zip(query, vector, strict=True)) for vector in vectors]
    best = sorted(range(len(vectors)), key=lambda number: (-scores[number], number))
    return [(number, scores[number]) for number in best[:k]]
