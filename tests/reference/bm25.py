"""Lucene's BM25 as plain loops over lists of terms, in double precision, straight from the formula."""

import math
from collections.abc import Sequence


def stored_length(length: int) -> int:
    """The length that Lucene reads back from its one-byte norm (SmallFloat.intToByte4): below 24 the length itself,
    above that 24 plus the rest with all but its four highest bits cleared."""
    if length < 24:
        return length
    rest = length - 24
    dropped = max(rest.bit_length() - 4, 0)
    return 24 + (rest >> dropped << dropped)


def score(query: Sequence[str], number: int, passages: Sequence[Sequence[str]], k1: float, b: float) -> float:
    """The score of one passage: the sum over the terms of the query, repeated ones as often as they stand there."""
    with_terms = sum(1 for passage in passages if passage)
    average = sum(len(passage) for passage in passages) / with_terms
    length = stored_length(len(passages[number]))
    total = 0.0
    for term in query:
        frequency = passages[number].count(term)
        if frequency > 0:
            having = sum(1 for passage in passages if term in passage)
            idf = math.log(1 + (with_terms - having + 0.5) / (having + 0.5))
            total += idf * frequency / (frequency + k1 * (1 - b + b * length / average))
    return total


def ranked(
    query: Sequence[str], passages: Sequence[Sequence[str]], k1: float = 0.9, b: float = 0.4
) -> list[tuple[int, float]]:
    """Every passage that shares a term with the query, with its score, the best first."""
    found = [
        (number, score(query, number, passages, k1, b))
        for number in range(len(passages))
        if any(term in passages[number] for term in query)
    ]
    return sorted(found, key=lambda hit: (-hit[1], hit[0]))
