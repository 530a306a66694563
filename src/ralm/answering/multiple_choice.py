"""How a language model answers multiple choice, and how its choices are judged: accuracy by subject.

    p(c | q) = sum over prompts d of  weight_d  p(letter of c | prompt_d)          (REPLUG, Eq. 2 and section 6.2)

Letters of shapes: C choices of a question, U questions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.answering import metrics, questions, sources
from ralm.answering.answers import answer_all, room_for_prompts
from ralm.answering.likelihoods import TextLikelihood, likelihoods
from ralm.answering.metrics import statistic_of
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import Cut, PromptEncoder, QuestionPrompt, tokens_after
from ralm.errors import UsageError
from ralm.evaluation.intervals import Estimate, Units, compare, estimate
from ralm.lm.scoring import Scorer
from ralm.protocols import WritingModel
from ralm.reading.mixture import log_softmax
from ralm.records import IntArray
from ralm.storage.store import Store
from ralm.validation import MAX_COUNT, check_length

Scoring: TypeAlias = Literal["letter", "text", "generated"]
_Estimator: TypeAlias = Callable[[NDArray[np.bool_]], Estimate]
"""Returns the figure of the chosen questions."""
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
    """The choice that a model made for a question; choices are numbered from 0, and `gold` is the right one. `chosen`
    is None if a generated `answer` is no letter, or if all choices are impossible. `log_probs_C` (float64) are the
    natural log-probabilities of the letters or texts after the prompts, `probabilities_C` (float64) those of the
    choices relative to each other; both are None for a generated answer, and if the model lists only its top tokens,
    unless the bounds of all agree. `certified` says whether bounds decide which one is chosen. `shares` are those of
    passages in the probability of the chosen one, largest first; `cut` is what was cut of the prompts."""

    chosen: int | None
    gold: int
    log_probs_C: NDArray[np.float64] | None = None
    probabilities_C: NDArray[np.float64] | None = None
    answer: str | None = None
    shares: dict[int, float]
    cut: Cut
    certified: bool = True

    @property
    def right(self) -> bool:
        """Whether the right choice was chosen."""
        return self.chosen == self.gold


def scoring_of(prompt: QuestionPrompt, options: AnswerOptions) -> Scoring:
    """Return how a choice is made: by the likelihood of the letters, or of the texts if the prompt does not show the
    choices, or by a letter that is written if answers are joined."""
    if options.join == "answers":
        return "generated"
    return "letter" if prompt.shows_choices else "text"


class ChoiceMethod:
    """Chooses the most likely letter after the prompts; without choices in the prompt, the text with the highest mean
    log-probability of a token, so that long texts have no disadvantage. Of choices with equal texts only the first
    counts. If `options` join answers, each prompt writes one, equal ones add up, and the best is read as a letter.
    Raises UsageError if the model cannot read `max_length`, or if it writes letters that the prompt does not show."""

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
        self._known: dict[tuple[str, tuple[str, ...]], list[IntArray]] = {}

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
            for number, answer, _ in answer_all([one for _, one in inputs], self._model, self._options, self._store):
                question, one = inputs[number]
                letter, shares = letter_of(answer.text, question.letters), answer.shares
                chosen.append(Choice(chosen=letter, gold=question.gold, answer=answer.text, shares=shares, cut=one.cut))
            return chosen
        texts = [(one, tokens) for question, one in inputs for tokens in self._tokens(question)]
        found = iter(zip(*self._bounds(texts), strict=True))
        return [self._best(question, one, [next(found) for _ in question.choices]) for question, one in inputs]

    def _bounds(self, texts: Sequence[tuple[sources.QuestionInput, IntArray]]) -> Sequence[Sequence[TextLikelihood]]:
        """Return lower and upper bounds of the likelihood of each text; equal if the model returns it exactly."""
        if self._scorer.bounds is None:
            return (likelihoods(texts, self._scorer),) * 2
        return [likelihoods(texts, Scorer(bound, progress=False)) for bound in self._scorer.bounds]

    def _best(
        self,
        question: questions.ChoiceQuestion,
        asked: sources.QuestionInput,
        found: Sequence[tuple[TextLikelihood, TextLikelihood]],
    ) -> Choice:
        """Return the first choice with the highest score, given the lower and upper bound of each."""
        texts = self.texts(question)
        firsts = [texts.index(text) for text in texts]  # of equal ones only the first counts
        bounds_2C = np.array([[one.log_prob for one in bounds] for bounds in zip(*found, strict=True)])
        if self._scoring == "text":
            bounds_2C /= [len(lower.log_probs_T) for lower, _ in found]
        bounds_2C[:, [first != place for place, first in enumerate(firsts)]] = -np.inf
        scores_C, uppers_C = bounds_2C
        chosen = None if np.isneginf(scores_C).all() else int(np.argmax(scores_C))
        exact = np.array_equal(scores_C, uppers_C)
        equal_C = np.full(len(scores_C), 1 / len(scores_C))
        return Choice(
            chosen=chosen,
            gold=firsts[question.gold],
            log_probs_C=np.array([lower.log_prob for lower, _ in found]) if exact else None,
            probabilities_C=(equal_C if chosen is None else np.exp(log_softmax(scores_C))) if exact else None,
            shares={} if chosen is None else found[chosen][0].shares(asked.prompts),
            cut=asked.cut,
            certified=exact or (chosen is not None and scores_C[chosen] >= np.delete(uppers_C, chosen).max()),
        )

    def _tokens(self, question: questions.ChoiceQuestion) -> list[IntArray]:
        """Return the tokens of each choice after the prompt; UsageError if two choices have the same tokens."""
        key = question.text, question.choices
        if key in self._known:
            return self._known[key]
        texts = self.texts(question)
        tokenizer = self._scorer.tokenizer
        prompt = self._encoder.encode(self._prompt.text(question.text, [], choices=question.choices)).tokens
        tokens = [tokens_after(prompt, self._prompt.format_answer(text), tokenizer) for text in texts]
        for text, own in zip(texts, tokens, strict=True):
            if len(own) == 0:
                raise UsageError(f"choice {text!r} of question {question.id} has no tokens for {self._scorer.name}.")
        for one, other in combinations(sorted({texts.index(text) for text in texts}), 2):
            if np.array_equal(tokens[one], tokens[other]):
                raise UsageError(
                    f"choices {question.letters[one]} and {question.letters[other]} of question {question.id} are the "
                    f"same tokens for {self._scorer.name}, which cannot tell them apart."
                )
        self._known[key] = tokens
        return tokens


def letter_of(answer: str, letters: str) -> int | None:
    """Return the index of the letter that an answer is, such as "B", "(b)" or "The answer is B."; None for another one.
    Articles count: REPLUG's code removes them, so that the letter A equals an empty answer."""
    letter = metrics.without_punctuation(answer.rpartition(_BEFORE_LETTER)[2]).upper()
    return letters.index(letter) if letter in tuple(letters) else None


