"""Multiple choice evaluated: what a model chooses, how often it is right by subject and category, and how well its
confidence is calibrated, with passages and without.

Knows what was chosen; knows nothing of files or terminals. Letters of shapes: U questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.answering.answers import Asker, KeptAnswers
from ralm.answering.choices.choosing import Choice, Way, way_of
from ralm.answering.choices.questions import ChoiceQuestion
from ralm.answering.choices.subjects import CATEGORIES, category_of
from ralm.answering.options import ChoiceOptions
from ralm.answering.prompts import QuestionPrompt
from ralm.answering.sources import QuestionSource, first_passages, found_passages
from ralm.errors import UsageError
from ralm.evaluation.bootstrap import bootstrap_means, interval
from ralm.evaluation.calibration import brier_score, calibration_bins, expected_calibration_error
from ralm.progress import progress_bar
from ralm.protocols import Reader, WritingModel
from ralm.reading.in_context import InContext
from ralm.records import Hits, Passage, Passages

_QUESTIONS_AT_ONCE: Final = 64
"""Questions whose prompts are in memory at a time."""
_Columns: TypeAlias = Mapping[str, NDArray[np.float64]]
"""A number of each question (U) by the name of what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenQuestion:
    """A question with the passages that were read, best first, and what was chosen; with a baseline, also without
    passages."""

    question: ChoiceQuestion
    passages: Sequence[Passage]
    choice: Choice
    closed: Choice | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChoiceEvaluation:
    """Questions with what was chosen, with `documents` passages; `seconds` it took."""

    rows: Sequence[ChosenQuestion]
    documents: int
    seconds: float

    def summary(self) -> dict[str, JsonValue]:
        """The measures with 95% intervals over questions; accuracies and probabilities are fractions."""
        found: dict[str, JsonValue] = {
            "questions": len(self.rows),
            "chance": float(np.mean([1 / len(row.question.choices) for row in self.rows])),
            **self._measures([row.choice for row in self.rows]),
        }
        closed = [row.closed for row in self.rows if row.closed is not None]
        if closed:
            found["closed_book"] = self._measures(closed)
            found["difference"] = self._differences(closed)
        found["seconds"] = self.seconds
        return found

    def _measures(self, choices: Sequence[Choice]) -> dict[str, JsonValue]:
        return {
            **self._means(_columns(choices)),
            **_calibration(choices),
            "no_choice": sum(one.chosen is None for one in choices),
            "cut": sum(bool(one.cut) for one in choices),
        }

    def _differences(self, closed: Sequence[Choice]) -> dict[str, JsonValue]:
        """Open book minus closed book, on the same questions."""
        with_passages, without = _columns([row.choice for row in self.rows]), _columns(closed)
        return self._means({name: with_passages[name] - without[name] for name in with_passages if name in without})

    def _means(self, columns: _Columns) -> dict[str, JsonValue]:
        """The means over all questions, and the accuracy by category and by subject."""
        subjects = np.array([row.question.subject for row in self.rows])
        accuracy = columns["accuracy"]
        found = _means_of(columns)
        if subjects.any():
            found["mean_of_subjects"] = _mean_of_subjects(accuracy, subjects)
            found["categories"] = _by_category(accuracy, subjects)
            found["subjects"] = {
                subject: _accuracy(accuracy[subjects == subject]) for subject in np.unique(subjects).tolist() if subject
            }
        return found


def _columns(choices: Sequence[Choice]) -> dict[str, NDArray[np.float64]]:
    """Whether each choice is right; if choices have probabilities, the Brier score, and the natural logarithm of the
    probability of the right one, unless that is 0 anywhere."""
    columns = {"accuracy": np.array([float(one.right) for one in choices])}
    known = [(one.probabilities_C, one.gold) for one in choices if one.probabilities_C is not None]
    if known:
        columns["brier_score"] = np.array([brier_score(*one) for one in known])
        golds = np.array([probabilities_C[gold] for probabilities_C, gold in known])
        if golds.all():
            columns["gold_log_prob"] = np.log(golds)
    return columns


def _calibration(choices: Sequence[Choice]) -> dict[str, JsonValue]:
    """Mean confidence (the probability of the likeliest choice), expected calibration error and its bins; nothing if
    choices have no probabilities."""
    confidences_U = np.array([one.probabilities_C.max() for one in choices if one.probabilities_C is not None])
    if not len(confidences_U):
        return {}
    bins = calibration_bins(confidences_U, np.array([one.right for one in choices]))
    return {
        "confidence": float(confidences_U.mean()),
        "expected_calibration_error": expected_calibration_error(bins),
        "calibration": [asdict(one) for one in bins],
    }


def _means_of(columns: _Columns) -> dict[str, JsonValue]:
    """The mean of each column and its interval; all columns share the drawn questions."""
    values_UR = np.stack([*columns.values()], axis=1)
    drawn_DR = bootstrap_means(values_UR, np.ones(len(values_UR), dtype=np.int64))
    found: dict[str, JsonValue] = {}
    for column, name in enumerate(columns):
        found[name] = float(values_UR[:, column].mean())
        found[f"{name}_interval"] = [*interval(drawn_DR[:, column])]
    return found


