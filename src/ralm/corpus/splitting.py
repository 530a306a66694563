"""Splits documents into numbered passages that do not overlap, of 100 words as in the papers, or of model tokens.

A passage is a slice of its document without white space at its ends. Only white space is lost between passages.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from ralm.corpus.decontamination import BY_OVERLAP, BY_TITLE, Decontamination, Removals
from ralm.options import Needs, Option, check_options
from ralm.protocols import Tokenizer
from ralm.records import Document, IntArray, Passage

_HALF_CHARACTER: Final = "\N{REPLACEMENT CHARACTER}"
_TOKENS_A_CHARACTER: Final = 4  # a character has at most four bytes, and a token at least one


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """The length of a passage: `words` separated by white space, or `tokens` of a language model if given.

    Raises UsageError if a length is invalid.
    """

    words: Annotated[
        int,
        Option(
            "Words per passage.",
            needs=Needs("passages of words, not of `tokens`", lambda splitting: splitting.tokens is None),
        ),
    ] = 100
    tokens: Annotated[int | None, Option("Tokens of `lm` per passage, instead of words.")] = None

    def __post_init__(self) -> None:
        check_options(self)


def split_text(text: str, splitting: Splitting, tokenizer: Tokenizer | None = None) -> Iterator[str]:
    """The passages of a text in order; `tokenizer` is needed if passages are measured in tokens."""
    if splitting.tokens is None:
        return split_by_words(text, splitting.words)
    assert tokenizer is not None, "passages of tokens need a tokenizer"
    return split_by_model_tokens(text, tokenizer, splitting.tokens)


def split_by_words(text: str, words: int) -> Iterator[str]:
    """Slices of `words` words, the last one possibly shorter; words are those of `str.split`."""
    several = rf"\S++(?:\s++\S++){{0,{words - 1}}}+"  # possessive, to avoid backtracking
    return (match.group() for match in re.finditer(several, text))


def split_by_model_tokens(text: str, tokenizer: Tokenizer, tokens: int) -> Iterator[str]:
    """Slices of at most `tokens` tokens; a character of several tokens is never split.

    A single character of more than `tokens` tokens is a passage of its own. The slices come from the text itself, even
    if decoding changes white space. If decoding changes more (case, accents), the passages are the decoded text.
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
    """The place nearest to `end`, preferably before it, that does not split a character; and the text up to it.

    It is `end` itself if there is none within a character's length: then the text itself has a replacement character.
    """
    earlier = range(end, max(begin, end - _TOKENS_A_CHARACTER), -1)
    later = range(end + 1, min(len(ids), end + _TOKENS_A_CHARACTER) + 1)
    for candidate in (*earlier, *later):
        decoded = tokenizer.decode(ids[begin:candidate])
        if candidate == len(ids) or not decoded.endswith(_HALF_CHARACTER):
            return candidate, decoded
    return end, tokenizer.decode(ids[begin:end])


def _slice_of(text: str, position: int, decoded: str) -> tuple[str, int]:
    """The slice of `text` from `position` that equals `decoded` except for white space, stripped; and where it ends.

    If the text differs there: `decoded` itself, stripped, and the same position.
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


def make_passages(
    documents: Iterable[Document],
    splitting: Splitting | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    decontamination: Decontamination | None = None,
    removals: Removals | None = None,
) -> Iterator[Passage]:
    """Yield the passages of documents, numbered from 0 in order; `removals` counts what decontamination removes.

    Numbers have no gaps: a removed passage gets no number. `tokenizer` is needed if `splitting` counts tokens.
    """
    splitting = splitting or Splitting()
    decontamination = decontamination or Decontamination()
    removals = removals if removals is not None else Removals()
    number = 0
    for document in documents:
        texts = split_text(document.text, splitting, tokenizer)
        for text in _allowed(document, texts, decontamination, removals):
            yield Passage(number, document.id, document.title, text, metadata=document.metadata)
            number += 1


def _allowed(
    document: Document, texts: Iterator[str], decontamination: Decontamination, removals: Removals
) -> Iterator[str]:
    """The texts that are kept; the others are added to `removals` in one entry per document."""
    if decontamination.forbids(document):
        if removed := sum(1 for _ in texts):
            removals.add(BY_TITLE, document.id, document.title, removed)
    elif not decontamination.hashes:
        yield from texts
    else:
        removed = 0
        for text in texts:
            if decontamination.overlaps(text):
                removed += 1
            else:
                yield text
        if removed:
            removals.add(BY_OVERLAP, document.id, document.title, removed)
