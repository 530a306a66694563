"""Evaluates question answering and multiple choice, with passages and without."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.answering import metrics, prompts, sources
from ralm.answering.answers import Answer, answer_all, check_mixer, room_for_prompts
from ralm.answering.judge import Judge
from ralm.answering.likelihoods import GoldScore
from ralm.answering.multiple_choice import Choice, ChoiceMethod, choice_columns, measures_of
from ralm.answering.options import AnswerOptions, AnswerSemantics
from ralm.answering.questions import ChoiceQuestion, Question
from ralm.errors import UsageError
from ralm.evaluation.intervals import Units, compare, estimate
from ralm.evaluation.retrieval import RetrievalRun
from ralm.protocols import WritingModel
from ralm.reading.concatenation import Concatenation
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.sources import FromRetriever
from ralm.records import Hits, Passage, Passages
from ralm.storage.store import Store
from ralm.terminal import progress_bar

_QUESTIONS_AT_ONCE: Final = 16
"""Questions of multiple choice whose prompts are in memory at a time."""
_Result = TypeVar("_Result")
METRICS: Final = (*metrics.ANSWER_MEASURES, "agrees", "gold_log_prob")
"""All that is known of an answer: its measures, the verdict of a judge, and the log-probability of the gold answer."""
MetricColumns: TypeAlias = Mapping[str, Units]
"""For each metric the sum of every question, and what it counts: 1, or the tokens of the gold answer; 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedAnswer:
    """An answer with its `measures` (`metrics.ANSWER_MEASURES`), the verdict of a judge (`agrees`), the natural
    log-probability of the first gold answer and its number of tokens, None where there is none or it is not known;
    `cut` is the largest cut of a prompt. Without gold answers there are no measures."""

    answer: Answer
    cut: prompts.Cut
    measures: Mapping[str, float]
    agrees: bool | None = None
    gold_log_prob: float | None = None
    gold_tokens: int | None = None

    def metric(self, name: str) -> float | None:
        """Return one of the `METRICS`, None if it is unknown."""
        return {"agrees": self.agrees, "gold_log_prob": self.gold_log_prob, **self.measures}.get(name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnsweredQuestion:
    """A question with the passages that were read, best first, and its answer; with a baseline, also the answer to the
    same prompt `without` passages, and the `closed` one to the prompt that asks without. `answer_at` is the rank, from
    1, of the first passage that holds an answer (DPR's tokens, the text without its title), or None."""

    question: Question
    passages: Sequence[Passage]
    answer_at: int | None
    judged: JudgedAnswer
    without: JudgedAnswer | None = None
    closed: JudgedAnswer | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuestionEvaluation:
    """Questions with their answers, with `documents` passages, after `seconds`; `judge` is the name of its model."""

    rows: Sequence[AnsweredQuestion]
    documents: int
    seconds: float
    judge: str | None = None

    @property
    def columns(self) -> MetricColumns:
        """The metrics of the answers."""
        return _of_judged([row.judged for row in self.rows])

    @property
    def scored_Q(self) -> NDArray[np.bool_]:
        """Whether the gold answer of each question could be scored, with a baseline also without passages."""
        books = ((row.judged, row.without or row.judged, row.closed or row.judged) for row in self.rows)
        return np.array([all(one.gold_log_prob is not None for one in some) for some in books], dtype=np.bool_)

    def summary(self, scored_Q: NDArray[np.bool_] | None = None) -> dict[str, JsonValue]:
        """Return the measures with 95% intervals over questions, as fractions; log-probabilities in nats a token.

        Figures that stand side by side are of the same questions: the log-probability of gold answers is that of
        `scored_Q` (None: all that could be scored, with a baseline in both ways). `gold_scored` counts them, and
        `judge_failures` the answers without a verdict.
        """
        scored_Q = self.scored_Q if scored_Q is None else scored_Q
        judged = [row.judged for row in self.rows]
        found: dict[str, JsonValue] = {"questions": len(self.rows), **self._measures(judged, scored_Q)}
        if self.documents:
            ranks = [row.answer_at for row in self.rows if row.question.answers]
            found["no_passage"] = sum(not row.passages for row in self.rows)
            found["has_answer"] = {
                str(k): float(np.mean([rank is not None and rank <= k for rank in ranks])) if ranks else None
                for k in range(1, self.documents + 1)
            }
        tokens = [token for row in self.rows for token in row.judged.answer.tokens]
        if any(token.is_bounded for token in tokens):
            found["certified"] = float(np.mean([token.certified for token in tokens]))
        found["without_answers"] = sum(not row.question.answers for row in self.rows)
        found["cut"] = sum(bool(row.judged.cut) for row in self.rows)
        found["gold_scored"] = int(np.count_nonzero(scored_Q))
        if closed := [row.closed for row in self.rows if row.closed is not None]:
            found["closed_book"] = self._measures(closed, scored_Q)
        if without := [row.without for row in self.rows if row.without is not None]:
            found["without_passages"] = self._measures(without, scored_Q)
            found["difference"] = self._differences()
        found["seconds"] = self.seconds
        return found

    def _measures(self, judged: Sequence[JudgedAnswer], scored_Q: NDArray[np.bool_]) -> dict[str, JsonValue]:
        measures: dict[str, JsonValue] = {}
        for name, units in _of_judged(judged).items():
            counted = units.select(scored_Q | (name != "gold_log_prob"))
            measures |= estimate(counted, metrics.statistic_of(name)).fields(name)
        if self.judge is not None:
            measures["judge_failures"] = sum(one.agrees is None and bool(one.measures) for one in judged)
        return measures

    def _differences(self) -> dict[str, JsonValue]:
        """Return the same prompt with passages minus without, on the questions that both could be judged on."""
        both = [(row.judged, row.without) for row in self.rows if row.without is not None]
        open_book, without = _of_judged([one for one, _ in both]), _of_judged([other for _, other in both])
        differences: dict[str, JsonValue] = {}
        for name, units in open_book.items():
            differences |= compare(units, without[name], metrics.statistic_of(name)).fields(name)
        return differences


def _of_judged(judged: Sequence[JudgedAnswer]) -> MetricColumns:
    columns = {name: [one.metric(name) for one in judged] for name in METRICS}
    return metric_columns(columns, [one.gold_tokens for one in judged])


def metric_columns(
    columns: Mapping[str, Sequence[float | bool | None]], gold_tokens: Sequence[int | None]
) -> MetricColumns:
    """Return the columns of metrics from the value of each question, None where it is unknown."""
    found = {}
    for name, values in columns.items():
        counts = gold_tokens if name == "gold_log_prob" else [1] * len(values)
        known = [0 if value is None else count or 0 for value, count in zip(values, counts, strict=True)]
        found[name] = Units(np.array([float(value or 0) for value in values]), np.array(known, dtype=np.int64))
    return found


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
    judge: Judge | None = None,
    baseline: bool = False,
    store: Store | None = None,
) -> QuestionEvaluation:
    """Answer questions, with the passages of `source` in their prompts if it is given, and judge the answers.

    `parts` say how passages are read: one in context (the default), several as an ensemble or concatenated.
    `demonstrations` are questions with answers that stand before every prompt, each with its own first passage. A
    `judge` also decides whether answers agree with gold answers. With `baseline` every question is also answered
    without passages: after the same prompt, and after the one that asks without passages. A `store` keeps scores,
    answers and replies of the judge for a later process.
    Raises UsageError if lengths do not fit into the model.
    """
    begun = perf_counter()
    options = options or AnswerOptions()
    check_mixer(parts, model, options)
    room = room_for_prompts(model, options)

    def answer(book: _Book) -> list[JudgedAnswer]:
        shown = list(zip(demonstrations, book.shown, strict=True))
        several = isinstance(parts.reader, Concatenation) and parts.reader.hits > 1
        asks = prompt.same_words(several=several) if book.same_words else prompt
        builder = sources.PromptBuilder(asks, model.tokenizer, room, book.parts, shown, semantics=semantics)
        inputs = [builder.build(one, book.hits.of(row), book.passages) for row, one in enumerate(questions)]
        judged = []
        with progress_bar(f"Answering{book.name}", len(inputs)) as advance:
            for number, found, gold in answer_all(inputs, model, options, store, prompt):
                judged.append(_judge(inputs[number], found, gold))
                advance()
        if judge is not None:
            asked = [place for place, one in enumerate(questions) if one.answers]
            pairs = [(questions[place], judged[place].answer.text) for place in asked]
            for place, verdict in zip(asked, judge.verdicts(pairs, store), strict=True):
                judged[place] = replace(judged[place], agrees=verdict)
        return judged

    rows = []
    results = _in_books(answer, questions, demonstrations, source, parts, model, baseline=baseline, same_words=True)
    for one, (judged, without, closed, read) in zip(questions, results, strict=True):
        ranks = (rank for rank, passage in enumerate(read, 1) if metrics.has_answer(passage.text, one.answers))
        answer_at = next(ranks, None)
        books = {"without": without, "closed": closed}
        rows.append(AnsweredQuestion(question=one, passages=read, answer_at=answer_at, judged=judged, **books))
    return QuestionEvaluation(
        rows=rows,
        documents=0 if source is None else parts.reader.hits,
        seconds=perf_counter() - begun,
        judge=None if judge is None else judge.name,
    )


