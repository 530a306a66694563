"""Evaluates question answering and multiple choice, with passages and without."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.answering.answers import Answer, AnswerStores, GoldScore, answer_and_score, room_for_prompts
from ralm.answering.metrics import exact_match, f1, has_answer, token_match
from ralm.answering.multiple_choice import Choice, ChoiceMethod, choice_method, measures_of
from ralm.answering.options import AnswerOptions, AnswerSemantics, ChoiceOptions
from ralm.answering.prompts import Cut, QuestionPrompt
from ralm.answering.questions import ChoiceQuestion, Question
from ralm.answering.sources import PromptBuilder, QuestionInput, QuestionSource, first_passages, found_passages
from ralm.errors import UsageError
from ralm.evaluation.bootstrap import bootstrap_means, interval
from ralm.protocols import Reader, WritingModel
from ralm.reading.in_context import InContext
from ralm.records import Hits, IntArray, Passage, Passages
from ralm.terminal import progress_bar

_QUESTIONS_AT_ONCE: Final = 16
"""Questions of multiple choice whose prompts are in memory at a time."""
METRICS: Final = ("exact_match", "token_match", "f1", "gold_log_prob")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedAnswer:
    """An answer with its measures: exact match, equal DPR tokens, F1, the natural log-probability of the first gold
    answer and its number of tokens. All are None without gold answers, the last two also if it could not be scored."""

    answer: Answer
    exact_match: bool | None
    token_match: bool | None
    f1: float | None
    gold_log_prob: float | None
    gold_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnsweredQuestion:
    """A question with its passages and its answer, and with a baseline, the answer without passages.

    `passages` are those that were read, best first; `answer_at` is the rank, from 1, of the first that holds an answer
    (DPR's tokens, the text without its title), or None. `cut` is the largest cut of a prompt.
    """

    question: Question
    passages: Sequence[Passage]
    answer_at: int | None
    cut: Cut
    judged: JudgedAnswer
    closed: JudgedAnswer | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuestionEvaluation:
    """Questions with their answers, with `documents` passages, after `seconds`."""

    rows: Sequence[AnsweredQuestion]
    documents: int
    seconds: float

    @property
    def scored_Q(self) -> NDArray[np.bool_]:
        """Whether the gold answer of each question could be scored, with a baseline also without passages."""
        both = ((row.judged, row.closed or row.judged) for row in self.rows)
        return np.array([None not in (one.gold_log_prob, other.gold_log_prob) for one, other in both], dtype=np.bool_)

    def summary(self, scored_Q: NDArray[np.bool_] | None = None) -> dict[str, JsonValue]:
        """The measures with 95% intervals over questions, as fractions; log-probabilities in nats a token.

        Figures that stand side by side are of the same questions: the log-probability of gold answers is that of
        `scored_Q` (None: all that could be scored, with a baseline in both ways). `gold_scored` counts them.
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
        closed = [row.closed for row in self.rows if row.closed is not None]
        if closed:
            found["closed_book"] = self._measures(closed, scored_Q)
            found["difference"] = self._differences()
        found["seconds"] = self.seconds
        return found

    def _measures(self, judged: Sequence[JudgedAnswer], scored_Q: NDArray[np.bool_]) -> dict[str, JsonValue]:
        measures: dict[str, JsonValue] = {}
        for name, (sums, counts) in _columns(judged).items():
            if (judged_U := (counts > 0) & (scored_Q | (name != "gold_log_prob"))).any():
                drawn = bootstrap_means(sums[judged_U, None], counts[judged_U])[:, 0]
                measures[name] = float(sums[judged_U].sum() / counts[judged_U].sum())
                measures[f"{name}_interval"] = list(interval(drawn))
        return measures

    def _differences(self) -> dict[str, JsonValue]:
        """Open book minus closed book, on the questions that both could be judged on."""
        both = [(row.judged, row.closed) for row in self.rows if row.closed is not None]
        open_book, closed = _columns([one for one, _ in both]), _columns([other for _, other in both])
        differences: dict[str, JsonValue] = {}
        for name in METRICS:
            (sums, counts), (others, other_counts) = open_book[name], closed[name]
            both_U = (counts > 0) & (other_counts > 0)
            if both_U.any():
                drawn = bootstrap_means((sums - others)[both_U, None], counts[both_U])[:, 0]
                differences[name] = float((sums - others)[both_U].sum() / counts[both_U].sum())
                differences[f"{name}_interval"] = list(interval(drawn))
        return differences


def _columns(judged: Sequence[JudgedAnswer]) -> Mapping[str, tuple[NDArray[np.float64], IntArray]]:
    """For each metric the sum of every question and what it counts: 1, or the tokens of the gold answer."""
    tokens = np.array([one.gold_tokens or 0 for one in judged], dtype=np.int64)
    columns = {name: [getattr(one, name) for one in judged] for name in METRICS}
    return {
        name: (
            np.array([float(value or 0) for value in values]),
            tokens if name == "gold_log_prob" else np.array([value is not None for value in values], dtype=np.int64),
        )
        for name, values in columns.items()
    }


class AnswerParts(TypedDict, total=False):
    """The arguments that say how questions are answered, see `evaluate_questions`."""

    demonstrations: Sequence[Question]
    options: AnswerOptions | None
    semantics: AnswerSemantics


class QuestionParts(AnswerParts, total=False):
    """The same with the source of passages."""

    source: QuestionSource | None
    reader: Reader | None


def evaluate_questions(
    questions: Sequence[Question],
    model: WritingModel,
    prompt: QuestionPrompt,
    *,
    source: QuestionSource | None = None,
    reader: Reader | None = None,
    demonstrations: Sequence[Question] = (),
    options: AnswerOptions | None = None,
    semantics: AnswerSemantics = "paper",
    baseline: bool = False,
    stores: AnswerStores | None = None,
) -> QuestionEvaluation:
    """Answer questions, with the passages of `source` in their prompts if it is given, and judge the answers.

    `reader` says how passages are read: one in context (the default), several as an ensemble or concatenated.
    `demonstrations` are questions with answers that stand before every prompt, each with its own first passage. With
    `baseline` every question is also answered without passages. `stores` keep scores and answers for a later process.
    Raises UsageError if lengths do not fit into the model.
    """
    begun = perf_counter()
    options, reader = options or AnswerOptions(), reader or InContext()
    room = room_for_prompts(model, options)
    hits, passages = found_passages(questions, source, reader.hits)
    shown = list(zip(demonstrations, first_passages(demonstrations, source), strict=True))
    builder = PromptBuilder(prompt, model.tokenizer, room, reader, shown, semantics=semantics)
    inputs = [builder.build(one, hits.of(row), passages) for row, one in enumerate(questions)]

    def judge(inputs: Sequence[QuestionInput], task: str) -> list[JudgedAnswer]:
        judged: list[JudgedAnswer] = []
        with progress_bar(task, len(inputs)) as advance:
            for number, answer, gold in answer_and_score(inputs, prompt, model, options, stores):
                judged.append(_judge(inputs[number], answer, gold))
                advance()
        return judged

    judged = judge(inputs, "Answering")
    closed: Sequence[JudgedAnswer | None] = [None] * len(questions)
    if baseline and source is not None:
        shown = [(one, ()) for one in demonstrations]
        alone = PromptBuilder(prompt, model.tokenizer, room, InContext(), shown, semantics=semantics)
        closed = judge([alone.build(one, [], ()) for one in questions], "Answering without passages")
    rows = []
    for row, one in enumerate(inputs):
        read = [passages[number] for number, _ in hits.of(row)[: reader.hits]]
        ranks = (rank for rank, passage in enumerate(read, 1) if has_answer(passage.text, one.question.answers))
        rows.append(
            AnsweredQuestion(
                question=one.question,
                passages=read,
                answer_at=next(ranks, None),
                cut=one.largest_cut,
                judged=judged[row],
                closed=closed[row],
            )
        )
    return QuestionEvaluation(rows=rows, documents=0 if source is None else reader.hits, seconds=perf_counter() - begun)


def _judge(one: QuestionInput, answer: Answer, gold: GoldScore | None) -> JudgedAnswer:
    """An answer with its measures; a question without prompts is wrong, even if an empty answer would be right."""
    known = bool(one.question.answers)
    answers = one.question.answers if one.prompts else ()
    return JudgedAnswer(
        answer=answer,
        exact_match=exact_match(answer.text, answers) if known else None,
        token_match=token_match(answer.text, answers) if known else None,
        f1=f1(answer.text, answers) if known else None,
        gold_log_prob=None if gold is None else gold[0],
        gold_tokens=None if gold is None else gold[1],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenQuestion:
    """A question with the passages that were read, best first, and the choice; with a baseline, also the choice without
    passages."""

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

    def summary(self) -> dict[str, JsonValue]:
        """The measures with 95% intervals over questions; accuracies and probabilities are fractions."""
        closed = [row.closed for row in self.rows if row.closed is not None]
        subjects = [row.question.subject for row in self.rows]
        return {
            "questions": len(self.rows),
            "chance": float(np.mean([1 / len(row.question.choices) for row in self.rows])),
            **measures_of([row.choice for row in self.rows], closed, subjects),
            "seconds": self.seconds,
        }


class ChoiceParts(TypedDict, total=False):
    """The arguments that say how multiple choice is answered, see `evaluate_choices`."""

    source: QuestionSource | None
    reader: Reader | None
    demonstrations: Sequence[ChoiceQuestion]
    options: ChoiceOptions | None


def evaluate_choices(
    questions: Sequence[ChoiceQuestion],
    model: WritingModel,
    prompt: QuestionPrompt,
    *,
    source: QuestionSource | None = None,
    reader: Reader | None = None,
    demonstrations: Sequence[ChoiceQuestion] = (),
    options: ChoiceOptions | None = None,
    baseline: bool = False,
    stores: AnswerStores | None = None,
) -> ChoiceEvaluation:
    """Let a model choose among the choices of questions, with the passages of `source` in its prompts if it is given.

    Takes the arguments of `evaluate_questions`. If `demonstrations` have subjects, those of the question's subject are
    used. Raises UsageError if a question does not fit into the model, if there are no demonstrations of its subject, or
    if two of its choices have the same tokens.
    """
    begun = perf_counter()
    reader, options = reader or InContext(), options or ChoiceOptions()
    method = choice_method(model, prompt, options, stores or AnswerStores())
    alone = _Chooser(method, model, prompt, InContext(), _Demonstrations(demonstrations, [()] * len(demonstrations)))
    alone.check(questions)
    hits, passages = found_passages([one.query for one in questions], source, reader.hits)
    shown = _Demonstrations(demonstrations, first_passages([one.query for one in demonstrations], source))
    chosen = _Chooser(method, model, prompt, reader, shown).choose(questions, hits, passages, "Choosing")
    closed: Sequence[Choice | None] = [None] * len(questions)
    if baseline and source is not None:
        closed = alone.choose(questions, Hits.none(len(questions), 1), (), "Choosing without passages")
    rows = [
        ChosenQuestion(
            question=one,
            passages=[passages[number] for number, _ in hits.of(row)[: reader.hits]],
            choice=chosen[row],
            closed=closed[row],
        )
        for row, one in enumerate(questions)
    ]
    return ChoiceEvaluation(rows=rows, documents=0 if source is None else reader.hits, seconds=perf_counter() - begun)


@dataclass(frozen=True, slots=True)
class _Demonstrations:
    """Demonstrations, each with the passages that stand before it."""

    questions: Sequence[ChoiceQuestion]
    passages: Sequence[Sequence[Passage]]

    def of(self, subject: str) -> list[tuple[ChoiceQuestion, Sequence[Passage]]]:
        """Those of a subject, or all if they have no subjects; UsageError if the subject has none."""
        pairs = [*zip(self.questions, self.passages, strict=True)]
        if not any(one.subject for one in self.questions):
            return pairs
        own = [(one, passages) for one, passages in pairs if one.subject == subject]
        if not own:
            raise UsageError(f"`demonstrations` has none of the subject {subject!r}.")
        return own


class _Chooser:
    """Puts questions and passages into prompts and lets the model choose."""

    def __init__(
        self,
        method: ChoiceMethod,
        model: WritingModel,
        prompt: QuestionPrompt,
        reader: Reader,
        demonstrations: _Demonstrations,
    ) -> None:
        self._method = method
        self._tokenizer = model.tokenizer
        self._prompt = prompt
        self._reader = reader
        self._demonstrations = demonstrations
        self._builders: dict[tuple[str, int], PromptBuilder] = {}

    def check(self, questions: Sequence[ChoiceQuestion]) -> None:
        """Raise UsageError before anything is scored if a question does not fit into the model."""
        for subject in sorted({one.subject for one in questions}):
            self._demonstrations.of(subject)
        for one in questions:
            builder = PromptBuilder(self._prompt, self._tokenizer, self._method.room(one))
            builder.build(one.with_answer(self._method.answer(one)), [], ())

    def choose(self, questions: Sequence[ChoiceQuestion], hits: Hits, passages: Passages, task: str) -> list[Choice]:
        """The choices with the passages of the hits."""
        chosen: list[Choice] = []
        with progress_bar(task, len(questions)) as advance:
            for begin in range(0, len(questions), _QUESTIONS_AT_ONCE):
                some = questions[begin : begin + _QUESTIONS_AT_ONCE]
                inputs = [
                    (one, self._builder(one).build(one.with_answer(self._method.answer(one)), hits.of(row), passages))
                    for row, one in enumerate(some, begin)
                ]
                chosen += self._method.choose(inputs)
                advance(len(some))
        return chosen

    def _builder(self, question: ChoiceQuestion) -> PromptBuilder:
        """The builder for this subject and room, with the demonstrations of the subject."""
        key = question.subject, self._method.room(question)
        if key not in self._builders:
            shown = [
                (one.with_answer(self._method.answer(one)), passages)
                for one, passages in self._demonstrations.of(question.subject)
            ]
            self._builders[key] = PromptBuilder(self._prompt, self._tokenizer, key[1], self._reader, shown)
        return self._builders[key]
