"""Whether replaced passages can change the most likely token of an average, as a plain loop over what can be replaced.

The average is uniform over K passages. Of a set of t replaced passages the predictions may become anything, so the
worst for token a is that all of them predict the same other token b for certain. A token stays the most likely one if
it does so for every such set and every b.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations


def worst_margins(probabilities: Sequence[Sequence[float]], token: int, replaced: int) -> Iterator[float]:
    """By how much token `token` leads each other token, after the worst for each set of replaced passages."""
    count = len(probabilities)
    for changed in combinations(range(count), replaced):
        for other in range(len(probabilities[0])):
            if other != token:
                lead = 0.0
                for passage, row in enumerate(probabilities):
                    lead += -1.0 if passage in changed else row[token] - row[other]
                yield lead / count


def withstands(probabilities: Sequence[Sequence[float]], token: int, replaced: int) -> bool:
    """Whether `token` stays the most likely one, whichever passages are replaced and by whatever."""
    return min(worst_margins(probabilities, token, replaced)) > 0
