"""How a language model answers multiple choice, and how its choices are judged: accuracy by subject.

    p(c | q) = sum over prompts d of  weight_d  p(letter of c | prompt_d)          (REPLUG, Eq. 2 and section 6.2)

Letters of shapes: C choices of a question, U questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.answering import metrics, questions, sources
from ralm.answering.answers import TextLikelihood, answer_all, likelihoods, room_for_prompts
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import Cut, PromptEncoder, QuestionPrompt, tokens_after
from ralm.errors import UsageError
from ralm.evaluation.intervals import Column, Units, estimate
from ralm.lm.scoring import Scorer
from ralm.protocols import WritingModel
from ralm.reading.mixture import log_softmax
from ralm.records import IntArray
from ralm.storage.store import Store
from ralm.validation import MAX_COUNT, check_length

Scoring: TypeAlias = Literal["letter", "text", "generated"]
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


def scoring_of(prompt: QuestionPrompt, options: AnswerOptions) -> Scoring:
    """Return how a choice is made: by the likelihood of letters or of texts, or by a letter that is written."""
    if options.join == "answers":
        return "generated"
    return "letter" if prompt.shows_choices else "text"


class ChoiceMethod:
    """Chooses the most likely letter after the prompts, or the text of the highest mean log-probability of a token.

    Of choices with equal texts only the first counts. If `options` join answers, each prompt writes one, equal ones add
    up, and the best is read as a letter.
    """

    def __init__(
        self, model: WritingModel, prompt: QuestionPrompt, options: AnswerOptions, store: Store | None
    ) -> None:
        self._scoring = scoring_of(prompt, options)
        if self._scoring == "generated" and not prompt.shows_choices:
            raise UsageError(
                'this prompt does not show the choices, so that letters mean nothing: `join="answers"` needs a prompt '
                "with {choices}."
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

    def texts(self, question: questions.ChoiceQuestion) -> Sequence[str]:
        """Return what stands for each choice: itself, or its letter."""
        return question.choices if self._scoring == "text" else question.letters

    def as_question(self, question: questions.ChoiceQuestion) -> questions.Question:
        """Return a question for a prompt, with what stands for its right choice."""
        return question.with_answer(self.texts(question)[question.gold])

    def room(self, question: questions.ChoiceQuestion) -> int:
        """Return the maximum length of a prompt; the last token of a choice is predicted and not read."""
        if self._scoring == "generated":
            return room_for_prompts(self._model, self._options)
        return self._length + 1 - max(len(tokens) for tokens in self._tokens(question))

    def choose(self, inputs: Sequence[tuple[questions.ChoiceQuestion, sources.QuestionInput]]) -> list[Choice]:
        """Return the choice for each question, given its prompts."""
        if self._scoring == "generated":
            chosen = []
            answers = answer_all([asked for _, asked in inputs], self._model, self._options, self._store)
            for number, answer, _ in answers:
                question, asked = inputs[number]
                letter, shares, cut = letter_of(answer.text, question.letters), answer.shares, asked.cut
                chosen.append(Choice(chosen=letter, gold=question.gold, answer=answer.text, shares=shares, cut=cut))
            return chosen
        texts = [(asked, tokens) for question, asked in inputs for tokens in self._tokens(question)]
        scored = iter(likelihoods(texts, self._scorer))
        return [self._best(question, asked, [next(scored) for _ in question.choices]) for question, asked in inputs]

    def _best(
        self,
        question: questions.ChoiceQuestion,
        asked: sources.QuestionInput,
        scored: Sequence[TextLikelihood],
    ) -> Choice:
        """Return the first choice with the highest score."""
        texts = self.texts(question)
        firsts = [texts.index(text) for text in texts]  # of equal ones only the first counts
        log_probs_C = np.array([likelihood.log_prob for likelihood in scored])
        lengths_C = [len(likelihood.log_probs_T) if self._scoring == "text" else 1 for likelihood in scored]
        scores_C = np.where(firsts == np.arange(len(firsts)), log_probs_C / lengths_C, -np.inf)
        chosen = None if np.isneginf(scores_C).all() else int(np.argmax(scores_C))
        equal_C = np.full(len(scores_C), 1 / len(scores_C))
        return Choice(
            chosen=chosen,
            gold=firsts[question.gold],
            log_probs_C=log_probs_C,
            probabilities_C=equal_C if chosen is None else np.exp(log_softmax(scores_C)),
            shares={} if chosen is None else scored[chosen].shares(asked.prompts),
            cut=asked.cut,
        )

    def _tokens(self, question: questions.ChoiceQuestion) -> list[IntArray]:
        """Return the tokens of each choice after the prompt; UsageError if two choices have the same tokens."""
        key = question.text, question.choices
        if key in self._encoded:
            return self._encoded[key]
        texts = self.texts(question)
        tokenizer = self._scorer.tokenizer
        prompt = self._encoder.encode(self._prompt.text(question.text, [], choices=question.choices)).tokens
        tokens = [tokens_after(prompt, self._prompt.format_answer(text), tokenizer) for text in texts]
        for text, choice_tokens in zip(texts, tokens, strict=True):
            if len(choice_tokens) == 0:
                raise UsageError(f"choice {text!r} of question {question.id} has no tokens for {self._scorer.name}.")
        for first, second in combinations(sorted({texts.index(text) for text in texts}), 2):
            if np.array_equal(tokens[first], tokens[second]):
                raise UsageError(
                    f"choices {question.letters[first]} and {question.letters[second]} of question {question.id} are "
                    f"the same tokens for {self._scorer.name}, which cannot tell them apart."
                )
        self._encoded[key] = tokens
        return tokens


def letter_of(answer: str, letters: str) -> int | None:
    """Return the index of the letter that an answer is, such as "(b)" or "The answer is B."; None for another."""
    letter = metrics.without_punctuation(answer.rpartition(_BEFORE_LETTER)[2]).upper()
    return letters.index(letter) if letter in tuple(letters) else None


def choice_columns(choices: Sequence[Choice], subjects: Sequence[str]) -> dict[str, Column]:
    """Return the accuracy, in all and in each category of MMLU, and the measures of probabilities if all have them."""
    right_U = np.array([float(choice.right) for choice in choices])
    categories_U = np.array([category_of(subject) or "" for subject in subjects])
    columns = {"accuracy": Column(Units.each(right_U), "share")}
    for category in CATEGORIES:
        counts_U = (categories_U == category).astype(np.int64)
        if counts_U.any():
            columns[category] = Column(Units(right_U * counts_U, counts_U), "share")
    judged = [(choice.probabilities_C, choice.gold) for choice in choices if choice.probabilities_C is not None]
    if len(judged) == len(choices):
        columns["brier_score"] = Column(Units.each(np.array([brier_score(*pair) for pair in judged])), "mean")
        golds_U = np.array([probabilities_C[gold] for probabilities_C, gold in judged])
        if golds_U.all():
            columns["gold_log_prob"] = Column(Units.each(np.log(golds_U)), "mean")
    return columns


def brier_score(probabilities_C: NDArray[np.float64], right: int) -> float:
    """Return the squared distance of probabilities to those of the right answer: 0 at best, 2 at worst."""
    truth_C = np.zeros_like(probabilities_C)
    truth_C[right] = 1.0
    return float(((probabilities_C - truth_C) ** 2).sum())


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
