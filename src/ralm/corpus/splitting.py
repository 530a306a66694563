"""Splits documents into numbered passages: of 100 words as in the papers, of model tokens, or where their text is.

A passage is a slice of its document without white space at its ends. Those of words and tokens do not overlap, and only
white space is lost between them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from ralm.corpus.decontamination import BY_OVERLAP, BY_TITLE, Decontamination, Removals
from ralm.corpus.structure import Piece, runs_of_words, split_by_sentences, split_by_structure
from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options
from ralm.protocols import Tokenizer
from ralm.records import Document, IntArray, Passage

_HALF_CHARACTER: Final = "\N{REPLACEMENT CHARACTER}"
BELOW: Final = " > "
"""Between the title of a document and the headings that a passage stands under."""
_MAX_TITLE: Final = 4096  # characters; every passage repeats it
_TOKENS_A_CHARACTER: Final = 4  # a character has at most four bytes, and a token at least one


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """Where passages end, and their length: `words` separated by white space, or `tokens` of a language model if given.

    With `split` "sentences" a passage holds whole sentences, at most `words` words of them; with "structure" whole
    paragraphs, list items, rows of tables and blocks of code of one section, and its title ends with the headings. Then
    `overlap_words` is how many words at the end of a passage may stand in the next one too.

    Raises UsageError if a length is invalid.
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
        Option(
            "Words per passage, at most.",
            needs=Needs("passages of words, not of `tokens`", lambda splitting: splitting.tokens is None),
        ),
    ] = 100
    overlap_words: Annotated[
        int,
        Option(
            "Words at the end of a passage that stand in the next one too, at most.",
            minimum=0,
            needs=Needs('`split="sentences"` or `"structure"`', lambda splitting: splitting.split != "words"),
        ),
    ] = 0
    tokens: Annotated[
        int | None,
        Option(
            "Tokens of `lm` per passage, instead of words.",
            needs=Needs('`split="words"`', lambda splitting: splitting.split == "words"),
        ),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.split != "words" and self.overlap_words >= self.words:
            raise UsageError(f"`overlap_words` must be below `words`, {self.words}, not {self.overlap_words}.")


def split_document(document: Document, splitting: Splitting, tokenizer: Tokenizer | None = None) -> Iterator[Piece]:
    """The passages of a document in order; `tokenizer` is needed if passages are measured in tokens."""
    if splitting.split == "structure":
        return split_by_structure(document.text, document.headings, splitting.words, splitting.overlap_words)
    if splitting.split == "sentences":
        return split_by_sentences(document.text, splitting.words, splitting.overlap_words)
    if splitting.tokens is None:
        return map(Piece, split_by_words(document.text, splitting.words))
    assert tokenizer is not None, "passages of tokens need a tokenizer"
    return map(Piece, split_by_model_tokens(document.text, tokenizer, splitting.tokens))


def split_by_words(text: str, words: int) -> Iterator[str]:
    """Slices of `words` words, the last one possibly shorter; words are those of `str.split`."""
    return (match.group() for match in runs_of_words(words).finditer(text))


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
        pieces = split_document(document, splitting, tokenizer)
        for text, path in _allowed(document, pieces, decontamination, removals):
            title = (
                BELOW.join([document.title, *(one for one in path if one.casefold() != document.title.casefold())])
                if path
                else document.title
            )
            yield Passage(number, document.id, title[:_MAX_TITLE], text, metadata=document.metadata)
            number += 1


def _allowed(
    document: Document, pieces: Iterator[Piece], decontamination: Decontamination, removals: Removals
) -> Iterator[Piece]:
    """The passages that are kept; the others are added to `removals` in one entry per document."""
    if decontamination.forbids(document):
        if removed := sum(1 for _ in pieces):
            removals.add(BY_TITLE, document.id, document.title, removed)
    elif not decontamination.hashes:
        yield from pieces
    else:
        removed = 0
        for piece in pieces:
            if decontamination.overlaps(piece.text):
                removed += 1
            else:
                yield piece
        if removed:
            removals.add(BY_OVERLAP, document.id, document.title, removed)