def answer_qrels(questions: Sequence[Question], passages: Passages, *runs: RetrievalRun) -> dict[str, dict[str, int]]:
    """Judgements of the passages that runs found for questions: 1 if the text holds an answer (DPR's tokens), else 0.

    The runs have numbers of passages as ids (`retrieve_run` with `by_passage`). So `Success@k` is DPR's top-k accuracy;
    recall knows of no other passages. Raises UsageError if a run has another id.
    """
    answers = {question.id: question.answers for question in questions}
    qrels: dict[str, dict[str, int]] = {question.id: {} for question in questions}
    for topic, number in ((topic, number) for run in runs for topic, found in run.items() for number in found):
        if not number.isdecimal() or int(number) >= len(passages):
            raise UsageError(f"a run names passage {number!r}; with answers, a run has the numbers of passages.")
        if topic in answers and number not in qrels[topic]:
            qrels[topic][number] = int(metrics.has_answer(passages[int(number)].text, answers[topic]))
    return qrels


class _Book(NamedTuple):
    """How questions are read: the passages of the demonstrations and of the questions, or none. With `same_words`, a
    prompt without passages has the words of one with passages."""

    name: str
    parts: Parts
    shown: Sequence[Sequence[Passage]]
    hits: Hits
    passages: Passages
    same_words: bool = False


