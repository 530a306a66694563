"""Turns documents into numbered passages: drops forbidden documents, splits the rest, drops overlapping passages."""

from collections.abc import Iterable, Iterator

from ralm.corpus.decontamination import BY_OVERLAP, BY_TITLE, Decontamination, Removals, Removed
from ralm.corpus.splitting import Splitting, split_text
from ralm.protocols import Tokenizer
from ralm.records import Document, Passage


def make_passages(
    documents: Iterable[Document],
    splitting: Splitting | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    decontamination: Decontamination | None = None,
    removals: Removals | None = None,
) -> Iterator[Passage]:
    """Yield the passages of documents, numbered from 0 in order; `removals` counts what is left out.

    Numbers have no gaps: a passage that is left out gets no number. `tokenizer` is needed if `splitting` counts tokens.
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
        _remove(BY_TITLE, document, sum(1 for _ in texts), removals)
    elif not decontamination.hashes:
        yield from texts
    else:
        left_out = 0
        for text in texts:
            if decontamination.overlaps(text):
                left_out += 1
            else:
                yield text
        _remove(BY_OVERLAP, document, left_out, removals)


def _remove(reason: str, document: Document, passages: int, removals: Removals) -> None:
    if passages:
        removals.add(Removed(reason=reason, document_id=document.id, title=document.title, passages=passages))
