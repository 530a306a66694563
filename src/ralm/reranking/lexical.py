"""Lexical reranking: the passage that shares most with the end of the prefix, without a pass of a model.

    f(x, d) = score + 2 overlap

overlap counts the last words of x, at most 32, that stand in d in a row. The scores are those of BM25.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Final

from ralm.options import Part
from ralm.protocols import Rows
from ralm.records import Hits, Passages
from ralm.reranking.oracle import CANDIDATES_KEY, best_hits

LAST: Final = 32
"""Words at the end of a prefix."""
_CHARACTERS: Final = 24 * LAST
_WORD: Final = re.compile(r"\w+|[^\w\s]")
_PASSAGES_KEPT: Final = 4096
_OVERLAP_WEIGHT: Final = 2.0


@lru_cache(_PASSAGES_KEPT)
def spaced(contents: str) -> str:
    """Return the words of a passage with a space around each; punctuation marks are words."""
    return f" {' '.join(_WORD.findall(contents))} "


def ends_of(prefix: str) -> Sequence[str]:
    """Return the last word of a prefix, which may be unfinished, its last two, and so on, as `spaced` has them."""
    words = _WORD.findall(prefix[-_CHARACTERS:])[-LAST:]
    after = "" if prefix[-1:].isalnum() else " "
    return [f" {' '.join(words[-count:])}{after}" for count in range(1, len(words) + 1)]


def shared_words(ends: Sequence[str], passage: str) -> int:
    """Count how many of the last words of a prefix stand in a passage, which is `spaced`, in a row."""
    return bisect_left(ends, True, key=lambda end: end not in passage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexical(Part):
    """Choose by the score of BM25 plus 2 for each of the last words of the prefix that stand in the passage in a row.

    Raises UsageError if `candidates` is below 1.
    """

    named: ClassVar = ("reranker", "lexical")

    candidates: Annotated[int, CANDIDATES_KEY] = 16

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:
        """Return the k best of each row's hits, with f as scores."""
        scores: list[float] = []
        for row, pairs in enumerate(map(hits.of, range(len(hits)))):
            if len(pairs) > 1:
                ends = ends_of(rows.prefix(row))
                shared = [shared_words(ends, spaced(passages[number].contents)) for number, _ in pairs]
                scores += [score + _OVERLAP_WEIGHT * words for (_, score), words in zip(pairs, shared, strict=True)]
        return best_hits(hits, scores, k)