def _in_books(
    answer: Callable[[_Book], Sequence[_Result]],
    queries: Sequence[Question],
    shown: Sequence[Question],
    source: sources.QuestionSource | FromRetriever | None,
    parts: Parts,
    model: WritingModel,
    *,
    baseline: bool,
    same_words: bool = False,
) -> Iterator[tuple[_Result, _Result | None, _Result | None, list[Passage]]]:
    """Yield the result of each question; with a `baseline` and passages, those of the prompt with the `same_words`
    without passages and of the closed book; and the passages, best first."""
    hits, passages = sources.found_passages(queries, source, parts, model)
    firsts, others = sources.found_passages(shown, source if shown else None, parts, model, 1)
    first_of = [[others[number] for number, _ in firsts.of(row)] for row in range(len(shown))]
    found = answer(_Book("", parts, first_of, hits, passages))
    without: Sequence[_Result | None] = [None] * len(queries)
    closed = without
    if baseline and source is not None:
        empty = _Book(" closed book", IN_CONTEXT, [()] * len(shown), Hits.none(len(queries), 1), ())
        closed = answer(empty)
        if same_words:
            without = answer(empty._replace(name=" without passages", same_words=True))
    read = ([passages[number] for number, _ in hits.of(row)[: parts.reader.hits]] for row in range(len(queries)))
    return zip(found, without, closed, read, strict=True)


