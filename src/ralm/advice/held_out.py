"""The units that a verdict is measured on: documents of the corpus itself, documents of a text, or questions.

Each unit has examples (`ralm.training.examples`): prefixes with their continuations. Passages of the unit's own
document are never candidates, and the runs of 13 words of the whole unit tell which passages are near duplicates of it.
A question is asked as `ralm ask` asks it, with a passage and without one, and its continuation is a gold answer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Final, TypeAlias

import numpy as np

from ralm.advice.sequential import FIRST_LOOK
from ralm.answering.answers import room_for_prompts
from ralm.answering.options import AnswerOptions
from ralm.answering.prompt_reader import chosen_prompt
from ralm.answering.prompts import tokens_after
from ralm.answering.questions import Question
from ralm.answering.sources import PromptBuilder
from ralm.corpus.decontamination import Decontamination
from ralm.errors import TextError, UsageError
from ralm.evaluation.intervals import STRETCH
from ralm.evaluation.passages_read import overlap_with
from ralm.lm.tokenizer import full_tokenizer
from ralm.options import Option, check_options, seed_option
from ralm.protocols import Tokenizer, WritingModel
from ralm.reading.parts import IN_CONTEXT
from ralm.records import NO_PASSAGE, Document, IntArray, Passages
from ralm.retrieval.expansion import ExpandedPassages
from ralm.retrieval.index import Index
from ralm.training.examples import Example, queries_of, sample_examples
from ralm.training.options import ExampleOptions

SEQUENCE: Final = 256
_LONGEST_ANSWER: Final = 32

QuestionPrompts: TypeAlias = Callable[[Passages, int], IntArray]
"""Makes the prompt of a question with the passage of a number, or without one for `NO_PASSAGE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthOptions:
    """What a verdict is measured on. Raises UsageError if a value is out of range."""

    most: Annotated[int, Option("Most documents or questions to measure.", minimum=16, flag="units")] = 256
    strides: Annotated[int, Option("Consecutive strides of 4 tokens to measure in each document.")] = 8
    prefix_tokens: Annotated[int, Option("Minimum number of tokens before a stride.", maximum=240)] = 64
    candidates: Annotated[int, Option("Passages to choose from, for what a reranker could gain.", minimum=2)] = 16
    documents: Annotated[int, Option("Passages that the ensemble reads.", flag="ensemble")] = 10
    document_tokens: Annotated[int, Option("Maximum number of tokens of a passage; longer ones are cut.")] = 256
    budget: Annotated[float, Option("Minutes to measure; then the verdict so far. 0: no limit.")] = 2.0
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
    prompts: QuestionPrompts | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """At most `most` units, made one by one in random order; None is a unit that is too short."""

    noun: str
    description: str
    most: int
    units: Iterator[Unit | None]
    of_corpus: bool = False


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
        Document(passage.document_id, passage.title, passage.text)
        for passage in map(whole.__getitem__, numbers.tolist())
    )
    units = (_unit_of_document(document, document.text, tokenizer, options) for document in documents)
    most = min(options.most, len(firsts))
    return HeldOut("documents", "held-out documents of the corpus", most, units, of_corpus=True)


def held_out_texts(texts: Iterable[Document], name: str, tokenizer: Tokenizer, options: WorthOptions) -> HeldOut:
    """Documents of a text, in random order; if it has fewer than 16, stretches of 512 tokens of them."""
    noun, documents = "documents", [(document, document.text) for document in texts if document.text.strip()]
    if len(documents) < FIRST_LOOK:
        noun, documents = (
            "stretches",
            [(part, text) for whole, text in documents for part in _stretches(whole, tokenizer)],
        )
    order = np.random.default_rng(options.seed).permutation(len(documents))
    shuffled = (documents[place] for place in order.tolist())
    units = (_unit_of_document(document, whole, tokenizer, options) for document, whole in shuffled)
    return HeldOut(noun, name, min(options.most, len(documents)), units)


def _stretches(document: Document, tokenizer: Tokenizer) -> list[Document]:
    """A document in stretches of 512 tokens; the rest belongs to the last one."""
    _, spans_N2 = full_tokenizer(tokenizer).encode_with_spans(document.text)
    count = max(1, len(spans_N2) // STRETCH)
    cuts = [0, *(int(spans_N2[place * STRETCH, 0]) for place in range(1, count)), len(document.text)]
    return [replace(document, text=document.text[begin:end], headings=()) for begin, end in pairwise(cuts)]


def held_out_questions(questions: Sequence[Question], name: str, model: WritingModel, options: WorthOptions) -> HeldOut:
    """Questions with gold answers, in random order, each in the prompt that `ralm ask` has for this model by default.
    The continuation is the first gold answer, as far as `ralm ask` would write it."""
    answered = [question for question in questions if question.answers and question.answers[0].strip()]
    if not answered:
        raise UsageError(f"{name} has no gold answers, so no gain can be measured: give questions with answers.")
    prompt, answering = chosen_prompt(None, model.tokenizer, IN_CONTEXT.reader, AnswerOptions(), ())
    builder = PromptBuilder(prompt, model.tokenizer, room_for_prompts(model, answering))
    longest = min(_LONGEST_ANSWER, answering.new_tokens)

    def unit(question: Question) -> Unit | None:
        prompts = partial(_question_prompt, builder, question)
        closed, answer = prompts((), NO_PASSAGE), question.answers[0].strip()
        continuation = tokens_after(closed, prompt.format_answer(answer), model.tokenizer)[:longest]
        if not len(continuation):
            return None
        example = Example("", 0, closed, continuation, ())
        return _unit(question.id, f"{question.text} {answer}", [example], [question.text], prompts)

    order = np.random.default_rng(options.seed).permutation(len(answered))
    units = (unit(answered[place]) for place in order.tolist())
    return HeldOut("questions", name, min(options.most, len(answered)), units)


def _question_prompt(builder: PromptBuilder, question: Question, passages: Passages, number: int) -> IntArray:
    hits = [] if number == NO_PASSAGE else [(number, 0.0)]
    [prompt] = builder.build(question, hits, passages).prompts
    return prompt.tokens


def _unit_of_document(document: Document, whole: str, tokenizer: Tokenizer, options: WorthOptions) -> Unit | None:
    """The unit of a document, or of a part of the document with the text `whole`; None if it is too short."""
    sampling = options.examples
    try:
        examples = sample_examples([document], tokenizer, sampling)
    except TextError:
        return None
    return _unit(document.id, whole, examples, queries_of(examples, tokenizer, sampling.query_tokens))


def _unit(
    name: str, text: str, examples: Sequence[Example], queries: Sequence[str], prompts: QuestionPrompts | None = None
) -> Unit:
    overlap = overlap_with((text,))
    return Unit(name, [replace(example, runs=overlap.hashes) for example in examples], queries, overlap, prompts)
