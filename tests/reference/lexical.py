"""The lexical reranker as plain loops: features of one prefix and one passage, word by word."""

import math
import re
from collections.abc import Mapping


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores, and single marks of punctuation."""
    found: list[str] = []
    for character in text:
        if re.match(r"\s", character):
            found.append("")
        elif re.match(r"\w", character) and found and re.match(r"\w+$", found[-1]):
            found[-1] += character
        else:
            found.append(character)
    return [word for word in found if word]


def overlap(prefix: str, passage: str, last: int) -> int:
    """How many of the last words of the prefix, at most `last`, stand in the passage in a row; the very last one may be
    the beginning of a word, if no space or mark follows it."""
    end, inside = words(prefix)[-last:], words(passage)
    unfinished = prefix[-1:].isalnum()
    best = 0
    for count in range(1, len(end) + 1):
        for start in range(len(inside) - count + 1):
            there, wanted = inside[start : start + count], end[-count:]
            same_last = there[-1].startswith(wanted[-1]) if unfinished else there[-1] == wanted[-1]
            if there[:-1] == wanted[:-1] and same_last:
                best = count
    return best


def near(prefix: str, passage: str, last: int, decay: float) -> float:
    """The sum of exp(-j / decay) over the last words of the prefix that stand in the passage, whatever their case."""
    end, inside = words(prefix)[-last:], {word.lower() for word in words(passage)}
    return sum(math.exp(-j / decay) for j, word in enumerate(reversed(end), 1) if word.lower() in inside)


def score(
    weights: Mapping[str, float], retrieved: float, rank: int, shared: int, nearby: float, likelihood: float
) -> float:
    """f of one passage, whose rank counts from 1."""
    return (
        weights["score"] * retrieved
        + weights["rank"] * math.log(rank)
        + weights["overlap"] * shared
        + weights["log_overlap"] * math.log(1 + shared)
        + weights["near"] * nearby
        + weights["likelihood"] * likelihood
    )
