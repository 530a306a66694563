"""Documents cut into passages that do not overlap: so many words each (the papers' 100), or so many tokens of a model.

A passage is a slice of its document, white space within it kept and at its ends taken off.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from ralm.errors import UsageError
from ralm.protocols import Tokenizer

_HALF_CHARACTER: Final = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """How long a passage is: `words` between white space, or `tokens` of a language model where given.

    Raises UsageError where a length is below 1.
    """

    words: int = 100
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name, length in (("--words", self.words), ("--tokens", self.tokens)):
            if length is not None and length < 1:
                raise UsageError(f"{name} must be at least 1, not {length}.")


def split_text(text: str, splitting: Splitting, tokenizer: Tokenizer | None = None) -> Iterator[str]:
    """The passages of a text in order; `tokenizer` is needed where passages are measured in tokens."""
    if splitting.tokens is None:
        return split_by_words(text, splitting.words)
    assert tokenizer is not None, "passages of tokens need a tokenizer"
    return split_by_tokens(text, tokenizer, splitting.tokens)


def split_by_words(text: str, words: int) -> Iterator[str]:
    """Slices of `words` words, the last one shorter."""
    return (match.group() for match in _some_words(words).finditer(text))


def split_by_tokens(text: str, tokenizer: Tokenizer, tokens: int) -> Iterator[str]:
    """Slices of at most `tokens` tokens; a character of several tokens is not cut through."""
    ids = tokenizer.encode(text)
    begin = 0
    while begin < len(ids):
        end = _whole_characters(ids, begin, min(begin + tokens, len(ids)), tokenizer)
        if piece := tokenizer.decode(ids[begin:end]).strip():
            yield piece
        begin = end


def _whole_characters(ids: np.ndarray, begin: int, end: int, tokenizer: Tokenizer) -> int:
    """The last place up to `end` where no character is cut through; `end` itself where there is none."""
    for candidate in range(end, max(begin, end - 4), -1):
        if candidate == len(ids) or not tokenizer.decode(ids[begin:candidate]).endswith(_HALF_CHARACTER):
            return candidate
    return end


@lru_cache
def _some_words(words: int) -> re.Pattern[str]:
    """Up to so many words with the white space between them; possessive, so that nothing is tried twice."""
    return re.compile(rf"\S++(?:\s++\S++){{0,{words - 1}}}+")
