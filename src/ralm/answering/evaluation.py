"""Evaluates question answering and multiple choice, with passages and without."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.answering import metrics, multiple_choice, prompts, sources
from ralm.answering.answers import Answer, AnswerStores, answer_and_score, check_mixer, room_for_prompts
from ralm.answering.judge import Judge
from ralm.answering.likelihoods import GoldScore
from ralm.answering.options import AnswerOptions, AnswerSemantics
from ralm.answering.questions import ChoiceQuestion, Question
from ralm.errors import UsageError
from ralm.evaluation.retrieval import RetrievalRun
from ralm.protocols import WritingModel
from ralm.reading.concatenation import Concatenation
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.sources import FromRetriever
from ralm.records import Hits, IntArray, Passage, Passages
from ralm.terminal import progress_bar

_QUESTIONS_AT_ONCE: Final = 16
"""Questions of multiple choice whose prompts are in memory at a time."""
_Result = TypeVar("_Result")
METRICS: Final = (*metrics.ANSWER_MEASURES, "agrees", "gold_log_prob")
"""All that is known of an answer: its measures, the verdict of a judge, and the log-probability of the gold answer."""
MetricColumns: TypeAlias = Mapping[str, tuple[NDArray[np.float64], IntArray]]
"""For each metric the sum of every question, and what it counts: 1, or the tokens of the gold answer; 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedAnswer:
    """An answer with its `measures` (`metrics.ANSWER_MEASURES`), the verdict of a judge (`agrees`), the natural
    log-probability of the first gold answer and its number of tokens.

    Without gold answers there are no measures and the others are None, the last two also if the gold answer could not
    be scored, and `agrees` without a verdict.
    """

    answer: Answer
    measures: Mapping[str, float]
    agrees: bool | None
    gold_log_prob: float | None
    gold_tokens: int | None

    def metric(self, name: str) -> float | None:
        """One of the `METRICS`, None if it is unknown."""
        known: Mapping[str, float | None] = {"agrees": self.agrees, "gold_log_prob": self.gold_log_prob}
        return known[name] if name in known else self.measures.get(name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnsweredQuestion:
    """A question with its passages and its answer; with a baseline, also the answer to the same prompt `without`
    passages, and the `closed` one to the prompt that asks without passages.

    `passages` are those that were read, best first; `answer_at` is the rank, from 1, of the first that holds an answer
    (DPR's tokens, the text without its title), or None. `cut` is the largest cut of a prompt.
    """

    question: Question
    passages: Sequence[Passage]
    answer_at: int | None
    cut: prompts.Cut
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
    def scored_Q(self) -> NDArray[np.bool_]:
        """Whether the gold answer of each question could be scored, with a baseline also without passages."""
        books = ((row.judged, row.without or row.judged, row.closed or row.judged) for row in self.rows)
        return np.array([all(one.gold_log_prob is not None for one in some) for some in books], dtype=np.bool_)

    def summary(self, scored_Q: NDArray[np.bool_] | None = None) -> dict[str, JsonValue]:
        """The measures with 95% intervals over questions, as fractions; log-probabilities in nats a token.

        Figures that stand side by side are of the same questions: the log-probability of gold answers is that of
        `scored_Q` (None: all that could be scored, with a baseline in both ways). `gold_scored` counts them, and
        `judge_failures` the answers without a verdict.
        """
        scored_Q = self.scored_Q if scored_Q is None else scored_Q
        judged = [row.judged for row in self.rows]
        found: dict[str, JsonValue] = {"questions": len(self.rows), **self._measures(judged, scored_Q)}
        if self.documents:
            ranks = [row.answer_at for row in self.rows if row.question.answers]
            found["has_answer"] = {
                str(k): float(np.mean([rank is not None and rank <= k for rank in ranks])) if ranks else None
                for k in range(1, self.documents + 1)
            }
        tokens = [token for row in self.rows for token in row.judged.answer.tokens]
        if any(token.is_bounded for token in tokens):
            found["certified"] = float(np.mean([token.certified for token in tokens]))
        found["without_answers"] = sum(not row.question.answers for row in self.rows)
        found["cut"] = sum(bool(row.cut) for row in self.rows)
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
        for name, (sums_Q, counts_Q) in _of_judged(judged).items():
            measures |= multiple_choice.mean_of(name, sums_Q, counts_Q * (scored_Q | (name != "gold_log_prob")))
        if self.judge is not None:
            measures["judge_failures"] = sum(one.agrees is None and bool(one.measures) for one in judged)
        return measures

    def _differences(self) -> dict[str, JsonValue]:
        """The same prompt with passages minus without, on the questions that both could be judged on."""
        both = [(row.judged, row.without) for row in self.rows if row.without is not None]
        open_book, without = _of_judged([one for one, _ in both]), _of_judged([other for _, other in both])
        differences: dict[str, JsonValue] = {}
        for name, (sums_Q, counts_Q) in open_book.items():
            others_Q, other_counts_Q = without[name]
            differences |= multiple_choice.mean_of(name, sums_Q - others_Q, counts_Q * (other_counts_Q > 0))
        return differences


def _of_judged(judged: Sequence[JudgedAnswer]) -> MetricColumns:
    columns = {name: [one.metric(name) for one in judged] for name in METRICS}
    return metric_columns(columns, [one.gold_tokens for one in judged])


def metric_columns(
    columns: Mapping[str, Sequence[float | bool | None]], gold_tokens: Sequence[int | None]
) -> MetricColumns:
    """The columns of metrics from the value of each question, None where it is unknown."""
    tokens_Q = np.array([number or 0 for number in gold_tokens], dtype=np.int64)
    found = {}
    for name, values in columns.items():
        known_Q = np.array([value is not None for value in values], dtype=np.int64)
        sums_Q = np.array([float(value or 0) for value in values])
        found[name] = (sums_Q, known_Q * tokens_Q if name == "gold_log_prob" else known_Q)
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
    stores: AnswerStores | None = None,
) -> QuestionEvaluation:
    """Answer questions, with the passages of `source` in their prompts if it is given, and judge the answers.

    `parts` say how passages are read: one in context (the default), several as an ensemble or concatenated.
    `demonstrations` are questions with answers that stand before every prompt, each with its own first passage. A
    `judge` also decides whether answers agree with gold answers. With `baseline` every question is also answered
    without passages: after the same prompt, and after the one that asks without passages. `stores` keep scores, answers
    and replies of the judge for a later process.
    Raises UsageError if lengths do not fit into the model.
    """
    begun = perf_counter()
    options = options or AnswerOptions()
    check_mixer(parts, model, options)
    room = room_for_prompts(model, options)

    def answer(book: _Book) -> list[tuple[prompts.Cut, JudgedAnswer]]:
        shown = list(zip(demonstrations, book.shown, strict=True))
        several = isinstance(parts.reader, Concatenation) and parts.reader.hits > 1
        asks = prompt.same_words(several=several) if book.same_words else prompt
        builder = sources.PromptBuilder(asks, model.tokenizer, room, book.parts, shown, semantics=semantics)
        inputs = [builder.build(one, book.hits.of(row), book.passages) for row, one in enumerate(questions)]
        judged = []
        with progress_bar(f"Answering{book.name}", len(inputs)) as advance:
            for number, found, gold in answer_and_score(inputs, prompt, model, options, stores):
                judged.append(_judge(inputs[number], found, gold))
                advance()
        if judge is not None:
            asked = [place for place, one in enumerate(inputs) if one.question.answers]
            pairs = [(inputs[place].question, judged[place].answer.text) for place in asked]
            verdicts = judge.verdicts(pairs, None if stores is None else stores.replies)
            for place, verdict in zip(asked, verdicts, strict=True):
                judged[place] = replace(judged[place], agrees=verdict)
        return [(one.largest_cut, answer) for one, answer in zip(inputs, judged, strict=True)]

    rows = []
    results = _in_books(answer, questions, demonstrations, source, parts, model, baseline=baseline, same_words=True)
    for one, ((cut, judged), without, closed, read) in zip(questions, results, strict=True):
        ranks = (rank for rank, passage in enumerate(read, 1) if metrics.has_answer(passage.text, one.answers))
        rows.append(
            AnsweredQuestion(
                question=one,
                passages=read,
                answer_at=next(ranks, None),
                cut=cut,
                judged=judged,
                without=None if without is None else without[1],
                closed=None if closed is None else closed[1],
            )
        )
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
    """How questions are read: the passages of the demonstrations and of the questions, or none."""

    name: str
    parts: Parts
    shown: Sequence[Sequence[Passage]]
    hits: Hits
    passages: Passages
    same_words: bool = False
    """Whether a prompt without passages has the words of one with passages."""


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
    """The result of each question, those without passages if there is a `baseline`, and the passages, best first.

    Of the results without passages, the first is that of a prompt with the `same_words`, the second that of the prompt
    that asks without passages.
    """
    hits, passages = sources.found_passages(queries, source, parts, model)
    firsts, others = sources.found_passages(shown, source if shown else None, parts, model, 1)
    first_of = [[others[number] for number, _ in firsts.of(row)] for row in range(len(shown))]
    found = answer(_Book("", parts, first_of, hits, passages))
    closed: Sequence[_Result | None] = [None] * len(queries)
    without = closed
    if baseline and source is not None:
        nothing, empty = Hits.none(len(queries), 1), [()] * len(shown)
        closed = answer(_Book(" closed book", IN_CONTEXT, empty, nothing, ()))
        if same_words:
            without = answer(_Book(" without passages", IN_CONTEXT, empty, nothing, (), same_words=True))
    read = ([passages[number] for number, _ in hits.of(row)[: parts.reader.hits]] for row in range(len(queries)))
    return zip(found, without, closed, read, strict=True)