def _judge(one: sources.QuestionInput, answer: Answer, gold: GoldScore | None) -> JudgedAnswer:
    """Return an answer with its measures; without prompts it is wrong, even if an empty answer would be right."""
    answers, measures = one.question.answers if one.prompts else (), {}
    if one.question.answers:
        measures = {name: measure.of(answer.text, answers) for name, measure in metrics.ANSWER_MEASURES.items()}
    log_prob, tokens = gold or (None, None)
    return JudgedAnswer(answer=answer, cut=one.cut, measures=measures, gold_log_prob=log_prob, gold_tokens=tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenQuestion:
    """A question with the passages that were read, best first, and its choice; with a baseline the `closed` one too."""

    question: ChoiceQuestion
    passages: Sequence[Passage]
    choice: Choice
    closed: Choice | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChoiceEvaluation:
    """Questions with the choices, with `documents` passages, after `seconds`."""

    rows: Sequence[ChosenQuestion]
    documents: int
    seconds: float

    @property
    def columns(self) -> MetricColumns:
        """The metrics of the choices."""
        return choice_columns([(row.choice.right, row.choice.probabilities_C, row.choice.gold) for row in self.rows])

    def summary(self) -> dict[str, JsonValue]:
        """Return the measures with 95% intervals over questions; accuracies and probabilities are fractions."""
        closed = [row.closed for row in self.rows if row.closed is not None]
        subjects = [row.question.subject for row in self.rows]
        return {
            "questions": len(self.rows),
            "chance": float(np.mean([1 / len(row.question.choices) for row in self.rows])),
            **measures_of([row.choice for row in self.rows], closed, subjects),
            **({"no_passage": sum(not row.passages for row in self.rows)} if self.documents else {}),
            "seconds": self.seconds,
        }


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
) -> ChoiceEvaluation:
    """Let a model choose among the choices of questions, with the passages of `source` in its prompts if it is given.

    Takes the arguments of `evaluate_questions`. The most likely letter is chosen, or the most likely text if the prompt
    does not show the choices; if `options` join answers, an answer is written and read as a letter. If `demonstrations`
    have subjects, those of the question's subject are used. Raises UsageError if a question does not fit into the
    model, if there are no demonstrations of its subject, or if two of its choices have the same tokens.
    """
    begun = perf_counter()
    options = options or AnswerOptions()
    parts.check_scoring(model, "a choice")
    method = ChoiceMethod(model, prompt, options, store)
    for subject in sorted({one.subject for one in questions}):
        _of_subject(subject, demonstrations)
    for one in questions:
        sources.PromptBuilder(prompt, model.tokenizer, method.room(one)).build(method.as_question(one), [], ())

    def choose(book: _Book) -> list[Choice]:
        @cache
        def builder(subject: str, room: int) -> sources.PromptBuilder:
            places = _of_subject(subject, demonstrations)
            shown = [(method.as_question(demonstrations[place]), book.shown[place]) for place in places]
            return sources.PromptBuilder(prompt, model.tokenizer, room, book.parts, shown)

        def built(row: int, one: ChoiceQuestion) -> sources.QuestionInput:
            hits = book.hits.of(row)
            return builder(one.subject, method.room(one)).build(method.as_question(one), hits, book.passages)

        chosen: list[Choice] = []
        numbered = [*enumerate(questions)]
        with progress_bar(f"Choosing{book.name}", len(questions)) as advance:
            for begin in range(0, len(questions), _QUESTIONS_AT_ONCE):
                group = numbered[begin : begin + _QUESTIONS_AT_ONCE]
                chosen += method.choose([(one, built(row, one)) for row, one in group])
                advance(len(group))
        return chosen

    queries, shown = [one.query for one in questions], [one.query for one in demonstrations]
    results = _in_books(choose, queries, shown, source, parts, model, baseline=baseline)
    rows = [
        ChosenQuestion(question=one, passages=read, choice=choice, closed=closed)
        for one, (choice, _, closed, read) in zip(questions, results, strict=True)
    ]
    documents = 0 if source is None else parts.reader.hits
    return ChoiceEvaluation(rows=rows, documents=documents, seconds=perf_counter() - begun)


AnswerEvaluation: TypeAlias = QuestionEvaluation | ChoiceEvaluation


def evaluate_answers(
    questions: Sequence[Question] | Sequence[ChoiceQuestion],
    model: WritingModel,
    prompt: prompts.QuestionPrompt,
    **how: Any,
) -> AnswerEvaluation:
    """Evaluate questions by `evaluate_choices` if they have choices, else by `evaluate_questions`, as `how` says."""
    evaluate: Any = evaluate_choices if have_choices(questions) else evaluate_questions
    found: AnswerEvaluation = evaluate(questions, model, prompt, **how)
    return found


def have_choices(questions: Sequence[Question] | Sequence[ChoiceQuestion]) -> bool:
    """Return whether questions are multiple choice."""
    return any(isinstance(one, ChoiceQuestion) for one in questions[:1])


def _of_subject(subject: str, demonstrations: Sequence[ChoiceQuestion]) -> list[int]:
    """Return the places of the demonstrations of a subject, or of all without subjects; UsageError if it has none."""
    subjects = [one.subject for one in demonstrations]
    own = [place for place, one in enumerate(subjects) if one == subject or not any(subjects)]
    if demonstrations and not own:
        raise UsageError(f"`demonstrations` has none of the subject {subject!r}.")
    return own
