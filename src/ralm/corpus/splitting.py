"""Splits documents into numbered passages: of 100 words as in the papers, of model tokens, or where their text is.

A passage is a slice of its document without white space at its ends. Those of words and tokens do not overlap, and only
white space is lost between them.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import numpy as np

from ralm.corpus.decontamination import BY_OVERLAP, BY_TITLE, Decontamination, Removals
from ralm.corpus.structure import Piece, split_by_sentences, split_by_structure
from ralm.corpus.words import characters, runs_of_words
from ralm.errors import UsageError
from ralm.options import Option, check_options
from ralm.protocols import FullTokenizer
from ralm.records import Document, Passage

BELOW: Final = " > "
"""Between the title of a document and the headings that a passage stands under."""
_MAX_TITLE: Final = 4096  # characters; every passage repeats it


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """Where passages end, and their length: `words` separated by white space, or `tokens` of a language model if given.

    With `split` "structure" a passage holds whole paragraphs, list items, rows of tables and blocks of code of one
    section, and its title ends with the headings. Raises UsageError if a length is invalid.
    """

    split: Annotated[
        Literal["words", "sentences", "structure"],
        Option(
            "Where passages end: after a number of words, after sentences, or where the text is: headings, paragraphs, "
            "list items, rows of tables."
        ),
    ] = "words"

    words: Annotated[
        int,
        Option("Words per passage, at most."),
    ] = 100
    overlap_words: Annotated[
        int,
        Option(
            "Words at the end of a passage that stand in the next one too, at most.",
            minimum=0,
        ),
    ] = 0
    tokens: Annotated[
        int | None,
        Option("Tokens of `lm` per passage, instead of words."),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.split == "words" and self.overlap_words:
            raise UsageError('`overlap_words` has no effect without `split="sentences"` or `"structure"`.')
        if self.split != "words" and self.tokens is not None:
            raise UsageError('`tokens` has no effect without `split="words"`.')
        if self.split != "words" and self.overlap_words >= self.words:
            raise UsageError(f"`overlap_words` must be below `words`, {self.words}, not {self.overlap_words}.")


def split_document(document: Document, splitting: Splitting, tokenizer: FullTokenizer | None = None) -> Iterator[Piece]:
    """Return the passages of a document in order; `tokenizer` is needed if passages are measured in tokens."""
    if splitting.split == "structure":
        return split_by_structure(document.text, document.headings, splitting.words, splitting.overlap_words)
    if splitting.split == "sentences":
        return split_by_sentences(document.text, splitting.words, splitting.overlap_words)
    if splitting.tokens is None:
        return split_by_words(document.text, splitting.words)
    assert tokenizer is not None, "passages of tokens need a tokenizer"
    return split_by_model_tokens(document.text, tokenizer, splitting.tokens)


def split_by_words(text: str, words: int) -> Iterator[Piece]:
    """Return slices of `words` words, the last one possibly shorter; `ralm.corpus.words` says what counts as one."""
    return (Piece(match[0], match.start(), match.end()) for match in runs_of_words(text, words))


def split_by_model_tokens(text: str, tokenizer: FullTokenizer, tokens: int) -> Iterator[Piece]:
    """Yield slices of at most `tokens` tokens; no character is split from its marks, even if it has more tokens."""
    _, spans_N2 = tokenizer.encode_with_spans(text)
    whole = spans_N2[1:, 0] >= spans_N2[:-1, 1]
    if not text.isascii():
        whole &= np.isin(spans_N2[1:, 0], [character.end() for character in characters(text)])
    ends = [*(np.flatnonzero(whole) + 1).tolist(), len(spans_N2)]
    begin = 0
    while begin < len(spans_N2):
        place = bisect_right(ends, begin + tokens) - 1
        end = ends[place] if place >= 0 and ends[place] > begin else ends[place + 1]
        first, last = int(spans_N2[begin, 0]), int(spans_N2[end - 1, 1])
        if piece := text[first:last].strip():
            yield Piece(piece, first, last)
        begin = end


def make_passages(
    documents: Iterable[Document],
    splitting: Splitting | None = None,
    *,
    tokenizer: FullTokenizer | None = None,
    decontamination: Decontamination | None = None,
    removals: Removals | None = None,
) -> Iterator[Passage]:
    """Yield the passages of documents, numbered from 0 in order; removed passages get no number.

    Args:
        documents: Documents in order.
        splitting: Where passages end; by default after 100 words.
        tokenizer: Needed if `splitting` counts tokens.
        decontamination: What is removed; by default nothing.
        removals: Counts what is removed.
    """
    splitting = splitting or Splitting()
    decontamination = decontamination or Decontamination()
    removals = removals if removals is not None else Removals()
    number = 0
    for document in documents:
        pieces = split_document(document, splitting, tokenizer)
        for text, _, _, path in _allowed(document, pieces, decontamination, removals):
            under = (heading for heading in path if heading.casefold() != document.title.casefold())
            title = BELOW.join((document.title, *under))
            yield Passage(number, document.id, title[:_MAX_TITLE], text, metadata=document.metadata)
            number += 1


def _allowed(
    document: Document, pieces: Iterator[Piece], decontamination: Decontamination, removals: Removals
) -> Iterator[Piece]:
    """Yield the passages that are kept; the others are added to `removals` in one entry per document."""
    if decontamination.forbids(document):
        if removed := sum(1 for _ in pieces):
            removals.add(BY_TITLE, document.id, document.title, removed)
    elif not decontamination.hashes:
        yield from pieces
    else:
        every = [*pieces]
        overlaps = decontamination.overlaps(document.text, [(piece.begin, piece.end) for piece in every])
        yield from (piece for piece, left_out in zip(every, overlaps, strict=True) if not left_out)
        if removed := sum(overlaps):
            removals.add(BY_OVERLAP, document.id, document.title, removed)
