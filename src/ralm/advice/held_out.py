"""The units that a verdict is measured on: documents of the corpus itself, documents of a text, or questions.

Each unit has examples (`ralm.training.examples`): prefixes with their continuations. Passages of the unit's own
document are never candidates, and the runs of 13 words of the whole unit tell which passages are near duplicates of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Final

import numpy as np

from ralm.answering.questions import Question
from ralm.corpus.decontamination import NGRAM, Decontamination
from ralm.corpus.words import bare_words
from ralm.errors import TextError, UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.options import Option, check_options, seed_option
from ralm.protocols import Tokenizer
from ralm.records import Document
from ralm.retrieval.expansion import ExpandedPassages
from ralm.retrieval.index import Index
from ralm.training.examples import Example, queries_of, sample_examples
from ralm.training.options import ExampleOptions

SEQUENCE: Final = 256
_BLOCK: Final = 512
"""Tokens of a text that count as a document, if it has too few documents."""
_LONGEST_ANSWER: Final = 32
STANDS_IN: Final = 0.5
"""Of a passage whose runs of 13 words are to more than this share in a unit, the document is a copy of the unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthOptions:
    """What a verdict is measured on. Raises UsageError if a value is out of range."""

    most: Annotated[int, Option("Most documents or questions to measure.", minimum=16, flag="units")] = 256
    strides: Annotated[int, Option("Consecutive strides of 4 tokens to measure in each document.")] = 16
    prefix_tokens: Annotated[int, Option("Minimum number of tokens before a stride.", maximum=240)] = 64
    candidates: Annotated[int, Option("Passages to choose from, for what a reranker could gain.", minimum=2)] = 16
    documents: Annotated[int, Option("Passages that the ensemble reads.", flag="ensemble")] = 10
    document_tokens: Annotated[int, Option("Maximum number of tokens of a passage; longer ones are cut.")] = 256
    budget: Annotated[float, Option("Minutes to measure; then the verdict so far. 0: no limit.")] = 15.0
    seed: Annotated[int, seed_option(None)] = 0

    def __post_init__(self) -> None:
        check_options(self)
        if self.documents > self.candidates:
            raise UsageError(f"`documents` {self.documents} are more than the `candidates` {self.candidates}.")

    @property
    def examples(self) -> ExampleOptions:
        """How the examples of a document are sampled."""
        return ExampleOptions(
            examples=self.strides,
            prefix_tokens=self.prefix_tokens,
            sequence_tokens=SEQUENCE,
            per_sequence=self.strides,
            query_tokens=min(32, self.prefix_tokens),
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A document or a question: its examples, which know its runs of 13 words, with a query each."""

    name: str
    examples: Sequence[Example]
    queries: Sequence[str]
    overlap: Decontamination
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """At most `most` units, made one by one in random order; `given` if they are no documents of the corpus."""

    noun: str
    description: str
    most: int
    units: Iterator[Unit | None]
    given: bool = True


def held_out_documents(index: Index, tokenizer: Tokenizer, options: WorthOptions) -> HeldOut:
    """Documents of an index, in random order."""
    firsts: dict[str, int] = {}
    for number, document_id, _ in index.passages.origins():
        firsts.setdefault(document_id, number)
    if "" in firsts:
        raise UsageError(
            f"{index.path} has passages without document ids, so a document cannot be held out: give a `text`."
        )
    numbers = np.array([*firsts.values()])[np.random.default_rng(options.seed).permutation(len(firsts))]
    whole = ExpandedPassages(index.passages, "document", index.manifest.settings.get("splitting"))
    documents = (
        Document(one.document_id, one.title, one.text, metadata=one.metadata)
        for one in map(whole.__getitem__, numbers.tolist())
    )
    units = (_unit_of_document(one, one.text, tokenizer, options) for one in documents)
    return HeldOut("documents", "held-out documents of the corpus", min(options.most, len(firsts)), units, given=False)


def held_out_texts(found: Iterable[Document], name: str, tokenizer: Tokenizer, options: WorthOptions) -> HeldOut:
    """Documents of a text, in random order; blocks of 512 tokens if it has too few."""
    documents = [(one, one.text) for one in found if one.text.strip()]
    if len(documents) < options.most:
        documents = [(block, one.text) for one, _ in documents for block in _blocks(one, tokenizer)]
    order = np.random.default_rng(options.seed).permutation(len(documents))
    shuffled = (documents[place] for place in order.tolist())
    units = (_unit_of_document(one, whole, tokenizer, options) for one, whole in shuffled)
    return HeldOut("documents", name, min(options.most, len(documents)), units)


def _blocks(document: Document, tokenizer: Tokenizer) -> list[Document]:
    """A document in blocks of 512 tokens; the rest belongs to the last block."""
    _, spans_N2 = full_tokenizer(tokenizer).encode_with_spans(document.text)
    count = max(1, len(spans_N2) // _BLOCK)
    cuts = [0, *(int(spans_N2[place * _BLOCK, 0]) for place in range(1, count)), len(document.text)]
    return [replace(document, text=document.text[begin:end], headings=()) for begin, end in pairwise(cuts)]


def held_out_questions(
    questions: Sequence[Question], name: str, tokenizer: Tokenizer, options: WorthOptions
) -> HeldOut:
    """Questions with gold answers, in random order: the continuation of each is its first gold answer."""
    answered = [one for one in questions if one.answers and one.answers[0].strip()]
    if not answered:
        raise UsageError(f"{name} has no gold answers, so no gain can be measured: give questions with answers.")
    order = np.random.default_rng(options.seed).permutation(len(answered))
    units = (_of_question(answered[place], tokenizer) for place in order.tolist())
    return HeldOut("questions", name, min(options.most, len(answered)), units)


def _of_question(question: Question, tokenizer: Tokenizer) -> Unit:
    tokenizer = full_tokenizer(tokenizer)
    prompt = f"Question: {question.text}\nAnswer:"
    prefix = tokenizer.encode(prompt)
    whole = tokenizer.encode(f"{prompt} {question.answers[0].strip()}")
    shared = int(np.argmin(np.append(prefix == whole[: len(prefix)], False))) if len(whole) >= len(prefix) else 0
    answer = whole[shared : shared + _LONGEST_ANSWER]
    example = Example("", 0, whole[:shared], answer, ())
    return _unit(question.id, f"{question.text} {question.answers[0]}", [example], [question.text], {})


def _unit_of_document(document: Document, whole: str, tokenizer: Tokenizer, options: WorthOptions) -> Unit | None:
    """The unit of a document, or of a part of the document with the text `whole`; None if it is too short."""
    sampling = options.examples
    try:
        examples = sample_examples([document], tokenizer, sampling)
    except TextError:
        return None
    queries = queries_of(examples, tokenizer, sampling.query_tokens)
    return _unit(document.id, whole, examples, queries, document.metadata)


def _unit(
    name: str, text: str, examples: Sequence[Example], queries: Sequence[str], metadata: Mapping[str, Any]
) -> Unit:
    overlap = _overlap_with(text)
    return Unit(name, [replace(one, runs=overlap.hashes) for one in examples], queries, overlap, metadata)


@lru_cache(maxsize=8)
def _overlap_with(text: str) -> Decontamination:
    """Finds runs of 13 words of a text in passages; none if the text is shorter."""
    return Decontamination.of(texts=[text]) if len(bare_words(text)) >= NGRAM else Decontamination()
