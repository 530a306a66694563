"""The units that a verdict is measured on: documents of the corpus itself, documents of a text, or questions.

Each unit has examples (`ralm.training.examples`): prefixes with their continuations. Passages of the unit's own
document are never found, and the runs of 13 words of the whole unit tell which passages are near duplicates of it. A
question is asked as `ralm ask` asks it, with a passage and without one, and its continuation is a gold answer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Final, TypeVar

import numpy as np

from ralm.answering import answers, likelihoods, prompt_reader
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import tokens_after
from ralm.answering.questions import Question
from ralm.answering.sources import PromptBuilder
from ralm.errors import TextError, UsageError
from ralm.evaluation import intervals, passages_read
from ralm.lm.tokenizer import full_tokenizer
from ralm.options import Option, check_options, seed_option
from ralm.protocols import Tokenizer, WritingModel
from ralm.reading.parts import IN_CONTEXT
from ralm.records import NO_PASSAGE, Document, IntArray, Passages
from ralm.retrieval.expansion import WHOLE, ExpandedPassages
from ralm.retrieval.index import Index
from ralm.training.examples import Example, queries_of, sample_examples
from ralm.training.options import ExampleOptions
from ralm.worth.sequential import FIRST_LOOK

SEQUENCE: Final = 256

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthOptions:
    """What a verdict is measured on. Raises UsageError if a value is out of range."""

    most: Annotated[int, Option("Most documents or questions to measure.", minimum=16, flag="units")] = 256
    strides: Annotated[int, Option("Consecutive strides of 4 tokens to measure in each document.")] = 8
    prefix_tokens: Annotated[int, Option("Minimum number of tokens before a stride.", maximum=240)] = 64
    document_tokens: Annotated[int, Option("Maximum number of tokens of a passage; longer ones are cut.")] = 256
    budget: Annotated[float, Option("Minutes to measure; then the verdict so far. 0: no limit.")] = 2.0
    seed: Annotated[int, seed_option(None)] = 0

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A document or a question: its examples with a query each, and the prompts of a question by passage."""

    examples: Sequence[Example]
    queries: Sequence[str]
    prompts: Callable[[Passages, int], IntArray] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """At most `most` units, made one by one in random order; those that are too short are left out."""

    noun: str
    description: str
    most: int
    units: Iterator[Unit]


def held_out_documents(index: Index, tokenizer: Tokenizer, options: WorthOptions) -> HeldOut:
    """Hold out documents of an index, in random order; UsageError if it has passages without document ids."""
    documents = [*index.passages.documents()]
    if any(not document_id for document_id, _ in documents):
        raise UsageError(
            f"{index.path} has passages without document ids, so a document cannot be held out: give a `text`."
        )
    whole = ExpandedPassages(index.passages, WHOLE, index.manifest.settings.get("splitting"))
    passages = (whole[numbers.start] for _, numbers in _shuffled(documents, options))
    texts = ((Document(passage.document_id, passage.title, passage.text), passage.text) for passage in passages)
    units = _units(texts, tokenizer, options)
    return HeldOut("documents", "held-out documents of the corpus", min(options.most, len(documents)), units)


def held_out_texts(texts: Iterable[Document], name: str, tokenizer: Tokenizer, options: WorthOptions) -> HeldOut:
    """Hold out documents of a text, in random order; if it has fewer than 16, stretches of 512 tokens of them."""
    noun, documents = "documents", [(document, document.text) for document in texts if document.text.strip()]
    if len(documents) < FIRST_LOOK:
        noun = "stretches"
        documents = [(part, text) for whole, text in documents for part in _stretches(whole, tokenizer)]
    units = _units(_shuffled(documents, options), tokenizer, options)
    return HeldOut(noun, name, min(options.most, len(documents)), units)


def _stretches(document: Document, tokenizer: Tokenizer) -> list[Document]:
    """Return a document in stretches of 512 tokens; the rest belongs to the last one."""
    _, spans_N2 = full_tokenizer(tokenizer).encode_with_spans(document.text)
    count = max(1, len(spans_N2) // intervals.STRETCH)
    cuts = [0, *(int(spans_N2[place * intervals.STRETCH, 0]) for place in range(1, count)), len(document.text)]
    return [replace(document, text=document.text[begin:end], headings=()) for begin, end in pairwise(cuts)]


def _units(documents: Iterable[tuple[Document, str]], tokenizer: Tokenizer, options: WorthOptions) -> Iterator[Unit]:
    """Yield units of the documents, or of parts of documents with these whole texts, that are long enough."""
    sampling = ExampleOptions(
        examples=options.strides,
        prefix_tokens=options.prefix_tokens,
        sequence_tokens=SEQUENCE,
        per_sequence=options.strides,
        query_tokens=min(32, options.prefix_tokens),
        seed=options.seed,
    )
    for document, whole in documents:
        try:
            examples = sample_examples([document], tokenizer, sampling)
        except TextError:
            continue
        runs = passages_read.overlap_with((whole,)).hashes
        queries = queries_of(examples, tokenizer, sampling.query_tokens)
        yield Unit([replace(example, runs=runs) for example in examples], queries)


def held_out_questions(questions: Sequence[Question], name: str, model: WritingModel, options: WorthOptions) -> HeldOut:
    """Hold out questions in random order, each asked as `ralm ask` does, with the first gold answer as it writes it.

    Raises:
        UsageError: No question has an answer.
    """
    answered = [question for question in questions if question.answers and question.answers[0].strip()]
    if not answered:
        raise UsageError(f"{name} has no gold answers, so no gain can be measured: give questions with answers.")
    prompt, answering = prompt_reader.chosen_prompt(None, model.tokenizer, IN_CONTEXT.reader, AnswerOptions(), ())
    builder = PromptBuilder(prompt, model.tokenizer, answers.room_for_prompts(model, answering))

    def unit(question: Question) -> Unit:
        def prompts(passages: Passages, number: int) -> IntArray:
            hits = [] if number == NO_PASSAGE else [(number, 0.0)]
            [reading] = builder.build(question, hits, passages).prompts
            return reading.tokens

        answer = question.answers[0].strip()
        gold = tokens_after(prompts((), NO_PASSAGE), prompt.format_answer(answer), model.tokenizer)
        runs = passages_read.overlap_with((f"{question.text} {answer}",)).hashes
        example = Example("", 0, likelihoods.NO_TOKENS, gold[: answering.new_tokens], runs)
        return Unit([example], [question.text], prompts)

    units = map(unit, _shuffled(answered, options))
    return HeldOut("questions", name, min(options.most, len(answered)), units)


def _shuffled(items: Sequence[_Item], options: WorthOptions) -> Iterator[_Item]:
    return (items[place] for place in np.random.default_rng(options.seed).permutation(len(items)).tolist())
