"""Whether the passages of a corpus help a language model: what is measured, the verdict, and the figures behind it.

A unit is a document of the corpus itself, a document of a text, or a question. Each has examples
(`ralm.training.examples`): prefixes with their continuations. Every example is read without a passage, with the
retriever's first passage that is no near duplicate, and with the first of all passages. Passages of the unit's own
document are never found, and the runs of 13 words of the whole unit tell which passages are near duplicates of it. A
question is asked as `ralm ask` asks it, and its continuation is a gold answer. Units are in random order, so those
that are read before the time ends stand for all.

Letters of shapes: E examples of a unit, T tokens of a continuation, U units.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Annotated, Final, Literal, TypeVar

import numpy as np

from ralm.answering import answers
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import chosen_prompt, tokens_after
from ralm.answering.questions import Question
from ralm.answering.sources import PromptBuilder
from ralm.corpus.store import PassageStore
from ralm.errors import BudgetError, TextError, UsageError
from ralm.evaluation.intervals import MIN_UNITS, STRETCH, Estimate, Units, estimate
from ralm.evaluation.perplexity import overlap_with
from ralm.lm.scoring import Scorer
from ralm.lm.tokenizer import full_tokenizer
from ralm.options import Checked, Option, seed_option
from ralm.protocols import LanguageModel, Retriever, Tokenizer, WritingModel
from ralm.reading.parts import IN_CONTEXT
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, Document, IntArray, Passages, Request
from ralm.retrieval.index import Index
from ralm.retrieval.retriever import WHOLE, ExpandedPassages
from ralm.terminal import track
from ralm.training.examples import Example, check_fits, find_candidates, queries_of, sample_examples
from ralm.training.options import ExampleOptions
from ralm.validation import check_scores

WorthVerdict = Literal["helps", "near duplicates", "no difference", "open", "harms"]

SEQUENCE: Final = 256
_MIN_DOCUMENTS: Final = 16
"""A text with fewer documents is cut into stretches."""
_NEGLIGIBLE: Final = 0.01
"""Nats per token: if the whole interval is nearer to 0, there is no difference that matters."""
_LOWEST: Final = -100.0
"""Stands for the log-probability of an impossible token, so that all sums are finite."""
_LOG: Final = logging.getLogger(__name__)

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthOptions(Checked):
    """What a verdict is measured on. Raises UsageError if a value is out of range."""

    most: Annotated[int, Option("Most documents or questions to measure.", minimum=16, flag="units")] = 256
    strides: Annotated[int, Option("Consecutive strides of 4 tokens to measure in each document.")] = 8
    prefix_tokens: Annotated[int, Option("Minimum number of tokens before a stride.", maximum=240)] = 64
    document_tokens: Annotated[int, Option("Maximum number of tokens of a passage; longer ones are cut.")] = 256
    budget: Annotated[float, Option("Minutes to measure; then the verdict so far. 0: no limit.")] = 2.0
    seed: Annotated[int, seed_option()] = 0


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
    if len(documents) < _MIN_DOCUMENTS:
        noun = "stretches"
        documents = [(part, text) for whole, text in documents for part in _stretches(whole, tokenizer)]
    units = _units(_shuffled(documents, options), tokenizer, options)
    return HeldOut(noun, name, min(options.most, len(documents)), units)


def _stretches(document: Document, tokenizer: Tokenizer) -> list[Document]:
    """Return a document in stretches of 512 tokens; the rest belongs to the last one."""
    _, spans_N2 = full_tokenizer(tokenizer).encode_with_spans(document.text)
    count = max(1, len(spans_N2) // STRETCH)
    cuts = [0, *(int(spans_N2[place * STRETCH, 0]) for place in range(1, count)), len(document.text)]
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
        runs = overlap_with((whole,)).hashes
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
    prompt, answering = chosen_prompt(None, model.tokenizer, IN_CONTEXT.reader, AnswerOptions(), ())
    builder = PromptBuilder(prompt, model.tokenizer, answers.room_for_prompts(model, answering))

    def unit(question: Question) -> Unit:
        def prompts(passages: Passages, number: int) -> IntArray:
            hits = [] if number == NO_PASSAGE else [(number, 0.0)]
            [reading] = builder.build(question, hits, passages).prompts
            return reading.tokens

        answer = question.answers[0].strip()
        gold = tokens_after(prompts((), NO_PASSAGE), prompt.format_answer(answer), model.tokenizer)
        runs = overlap_with((f"{question.text} {answer}",)).hashes
        example = Example("", 0, answers.NO_TOKENS, gold[: answering.new_tokens], runs)
        return Unit([example], [question.text], prompts)

    units = map(unit, _shuffled(answered, options))
    return HeldOut("questions", name, min(options.most, len(answered)), units)


def _shuffled(items: Sequence[_Item], options: WorthOptions) -> Iterator[_Item]:
    return (items[place] for place in np.random.default_rng(options.seed).permutation(len(items)).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredUnit:
    """The tokens of a unit, and the gains of its first passages in nats, without near duplicates and with them."""

    tokens: int
    gain: float
    with_duplicates: float
    with_passage: int = 0
    is_duplicated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Meter:
    """Measures what the first passages of an index gain; passages of a unit's own document are not found."""

    passages: PassageStore
    documents: PassageDocuments
    retriever: Retriever
    scorer: Scorer

    def measure(self, unit: Unit, end: float = math.inf) -> MeasuredUnit:
        """Read a unit passage by passage, each stride with the one before; BudgetError if the clock is at its end."""
        clean_E = self._first(unit, unit.examples)
        every_E = self._first(unit, [replace(example, runs=()) for example in unit.examples])
        rows = [(NO_PASSAGE, *numbers) for numbers in zip(clean_E, every_E, strict=True)]
        nats: dict[tuple[int, int], float] = {}
        for number in dict.fromkeys(chain.from_iterable(rows)):
            if time.perf_counter() >= end:
                raise BudgetError("the time is over")
            before = self.documents[number] if unit.prompts is None else unit.prompts(self.passages, number)
            read = {place: unit.examples[place] for place, row in enumerate(rows) if number in row}
            requests = [Request(before, example.prefix, example.continuation) for example in read.values()]
            for place, log_probs_T in zip(read, self.scorer.log_probs(requests), strict=True):
                nats[place, number] = float(np.maximum(log_probs_T, _LOWEST).sum(dtype=np.float64))
        alone = sum(nats[place, NO_PASSAGE] for place in range(len(rows)))
        tokens_E = [len(example.continuation) for example in unit.examples]
        return MeasuredUnit(
            tokens=sum(tokens_E),
            gain=sum(nats[row] for row in enumerate(clean_E)) - alone,
            with_duplicates=sum(nats[row] for row in enumerate(every_E)) - alone,
            with_passage=sum(tokens for tokens, row in zip(tokens_E, rows, strict=True) if row[1] != NO_PASSAGE),
            is_duplicated=clean_E != every_E,
        )

    def _first(self, unit: Unit, examples: Sequence[Example]) -> list[int]:
        """Return the first passage of each example that shares none of its runs of words."""
        hits = find_candidates(examples, unit.queries, self.retriever, self.passages, 1)
        numbers_E: list[int] = hits.numbers_QK[:, 0].tolist()
        return numbers_E


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The verdict on a corpus, and its gains in nats a token, with 95% intervals; fewer than ten units have none.

    `gain` is that of the first passage that is no near duplicate, `with_duplicates` that of the first of all.
    `with_passage` is the share of tokens with a first passage, `duplicated` how many units have near duplicates, and
    `in_time` whether all were measured before the budget ended.
    """

    verdict: WorthVerdict
    gain: Estimate
    with_duplicates: Estimate
    noun: str
    in_time: bool
    with_passage: float
    duplicated: int

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        gain, other, units = self.gain, self.with_duplicates, f"{self.gain.units:,} {self.noun}"
        if self.verdict == "near duplicates":
            reach = f"{other.low:.3f} to {other.high:.3f}"
            return f"The corpus helps by near duplicates alone: by {reach} nats a token with them ({units})."
        if gain.low is None or gain.high is None:
            few = gain.units < MIN_UNITS
            why = f"too few {self.noun} for an interval" if few else "all gain the same, which gives no interval"
            return f"No verdict: {why} ({gain.units:,}). The gain is {gain.value:+.3f} nats a token."
        if self.verdict == "helps":
            return f"The corpus helps: by {gain.low:.3f} to {gain.high:.3f} nats a token ({units})."
        if self.verdict == "harms":
            return f"The corpus harms: by {-gain.high:.3f} to {-gain.low:.3f} nats a token ({units})."
        reach = f"{gain.low:+.3f} to {gain.high:+.3f} nats a token ({units})"
        if self.verdict == "no difference":
            return f"The corpus makes no difference above {_NEGLIGIBLE} nats a token: {reach}."
        return f"No difference can be shown: {reach}."


def open_meter(index: Index, model: LanguageModel, options: WorthOptions) -> Meter:
    """Return a meter with BM25, or with dense retrieval if the index has vectors alone."""
    check_scores(model, "a gain")
    check_fits(model, SEQUENCE, options.document_tokens)
    documents = PassageDocuments(index.passages, model.tokenizer, options.document_tokens, "auto")
    retriever = index.dense() if index.bm25_options is None else index.bm25
    return Meter(index.passages, documents, retriever, Scorer(model, progress=False))


def judge_corpus(index: Index, model: LanguageModel, held_out: HeldOut, options: WorthOptions) -> Worth:
    """Measure units until all are measured or the budget is used up.

    Raises:
        UsageError: The model does not score given texts, or no unit is long enough.
        BudgetError: The budget ends before a unit is measured.
    """
    meter, most = open_meter(index, model, options), held_out.most
    limit = f" for {options.budget:g} minutes or" if options.budget else ""
    _LOG.info(f"reads{limit} at most {most:,} {held_out.noun}, with a passage and without")
    end = time.perf_counter() + (60 * options.budget or math.inf)
    measured: list[MeasuredUnit] = []
    in_time = True
    try:
        for unit in track(islice(held_out.units, most), "Measuring", most):
            measured.append(meter.measure(unit, end))  # noqa: PERF401 - what was measured before the end stays
    except BudgetError:
        in_time = False
    if not measured and not in_time:
        raise BudgetError(f"the budget ended before any of the {held_out.noun} was measured: raise it.")
    if not measured:
        raise UsageError(
            f"{held_out.description} has no {held_out.noun} that are long enough: give longer ones, or lower "
            "`prefix_tokens`."
        )
    verdict, gain, with_duplicates = judge_units(measured)
    return Worth(
        verdict=verdict,
        gain=gain,
        with_duplicates=with_duplicates,
        noun=held_out.noun,
        in_time=in_time,
        with_passage=sum(unit.with_passage for unit in measured) / sum(unit.tokens for unit in measured),
        duplicated=sum(unit.is_duplicated for unit in measured),
    )


def judge_units(measured: Sequence[MeasuredUnit]) -> tuple[WorthVerdict, Estimate, Estimate]:
    """Return the verdict, and the gains without near duplicates and with them."""
    rows = [(unit.tokens, unit.gain, unit.with_duplicates) for unit in measured]
    tokens_U, *gains = np.array(rows, dtype=np.float64).T
    gain, with_duplicates = (estimate(Units(gains_U, tokens_U), "mean") for gains_U in gains)
    verdict: WorthVerdict = "open"
    if gain.is_above or gain.is_below:
        verdict = "helps" if gain.is_above else "harms"
    elif with_duplicates.is_above:
        verdict = "near duplicates"
    elif gain.ends and max(map(abs, gain.ends)) < _NEGLIGIBLE:
        verdict = "no difference"
    return verdict, gain, with_duplicates