def _judge(one: sources.QuestionInput, answer: Answer, gold: GoldScore | None) -> JudgedAnswer:
    """An answer with its measures; a question without prompts is wrong, even if an empty answer would be right."""
    answers = one.question.answers if one.prompts else ()
    measures = {name: measure.of(answer.text, answers) for name, measure in metrics.ANSWER_MEASURES.items()}
    return JudgedAnswer(
        answer=answer,
        measures=measures if one.question.answers else {},
        agrees=None,
        gold_log_prob=None if gold is None else gold[0],
        gold_tokens=None if gold is None else gold[1],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenQuestion:
    """A question with the passages that were read, best first, and the choice; with a baseline, also the choice without
    passages."""

    question: ChoiceQuestion
    passages: Sequence[Passage]
    choice: multiple_choice.Choice
    closed: multiple_choice.Choice | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChoiceEvaluation:
    """Questions with the choices, with `documents` passages, after `seconds`."""

    rows: Sequence[ChosenQuestion]
    documents: int
    seconds: float

    def summary(self) -> dict[str, JsonValue]:
        """The measures with 95% intervals over questions; accuracies and probabilities are fractions."""
        closed = [row.closed for row in self.rows if row.closed is not None]
        subjects = [row.question.subject for row in self.rows]
        return {
            "questions": len(self.rows),
            "chance": float(np.mean([1 / len(row.question.choices) for row in self.rows])),
            **multiple_choice.measures_of([row.choice for row in self.rows], closed, subjects),
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
    stores: AnswerStores | None = None,
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
    method = multiple_choice.choice_method(model, prompt, options, stores or AnswerStores())
    for subject in sorted({one.subject for one in questions}):
        _of_subject(subject, demonstrations)
    for one in questions:
        sources.PromptBuilder(prompt, model.tokenizer, method.room(one)).build(method.as_question(one), [], ())

    def choose(book: _Book) -> list[multiple_choice.Choice]:
        @cache
        def builder(subject: str, room: int) -> sources.PromptBuilder:
            own = _of_subject(subject, demonstrations)
            shown = [(method.as_question(demonstrations[place]), book.shown[place]) for place in own]
            return sources.PromptBuilder(prompt, model.tokenizer, room, book.parts, shown)

        chosen: list[multiple_choice.Choice] = []
        with progress_bar(f"Choosing{book.name}", len(questions)) as advance:
            for begin in range(0, len(questions), _QUESTIONS_AT_ONCE):
                inputs = []
                for row, one in enumerate(questions[begin : begin + _QUESTIONS_AT_ONCE], begin):
                    own = builder(one.subject, method.room(one))
                    inputs.append((one, own.build(method.as_question(one), book.hits.of(row), book.passages)))
                chosen += method.choose(inputs)
                advance(len(inputs))
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
    """Evaluate questions by `evaluate_choices` if they have choices, else by `evaluate_questions`; `how` are its other
    arguments."""
    evaluate: Any = evaluate_choices if have_choices(questions) else evaluate_questions
    found: AnswerEvaluation = evaluate(questions, model, prompt, **how)
    return found


def have_choices(questions: Sequence[Question] | Sequence[ChoiceQuestion]) -> bool:
    """Return whether questions are multiple choice."""
    return any(isinstance(one, ChoiceQuestion) for one in questions[:1])


def _of_subject(subject: str, demonstrations: Sequence[ChoiceQuestion]) -> list[int]:
    """The places of the demonstrations of a subject, or of all if they have no subjects; UsageError if the subject has
    none."""
    subjects = [one.subject for one in demonstrations]
    own = [place for place, one in enumerate(subjects) if one == subject or not any(subjects)]
    if demonstrations and not own:
        raise UsageError(f"`demonstrations` has none of the subject {subject!r}.")
    return own
