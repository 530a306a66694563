"""Evaluates question answering and multiple choice, with passages and without."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.answering import metrics, prompts, sources
from ralm.answering.answers import Answer, GoldScore, answer_all, room_for_prompts
from ralm.answering.multiple_choice import Choice, ChoiceMethod, choice_columns, subject_figures
from ralm.answering.options import AnswerOptions, AnswerSemantics
from ralm.answering.questions import ChoiceQuestion, Question, identity_of
from ralm.errors import UsageError
from ralm.evaluation.intervals import Column, Comparison, Units, UnitTable, fields_of
from ralm.evaluation.retrieval import RetrievalRun
from ralm.protocols import WritingModel
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.readers import Concatenation
from ralm.reading.sources import FromRetriever
from ralm.records import Hits, Passage, Passages
from ralm.storage.store import Store
from ralm.terminal import progress_bar

_QUESTIONS_AT_ONCE: Final = 16
"""Questions of multiple choice whose prompts are in memory at a time."""
Questions: TypeAlias = Sequence[Question] | Sequence[ChoiceQuestion]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedAnswer:
    """An answer with its measures, and the natural log-probability of the first gold answer; None if unknown."""

    answer: Answer
    cut: prompts.Cut
    measures: Mapping[str, float]
    gold_log_prob: float | None = None
    gold_tokens: int | None = None

    @property
    def shares(self) -> dict[int, float]:
        """The share of each passage in the probability of the answer."""
        return self.answer.shares

    def as_row(self) -> dict[str, Any]:
        """Return the columns of the answer in a table."""
        golds = {"gold_log_prob": self.gold_log_prob, "gold_tokens": self.gold_tokens}
        answer = {"answer": self.answer.text, "log_prob": self.answer.log_prob}
        return {**answer, **golds, **self.measures, **self.cut.as_row()}


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredQuestion:
    """A question with its passages, the rank of the first that holds an answer, and its answers with and without.

    An open question has a `JudgedAnswer` for each way of asking, one with choices a `Choice`.
    """

    question: Any
    passages: Sequence[Passage]
    answer_at: int | None
    judged: Any
    without: Any = None
    closed: Any = None

    @property
    def has_gold(self) -> bool:
        """Whether an open question has gold answers."""
        return isinstance(self.question, Question) and bool(self.question.answers)


@dataclass(frozen=True, kw_only=True, eq=False)
class AnswerEvaluation:
    """Questions with their answers or choices, with `documents` passages, after `seconds`."""

    rows: Sequence[AnsweredQuestion]
    documents: int
    seconds: float

    def __post_init__(self) -> None:
        if not self.rows:
            raise UsageError("`questions` is empty: give at least one.")

    @property
    def has_choices(self) -> bool:
        """Whether the questions are multiple choice."""
        return isinstance(self.rows[0].question, ChoiceQuestion)

    @cached_property
    def units(self) -> UnitTable:
        """The measures of the answers of each question."""
        return self._units([row.judged for row in self.rows], has_passages=True)

    @cached_property
    def books(self) -> Comparison:
        """The ways in which questions were asked, those without passages first."""
        without = [row.without for row in self.rows if row.without is not None]
        closed = [row.closed for row in self.rows if row.closed is not None]
        ways = {name: self._units(way) for name, way in (("without passages", without), ("closed book", closed)) if way}
        ways["with passages" if self.documents else "closed book"] = self.units
        return Comparison([*ways], [*ways.values()])

    def _units(self, judged: Sequence[Any], *, has_passages: bool = False) -> UnitTable:
        asked = [row.question for row in self.rows]
        if self.has_choices:
            columns = choice_columns(judged, [question.subject for question in asked])
            return UnitTable("questions", identity_of(asked), columns)
        columns = _answer_columns(judged)
        if has_passages and self.documents:
            gold_U = np.array([int(row.has_gold) for row in self.rows])
            read_U = np.array([float(row.answer_at is not None) for row in self.rows])
            columns["has_answer"] = Column(Units(read_U * gold_U, gold_U), "share")
        return UnitTable("questions", identity_of(asked), columns)

    def summary(self) -> dict[str, JsonValue]:
        """Return the measures with 95% intervals over questions, those of all ways of asking over the same ones."""
        books, last = self.books, len(self.books.names) - 1
        *baselines, main = (
            fields_of({measure: of[place] for measure, of in books.figures.items() if place in of})
            for place in range(len(books.names))
        )
        summary: dict[str, JsonValue] = {"questions": len(self.rows)}
        summary |= {name.replace(" ", "_"): figures for name, figures in zip(books.names, baselines, strict=False)}
        summary |= main | self._counts()
        if last:
            summary["difference"] = fields_of({name: of[last] for name, of in books.changes.items() if last in of})
        summary["seconds"] = self.seconds
        return summary

    def _counts(self) -> dict[str, JsonValue]:
        asked, judged = [row.question for row in self.rows], [row.judged for row in self.rows]
        counts: dict[str, JsonValue] = {"cut": sum(bool(judgement.cut) for judgement in judged)}
        if self.documents:
            counts["no_passage"] = sum(not row.passages for row in self.rows)
        if self.has_choices:
            counts["chance"] = float(np.mean([1 / len(question.choices) for question in asked]))
            counts["no_choice"] = sum(choice.chosen is None for choice in judged)
            return counts | subject_figures([choice.right for choice in judged], [each.subject for each in asked])
        tokens = [token for judgement in judged for token in judgement.answer.tokens]
        if any(token.is_bounded for token in tokens):
            counts["certified"] = float(np.mean([token.certified for token in tokens]))
        if self.documents:
            ranks = [row.answer_at for row in self.rows if row.has_gold]
            counts["has_answer_at"] = {
                str(k): float(np.mean([rank is not None and rank <= k for rank in ranks])) if ranks else None
                for k in range(1, self.documents + 1)
            }
        scored = self.books.columns.get("gold_log_prob")
        counts["gold_scored"] = 0 if scored is None else len(next(iter(scored.values())).units.counts_U)
        counts["without_answers"] = sum(not row.has_gold for row in self.rows)
        return counts


def _answer_columns(judged: Sequence[JudgedAnswer]) -> dict[str, Column]:
    """Return the measures of each question; one without gold answers counts in none."""
    columns = {}
    for name, measure in metrics.ANSWER_MEASURES.items():
        values_U = np.array([float(answer.measures.get(name, 0)) for answer in judged])
        counts_U = np.array([int(name in answer.measures) for answer in judged])
        columns[name] = Column(Units(values_U, counts_U), "share" if measure.returns is bool else "fraction")
    tokens_U = np.array([answer.gold_tokens or 0 for answer in judged])
    log_probs_U = np.array([answer.gold_log_prob or 0.0 for answer in judged])
    return {**columns, "gold_log_prob": Column(Units(log_probs_U, tokens_U), "mean")}


def evaluate_questions(
    questions: Sequence[Question],
    model: WritingModel,
    prompt: prompts.QuestionPrompt,
    *,
    source: sources.QuestionSource | FromRetriever | None = None,
    parts: Parts = IN_CONTEXT,
    demonstrations: Sequence[Question] = (),
    options: AnswerOptions | None = None,
    semantics: AnswerSemantics = "paper",
    baseline: bool = False,
    store: Store | None = None,
) -> AnswerEvaluation:
    """Answer questions, with the passages of `source` in their prompts if it is given, and judge the answers.

    Args:
        questions: The questions; those without gold answers count in no measure.
        model: The frozen model.
        prompt: How a question is asked.
        source: Where passages come from.
        parts: How passages are read: one in context (the default), several as an ensemble or concatenated.
        demonstrations: Questions with answers that stand before every prompt, each with its first passage.
        options: How answers are drawn.
        semantics: "official" follows the papers' code where it differs from the papers.
        baseline: Answer also without passages: after the same prompt, and after the one that asks without.
        store: Keeps scores and answers for a later process.

    Raises:
        UsageError: Lengths do not fit into the model.
    """
    options = options or AnswerOptions()
    if options.join == "tokens":
        parts.check_generation(model)
    else:
        parts.check_vote(model)
    room = room_for_prompts(model, options)

    def answer(book: _Book) -> list[JudgedAnswer]:
        shown = list(zip(demonstrations, book.shown, strict=True))
        several = isinstance(parts.reader, Concatenation) and parts.reader.hits > 1
        asks = prompt.same_words(several=several) if book.same_words else prompt
        builder = sources.PromptBuilder(asks, model.tokenizer, room, book.parts, shown, semantics=semantics)
        inputs = [builder.build(question, book.hits.of(row), book.passages) for row, question in enumerate(questions)]
        judged = []
        with progress_bar(f"Answering{book.name}", len(inputs)) as advance:
            for number, written, gold in answer_all(inputs, model, options, store, prompt):
                judged.append(_judge(inputs[number], written, gold))
                advance()
        return judged

    return _evaluated(answer, questions, questions, demonstrations, source, parts, model, baseline=baseline)


def answer_qrels(questions: Sequence[Question], passages: Passages, *runs: RetrievalRun) -> dict[str, dict[str, int]]:
    """Judge the passages that runs (`retrieve_run` with `by_passage`) found: 1 if they hold an answer (DPR's tokens).

    `Success@k` is then DPR's top-k accuracy; recall knows of no other passages.

    Raises:
        UsageError: A run has an id that is no number of a passage.
    """
    answers = {question.id: question.answers for question in questions}
    qrels: dict[str, dict[str, int]] = {question.id: {} for question in questions}
    for topic, number in ((topic, number) for run in runs for topic, scores in run.items() for number in scores):
        if not number.isdecimal() or int(number) >= len(passages):
            raise UsageError(f"a run names passage {number!r}; with answers, a run has the numbers of passages.")
        if topic in answers and number not in qrels[topic]:
            qrels[topic][number] = int(metrics.has_answer(passages[int(number)].text, answers[topic]))
    return qrels


class _Book(NamedTuple):
    """How questions are read: with the passages of demonstrations and questions, or with none in the `same_words`."""

    name: str
    parts: Parts
    shown: Sequence[Sequence[Passage]]
    hits: Hits
    passages: Passages
    same_words: bool = False


def _evaluated(
    answer: Callable[[_Book], Sequence[Any]],
    questions: Questions,
    queries: Sequence[Question],
    shown: Sequence[Question],
    source: sources.QuestionSource | FromRetriever | None,
    parts: Parts,
    model: WritingModel,
    *,
    baseline: bool,
) -> AnswerEvaluation:
    """Answer questions with their passages; with a baseline also closed book, and open ones in the same words."""
    begun = perf_counter()
    hits, passages = sources.found_passages(queries, source, parts, model)
    firsts, demonstrated = sources.found_passages(shown, source if shown else None, parts, model, 1)
    first_of = [[demonstrated[number] for number, _ in firsts.of(row)] for row in range(len(shown))]
    judged = answer(_Book("", parts, first_of, hits, passages))
    without: Sequence[Any] = [None] * len(queries)
    closed = without
    if baseline and source is not None:
        empty = _Book(" closed book", IN_CONTEXT, [()] * len(shown), Hits.none(len(queries), 1), ())
        closed = answer(empty)
        if not have_choices(questions):
            without = answer(empty._replace(name=" without passages", same_words=True))
    rows = []
    for row, (question, *ways) in enumerate(zip(questions, judged, without, closed, strict=True)):
        read = [passages[number] for number, _ in hits.of(row)[: parts.reader.hits]]
        golds = question.answers if isinstance(question, Question) else ()
        ranks = (rank for rank, passage in enumerate(read, 1) if metrics.has_answer(passage.text, golds))
        rows.append(AnsweredQuestion(question, read, next(ranks, None), *ways))
    documents = 0 if source is None else parts.reader.hits
    return AnswerEvaluation(rows=rows, documents=documents, seconds=perf_counter() - begun)


def _judge(asked: sources.QuestionInput, answer: Answer, gold: GoldScore | None) -> JudgedAnswer:
    """Return an answer with its measures; without prompts it is wrong, even if an empty answer would be right."""
    answers, measures = asked.question.answers if asked.prompts else (), {}
    if asked.question.answers:
        measures = {name: measure.of(answer.text, answers) for name, measure in metrics.ANSWER_MEASURES.items()}
    log_prob, tokens = gold or (None, None)
    return JudgedAnswer(answer=answer, cut=asked.cut, measures=measures, gold_log_prob=log_prob, gold_tokens=tokens)


def evaluate_choices(
    questions: Sequence[ChoiceQuestion],
    model: WritingModel,
    prompt: prompts.QuestionPrompt,
    *,
    source: sources.QuestionSource | FromRetriever | None = None,
    parts: Parts = IN_CONTEXT,
    demonstrations: Sequence[ChoiceQuestion] = (),
    options: AnswerOptions | None = None,
    baseline: bool = False,
    store: Store | None = None,
) -> AnswerEvaluation:
    """Let a model choose among the choices of questions; arguments are those of `evaluate_questions`.

    The most likely letter is chosen; if `options` join answers, an answer is written and read as a letter.
    Demonstrations are those of the question's subject.

    Raises:
        UsageError: The prompt does not show the choices, or a question does not fit into the model or has no
            demonstrations.
    """
    options = options or AnswerOptions()
    if options.join == "answers":
        parts.check_vote(model)
    else:
        parts.check_scoring(model, "a choice")
    method = ChoiceMethod(model, prompt, options, store)
    room = method.room(questions)
    bare = sources.PromptBuilder(prompt, model.tokenizer, room)
    shown_of = {question.subject: _of_subject(question.subject, demonstrations) for question in questions}
    for question in questions:
        bare.build(question.with_letter, [], ())  # raises if it does not fit

    def choose(book: _Book) -> list[Choice]:
        builders = {}
        for subject, places in shown_of.items():
            shown = [(demonstrations[place].with_letter, book.shown[place]) for place in places]
            builders[subject] = sources.PromptBuilder(prompt, model.tokenizer, room, book.parts, shown)
        chosen: list[Choice] = []
        with progress_bar(f"Choosing{book.name}", len(questions)) as advance:
            for begin in range(0, len(questions), _QUESTIONS_AT_ONCE):
                group = questions[begin : begin + _QUESTIONS_AT_ONCE]
                inputs = [
                    builders[question.subject].build(question.with_letter, book.hits.of(row), book.passages)
                    for row, question in enumerate(group, begin)
                ]
                chosen += method.choose([*zip(group, inputs, strict=True)])
                advance(len(group))
        return chosen

    queries, shown = [question.query for question in questions], [question.query for question in demonstrations]
    return _evaluated(choose, questions, queries, shown, source, parts, model, baseline=baseline)


def evaluate_answers(
    questions: Questions, model: WritingModel, prompt: prompts.QuestionPrompt, **how: Any
) -> AnswerEvaluation:
    """Evaluate questions by `evaluate_choices` if they have choices, else by `evaluate_questions`, as `how` says."""
    evaluate: Callable[..., AnswerEvaluation] = evaluate_choices if have_choices(questions) else evaluate_questions
    return evaluate(questions, model, prompt, **how)


def have_choices(questions: Questions) -> bool:
    """Return whether questions are multiple choice."""
    return any(isinstance(question, ChoiceQuestion) for question in questions[:1])


def _of_subject(subject: str, demonstrations: Sequence[ChoiceQuestion]) -> list[int]:
    """Return the places of the demonstrations of a subject, or of all without subjects; UsageError if it has none."""
    subjects = [demonstration.subject for demonstration in demonstrations]
    places = [place for place, name in enumerate(subjects) if name == subject or not any(subjects)]
    if demonstrations and not places:
        raise UsageError(f"`demonstrations` has none of the subject {subject!r}.")
    return places
