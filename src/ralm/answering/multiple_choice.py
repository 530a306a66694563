"""How a language model answers multiple choice, and how its choices are judged: accuracy by subject.

    p(c | q) = sum over prompts d of  weight_d  p(letter of c | prompt_d)          (REPLUG, Eq. 2 and section 6.2)

Letters of shapes: C choices of a question, U questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.answering import metrics
from ralm.answering.answers import TextLikelihood, answer_all, likelihoods, room_for_prompts
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import LETTERS, Cut, PromptEncoder, QuestionPrompt, tokens_after
from ralm.answering.questions import ChoiceQuestion
from ralm.answering.sources import QuestionInput
from ralm.errors import UsageError
from ralm.evaluation.intervals import Column, Units, estimate
from ralm.lm.scoring import Scorer
from ralm.protocols import WritingModel
from ralm.reading.mixture import log_softmax
from ralm.records import IntArray
from ralm.storage.store import Store
from ralm.validation import MAX_COUNT, check_length

_BEFORE_LETTER: Final = "answer is "

CATEGORIES: Final = {
    "humanities": (
        "formal_logic high_school_european_history high_school_us_history high_school_world_history "
        "international_law jurisprudence logical_fallacies moral_disputes moral_scenarios philosophy prehistory "
        "professional_law world_religions"
    ).split(),
    "social sciences": (
        "econometrics high_school_geography high_school_government_and_politics high_school_macroeconomics "
        "high_school_microeconomics high_school_psychology human_sexuality professional_psychology "
        "public_relations security_studies sociology us_foreign_policy"
    ).split(),
    "STEM": (
        "abstract_algebra anatomy astronomy college_biology college_chemistry college_computer_science "
        "college_mathematics college_physics computer_security conceptual_physics electrical_engineering "
        "elementary_mathematics high_school_biology high_school_chemistry high_school_computer_science "
        "high_school_mathematics high_school_physics high_school_statistics machine_learning"
    ).split(),
    "other": (
        "business_ethics clinical_knowledge college_medicine global_facts human_aging management marketing "
        "medical_genetics miscellaneous nutrition professional_accounting professional_medicine virology"
    ).split(),
}
"""The subjects of MMLU in each category (REPLUG, table 2), by the names of its files."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """The choice that a model made, numbered from 0 or None, and the probabilities (float64) if they decided it."""

    chosen: int | None
    gold: int
    log_probs_C: NDArray[np.float64] | None = None
    probabilities_C: NDArray[np.float64] | None = None
    answer: str | None = None
    shares: dict[int, float]
    cut: Cut

    @property
    def right(self) -> bool:
        """Whether the right choice was chosen."""
        return self.chosen == self.gold

    def as_row(self) -> dict[str, Any]:
        """Return the columns of the choice in a table."""
        chosen = None if self.chosen is None else LETTERS[self.chosen]
        numbers = {"log_probs": self.log_probs_C, "probabilities": self.probabilities_C}
        return {"chosen": chosen, "right": self.right, **numbers, "answer": self.answer, **self.cut.as_row()}


class ChoiceMethod:
    """Chooses the most likely letter after the prompts.

    If `options` join answers, each prompt writes one, equal ones add up, and the best is read as a letter.
    """

    def __init__(
        self, model: WritingModel, prompt: QuestionPrompt, options: AnswerOptions, store: Store | None
    ) -> None:
        if not prompt.shows_choices:
            raise UsageError(
                "this prompt does not show the choices, so that letters mean nothing: give a `prompt` with {choices}."
            )
        self._model = model
        self._prompt = prompt
        self._options = options
        self._store = store
        self._length = model.max_length if options.max_length is None else options.max_length
        check_length(model, self._length)
        self._scorer = Scorer(model, store, progress=False)
        self._encoder = PromptEncoder(model.tokenizer, MAX_COUNT, chat=prompt.chat)
        self._encoded: dict[tuple[str, tuple[str, ...]], list[IntArray]] = {}

    def room(self, questions: Sequence[ChoiceQuestion]) -> int:
        """Return the maximum length of a prompt; the last token of a letter is predicted and not read."""
        if self._options.join == "answers":
            return room_for_prompts(self._model, self._options)
        lengths = (len(letter) for question in questions for letter in self._tokens(question))
        return self._length + 1 - max(lengths, default=0)

    def choose(self, inputs: Sequence[tuple[ChoiceQuestion, QuestionInput]]) -> list[Choice]:
        """Return the choice for each question, given its prompts."""
        if self._options.join == "answers":
            chosen = []
            answers = answer_all([asked for _, asked in inputs], self._model, self._options, self._store)
            for number, answer, _ in answers:
                question, asked = inputs[number]
                letter, shares, cut = letter_of(answer.text, question.letters), answer.shares, asked.cut
                chosen.append(Choice(chosen=letter, gold=question.gold, answer=answer.text, shares=shares, cut=cut))
            return chosen
        texts = [(asked, tokens) for question, asked in inputs for tokens in self._tokens(question)]
        scored = iter(likelihoods(texts, self._scorer))
        return [_most_likely(question, asked, [next(scored) for _ in question.choices]) for question, asked in inputs]

    def _tokens(self, question: ChoiceQuestion) -> list[IntArray]:
        """Return the tokens of each letter after the prompt; UsageError if two letters have the same tokens."""
        key = question.text, question.choices
        if key not in self._encoded:
            prompt = self._encoder.encode(self._prompt.text(question.text, [], choices=question.choices)).tokens
            letters = map(self._prompt.format_answer, question.letters)
            tokens = [tokens_after(prompt, letter, self._scorer.tokenizer) for letter in letters]
            if len({tuple(letter.tolist()) for letter in tokens}) < len(tokens):
                raise UsageError(
                    f"two letters of question {question.id} are the same tokens for {self._scorer.name}, which cannot "
                    "tell them apart."
                )
            self._encoded[key] = tokens
        return self._encoded[key]


def _most_likely(question: ChoiceQuestion, asked: QuestionInput, scored: Sequence[TextLikelihood]) -> Choice:
    """Return the first choice with the highest probability; none if all are impossible."""
    log_probs_C = np.array([likelihood.log_prob for likelihood in scored])
    chosen = None if np.isneginf(log_probs_C).all() else int(np.argmax(log_probs_C))
    equal_C = np.full(len(log_probs_C), 1 / len(log_probs_C))
    return Choice(
        chosen=chosen,
        gold=question.gold,
        log_probs_C=log_probs_C,
        probabilities_C=equal_C if chosen is None else np.exp(log_softmax(log_probs_C)),
        shares={} if chosen is None else scored[chosen].shares(asked.prompts),
        cut=asked.cut,
    )


def letter_of(answer: str, letters: str) -> int | None:
    """Return the index of the letter that an answer is, such as "(b)" or "The answer is B."; None for another."""
    letter = metrics.without_punctuation(answer.rpartition(_BEFORE_LETTER)[2]).upper()
    return letters.index(letter) if letter in tuple(letters) else None


def choice_columns(choices: Sequence[Choice], subjects: Sequence[str]) -> dict[str, Column]:
    """Return the accuracy, also by category of MMLU, and the log-probability of the right choice if it is known."""
    right_U = np.array([float(choice.right) for choice in choices])
    categories_U = np.array([category_of(subject) or "" for subject in subjects])
    columns = {"accuracy": Column(Units.each(right_U), "share")}
    for category in CATEGORIES:
        counts_U = (categories_U == category).astype(np.int64)
        if counts_U.any():
            columns[category] = Column(Units(right_U * counts_U, counts_U), "share")
    golds = [choice.probabilities_C[choice.gold] for choice in choices if choice.probabilities_C is not None]
    if len(golds) == len(choices) and all(golds):
        columns["gold_log_prob"] = Column(Units.each(np.log(golds)), "mean")
    return columns


def subject_figures(right: Sequence[bool], subjects: Sequence[str]) -> dict[str, JsonValue]:
    """Return the accuracy of each subject with its interval, and their mean; nothing without subjects."""
    subjects_U, right_U = np.array(subjects), np.array(right, dtype=np.float64)
    figures = {
        subject: estimate(Units.each(right_U[subjects_U == subject]), "share")
        for subject in np.unique(subjects_U).tolist()
        if subject
    }
    if not figures:
        return {}
    return {
        "mean_of_subjects": float(np.mean([share.value for share in figures.values()])),
        "subjects": {name: {"questions": share.units, **share.fields("accuracy")} for name, share in figures.items()},
    }


def category_of(subject: str) -> str | None:
    """Return the category of a subject of MMLU; None for any other subject."""
    return next((category for category, subjects in CATEGORIES.items() if subject in subjects), None)
