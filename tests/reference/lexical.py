"""The lexical reranker as plain loops: the overlap of one prefix and one passage, word by word."""

import re


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
