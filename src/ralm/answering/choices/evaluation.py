"""Multiple choice evaluated: what a model chooses, with passages and without.

Knows questions, passages and ways of choosing; knows nothing of files or terminals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.answering.answers import Asker, KeptAnswers
from ralm.answering.choices.choosing import Choice, Way, way_of
from ralm.answering.choices.measures import measures_of
from ralm.answering.choices.questions import ChoiceQuestion
from ralm.answering.options import ChoiceOptions
from ralm.answering.prompts import QuestionPrompt
from ralm.answering.sources import QuestionSource, first_passages, found_passages
from ralm.errors import UsageError
from ralm.protocols import Reader, WritingModel
from ralm.reading.in_context import InContext
from ralm.records import Hits, Passage, Passages
from ralm.terminal import progress_bar

_QUESTIONS_AT_ONCE: Final = 16
"""Questions whose prompts are in memory at a time."""


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
        closed = [row.closed for row in self.rows if row.closed is not None]
        subjects = [row.question.subject for row in self.rows]
        return {
            "questions": len(self.rows),
            "chance": float(np.mean([1 / len(row.question.choices) for row in self.rows])),
            **measures_of([row.choice for row in self.rows], closed, subjects),
            "seconds": self.seconds,
        }


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
