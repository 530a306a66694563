"""Documents cut into passages that do not overlap: so many words each (the papers' 100), or so many tokens of a model.

A passage is a slice of its document, white space within it kept and at its ends taken off. Nothing but white space
is lost between passages.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final

from ralm.options import Needs, Option, check_options
from ralm.protocols import Tokenizer
from ralm.records import IntArray

_HALF_CHARACTER: Final = "\N{REPLACEMENT CHARACTER}"
_TOKENS_A_CHARACTER: Final = 4  # a character is at most four bytes, and no token is less than a byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """How long a passage is: `words` between white space, or `tokens` of a language model where given.

    Raises UsageError where a length makes no sense.
    """

    words: Annotated[
        int,
        Option(
            "Words a passage.",
            needs=Needs("passages of words, not of `tokens`", lambda splitting: splitting.tokens is None),
        ),
    ] = 100
    tokens: Annotated[int | None, Option("Tokens of `lm` a passage, instead of words.")] = None

    def __post_init__(self) -> None:
        check_options(self)


def split_text(text: str, splitting: Splitting, tokenizer: Tokenizer | None = None) -> Iterator[str]:
    """The passages of a text in order; `tokenizer` is needed where passages are measured in tokens."""
    if splitting.tokens is None:
        return split_by_words(text, splitting.words)
    assert tokenizer is not None, "passages of tokens need a tokenizer"
    return split_by_tokens(text, tokenizer, splitting.tokens)


def split_by_words(text: str, words: int) -> Iterator[str]:
    """Slices of `words` words, the last one shorter; words are what `str.split` gives."""
    return (match.group() for match in _some_words(words).finditer(text))


def split_by_tokens(text: str, tokenizer: Tokenizer, tokens: int) -> Iterator[str]:
    """Slices of at most `tokens` tokens; a character of several tokens is never cut through.

    Where a single character has more than `tokens` tokens the passage is that character. Slices are of the text itself
    even where the tokenizer changes white space as it decodes; where it changes more (case, accents) they are what it
    decodes.
    """
    ids = tokenizer.encode(text)
    begin = position = 0
    while begin < len(ids):
        end, decoded = _whole_characters(ids, begin, min(begin + tokens, len(ids)), tokenizer)
        piece, position = _slice_of(text, position, decoded)
        if piece:
            yield piece
        begin = end


def _whole_characters(ids: IntArray, begin: int, end: int, tokenizer: Tokenizer) -> tuple[int, str]:
    """The place nearest to `end`, before it if there is one, where no character is cut through; and the text to there.

    It is `end` itself where there is none within a character's length: the text has a half character of its own.
    """
    earlier = range(end, max(begin, end - _TOKENS_A_CHARACTER), -1)
    later = range(end + 1, min(len(ids), end + _TOKENS_A_CHARACTER) + 1)
    for candidate in (*earlier, *later):
        decoded = tokenizer.decode(ids[begin:candidate])
        if candidate == len(ids) or not decoded.endswith(_HALF_CHARACTER):
            return candidate, decoded
    return end, tokenizer.decode(ids[begin:end])


def _slice_of(text: str, position: int, decoded: str) -> tuple[str, int]:
    """The slice of `text` from `position` on that is `decoded` but for white space, without any at its ends; and where
    it ends. `decoded` itself, and the same position, where the text goes on differently there.
    """
    if text.startswith(decoded, position):
        return decoded.strip(), position + len(decoded)
    letters = "".join(decoded.split())
    end = position
    for letter in letters:
        while end < len(text) and text[end].isspace():
            end += 1
        if end == len(text) or text[end] != letter:
            return decoded.strip(), position
        end += 1
    return text[position:end].strip(), end


@lru_cache
def _some_words(words: int) -> re.Pattern[str]:
    """Up to so many words with the white space between them; possessive, so that nothing is tried twice."""
    return re.compile(rf"\S++(?:\s++\S++){{0,{words - 1}}}+")