def measures_of(choices: Sequence[Choice], closed: Sequence[Choice], subjects: Sequence[str]) -> dict[str, JsonValue]:
    """Return the measures of choices with 95% intervals over questions, by subject too if there are `subjects`; with
    those of the same questions without passages (`closed`) and the `difference`, if they were answered."""
    own = _columns(choices)
    books: dict[str, dict[str, _Estimator]] = {"open_book": {name: partial(_figure, name, own[name]) for name in own}}
    if closed:
        others = _columns(closed)
        books["closed_book"] = {name: partial(_figure, name, others[name]) for name in others}
        books["difference"] = {
            name: partial(_difference, name, own[name], others[name]) for name in own if name in others
        }
    found: dict[str, dict[str, JsonValue]] = {}
    every_U = np.ones(len(choices), dtype=np.bool_)
    for book, figures in books.items():
        means = {name: figure(every_U) for name, figure in figures.items()}
        found[book] = {key: value for name in means for key, value in means[name].fields(name).items()}
        found[book] |= _by_subject(figures["accuracy"], np.array(subjects))
    found["open_book"] |= _counts(choices)
    if closed:
        found["closed_book"] |= _counts(closed)
    return {**found.pop("open_book"), **found}


def _figure(name: str, units: Units, chosen_U: NDArray[np.bool_]) -> Estimate:
    """The figure of some questions."""
    return estimate(units.select(chosen_U), statistic_of(name))


