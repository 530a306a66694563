"""Documents in, numbered passages out: forbidden documents dropped, the rest split, overlapping passages dropped."""

from collections.abc import Iterable, Iterator

from ralm.corpus.decontamination import BY_OVERLAP, BY_TITLE, Decontamination, Removals
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
    """The passages of documents, numbered from 0 in order, one at a time; what is left out is counted in `removals`."""
    splitting = splitting or Splitting()
    decontamination = decontamination or Decontamination()
    removals = removals if removals is not None else Removals()
    number = 0
    for document in documents:
        texts = split_text(document.text, splitting, tokenizer)
        if decontamination.forbids(document):
            removals.add(BY_TITLE, document, sum(1 for _ in texts))
            continue
        for text in texts:
            if decontamination.overlaps(text):
                removals.add(BY_OVERLAP, document)
                continue
            yield Passage(number=number, document_id=document.id, title=document.title, text=text)
            number += 1