def _accuracy(accuracy_U: NDArray[np.float64]) -> dict[str, JsonValue]:
    return {"questions": len(accuracy_U), **_means_of({"accuracy": accuracy_U})}


def _by_category(accuracy_U: NDArray[np.float64], subjects_U: NDArray[np.str_]) -> dict[str, JsonValue]:
    """The accuracy of each category of MMLU that has questions."""
    categories_U = np.array([category_of(subject) or "" for subject in subjects_U])
    found: dict[str, JsonValue] = {}
    for category in CATEGORIES:
        its_U = categories_U == category
        if its_U.any():
            mean = _mean_of_subjects(accuracy_U[its_U], subjects_U[its_U])
            found[category] = {**_accuracy(accuracy_U[its_U]), "mean_of_subjects": mean}
    return found


def _mean_of_subjects(accuracy_U: NDArray[np.float64], subjects_U: NDArray[np.str_]) -> float:
    """The mean of the accuracies of subjects: each counts the same, however many questions it has."""
    return float(np.mean([accuracy_U[subjects_U == subject].mean() for subject in np.unique(subjects_U)]))


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
    kept: KeptAnswers | None = None,
) -> ChoiceEvaluation:
    """Let a model choose among the choices of questions, with the passages of `source` in its prompts if it is given.

    `reader` says how passages are read: one in context (the default), several as an ensemble or concatenated.
    `demonstrations` stand before every prompt, each with its own first passage; if they have subjects, those of the
    question's subject. With `baseline` every question is also asked without passages. `kept` keeps what is scored and
    written, for a later process. Raises UsageError if a question does not fit into the model, if there are no
    demonstrations of its subject, or if the model cannot tell its choices apart.
    """
    begun = perf_counter()
    reader, options = reader or InContext(), options or ChoiceOptions()
    way = way_of(model, prompt, options, kept or KeptAnswers())
    alone = _Chooser(way, model, prompt, InContext(), _Shown(demonstrations, [()] * len(demonstrations)))
    alone.check(questions)
    hits, passages = found_passages([one.query for one in questions], source, reader.hits)
    shown = _Shown(demonstrations, first_passages([one.query for one in demonstrations], source))
    chosen = _Chooser(way, model, prompt, reader, shown).choose(questions, hits, passages, "Choosing")
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
class _Shown:
    """Demonstrations, each with the passages that stand before it."""

    questions: Sequence[ChoiceQuestion]
    passages: Sequence[Sequence[Passage]]

    def of(self, subject: str) -> list[tuple[ChoiceQuestion, Sequence[Passage]]]:
        """Those of a subject, or all if they have no subjects; UsageError if there are none of it."""
        pairs = [*zip(self.questions, self.passages, strict=True)]
        if not any(one.subject for one in self.questions):
            return pairs
        own = [(one, passages) for one, passages in pairs if one.subject == subject]
        if not own:
            raise UsageError(f"`demonstrations` has none of the subject {subject!r}.")
        return own


class _Chooser:
    """Puts questions and passages into prompts and lets the model choose."""

    def __init__(self, way: Way, model: WritingModel, prompt: QuestionPrompt, reader: Reader, shown: _Shown) -> None:
        self._way = way
        self._tokenizer = model.tokenizer
        self._prompt = prompt
        self._reader = reader
        self._shown = shown
        self._askers: dict[tuple[str, int], Asker] = {}

    def check(self, questions: Sequence[ChoiceQuestion]) -> None:
        """Raise UsageError now, and not hours later, if a question cannot be asked."""
        for subject in sorted({one.subject for one in questions}):
            self._shown.of(subject)
        for one in questions:
            Asker(self._prompt, self._tokenizer, self._way.room(one)).ask(one.answered(self._way.answer(one)), [], ())

    def choose(self, questions: Sequence[ChoiceQuestion], hits: Hits, passages: Passages, what: str) -> list[Choice]:
        """What is chosen with the passages of the hits."""
        chosen: list[Choice] = []
        with progress_bar(what, len(questions)) as advance:
            for begin in range(0, len(questions), _QUESTIONS_AT_ONCE):
                some = questions[begin : begin + _QUESTIONS_AT_ONCE]
                asked = [
                    (one, self._asker(one).ask(one.answered(self._way.answer(one)), hits.of(row), passages))
                    for row, one in enumerate(some, begin)
                ]
                chosen += self._way.choose(asked)
                advance(len(some))
        return chosen

    def _asker(self, question: ChoiceQuestion) -> Asker:
        """What asks questions of this subject and leaves this room, with the demonstrations of the subject."""
        key = question.subject, self._way.room(question)
        if key not in self._askers:
            shown = [(one.answered(self._way.answer(one)), read) for one, read in self._shown.of(question.subject)]
            self._askers[key] = Asker(self._prompt, self._tokenizer, key[1], self._reader, shown)
        return self._askers[key]