def _difference(name: str, units: Units, base: Units, chosen_U: NDArray[np.bool_]) -> Estimate:
    """The difference of some questions from those of the closed book."""
    return compare(units.select(chosen_U), base.select(chosen_U), statistic_of(name))


def _columns(choices: Sequence[Choice]) -> dict[str, Units]:
    return choice_columns([(one.right, one.probabilities_C, one.gold) for one in choices])


def choice_columns(rows_U: Sequence[tuple[bool, Any, int]]) -> dict[str, Units]:
    """Return for each question whether the choice is right, and if all have probabilities, the Brier score, and the
    natural logarithm of that of the right one, unless one is 0."""
    columns = {"accuracy": np.array([right for right, _, _ in rows_U], dtype=np.float64)}
    known = [(np.array(probabilities_C), gold) for _, probabilities_C, gold in rows_U if probabilities_C is not None]
    if len(known) == len(rows_U):
        columns["brier_score"] = np.array([brier_score(*one) for one in known])
        golds = np.array([probabilities_C[gold] for probabilities_C, gold in known])
        if golds.all():
            columns["gold_log_prob"] = np.log(golds)
    return {name: Units.each(values_U) for name, values_U in columns.items()}


def brier_score(probabilities_C: NDArray[np.float64], right: int) -> float:
    """Return the squared distance of probabilities to those of the right answer: 0 at best, 2 at worst."""
    truth_C = np.zeros_like(probabilities_C)
    truth_C[right] = 1.0
    return float(((probabilities_C - truth_C) ** 2).sum())


def _counts(choices: Sequence[Choice]) -> dict[str, JsonValue]:
    """Count where nothing was chosen, and the prompts that were cut; the share of certified choices if not all are."""
    found: dict[str, JsonValue] = {
        "no_choice": sum(one.chosen is None for one in choices),
        "cut": sum(bool(one.cut) for one in choices),
    }
    certified = float(np.mean([one.certified for one in choices]))
    return found if certified == 1 else {**found, "certified": certified}


def _by_subject(accuracy: _Estimator, subjects_U: NDArray[np.str_]) -> dict[str, JsonValue]:
    """Return the accuracy of each category of MMLU and of each subject, if there are any, and the mean of subjects."""
    if not subjects_U.any():
        return {}
    categories_U = np.array([category_of(subject) or "" for subject in subjects_U])
    categories: dict[str, JsonValue] = {}
    for category in CATEGORIES:
        its_U = categories_U == category
        if its_U.any():
            mean = _mean_of_subjects(accuracy, np.where(its_U, subjects_U, ""))
            categories[category] = {**_accuracy(accuracy(its_U)), "mean_of_subjects": mean}
    subjects = [subject for subject in np.unique(subjects_U).tolist() if subject]
    return {
        "mean_of_subjects": _mean_of_subjects(accuracy, subjects_U),
        "categories": categories,
        "subjects": {subject: _accuracy(accuracy(subjects_U == subject)) for subject in subjects},
    }


def _accuracy(figure: Estimate) -> dict[str, JsonValue]:
    return {"questions": figure.units, **figure.fields("accuracy")}


def _mean_of_subjects(accuracy: _Estimator, subjects_U: NDArray[np.str_]) -> float:
    """Return the mean of the accuracies of subjects; questions without one count only if there are no others."""
    subjects = [subject for subject in np.unique(subjects_U) if subject] or [""]
    return float(np.mean([accuracy(subjects_U == subject).value for subject in subjects]))


def category_of(subject: str) -> str | None:
    """Return the category of a subject of MMLU; None for any other subject."""
    return next((category for category, subjects in CATEGORIES.items() if subject in subjects), None)
