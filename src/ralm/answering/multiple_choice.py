"""How a language model answers multiple choice, and how its choices are judged: accuracy by subject, calibration.

    p(c | q) = sum over prompts d of  weight_d  p(letter of c | prompt_d)          (REPLUG, Eq. 2 and section 6.2)

Letters of shapes: C choices of a question, U questions, R columns.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Final, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.answering.answers import KeptAnswers, Likelihood, answer_all, likelihoods, room_for_prompts
from ralm.answering.metrics import without_punctuation
from ralm.answering.options import AnswerOptions, ChoiceOptions
from ralm.answering.prompts import Cut, PromptEncoder, QuestionPrompt, tokens_behind
from ralm.answering.questions import ChoiceQuestion
from ralm.answering.sources import QuestionInput
from ralm.errors import UsageError
from ralm.evaluation.bootstrap import bootstrap_means, interval
from ralm.evaluation.calibration import brier_score, calibration_bins, expected_calibration_error
from ralm.lm.scoring import Scorer
from ralm.protocols import WritingModel
from ralm.reading.ensemble import log_sum_exp
from ralm.records import IntArray, PromptPrefix
from ralm.storage.store import Store
from ralm.validation import MAX_COUNT, check_length

Asked: TypeAlias = tuple[ChoiceQuestion, QuestionInput]
"""A question and its prompts."""
_BEFORE_LETTER: Final = "answer is "


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """What a model chose of the choices of a question, by their places from 0.

    `chosen` is None if a generated answer is no letter, or if all choices are impossible. `gold` is the right choice.
    `log_probs_C` (float64) are the natural log-probabilities of the letters or texts behind the prompts, and
    `probabilities_C` (float64) the shares of the choices in what all of them have; both are None where an `answer` was
    generated, which is None otherwise. `shares` says how much of the probability of what was chosen came from each
    passage, largest first; `cut` is what was cut of the prompts.

    Of a model that lists its likeliest tokens only, both are None unless the bounds of all choices agree, and
    `certified` says whether the bounds decide what is chosen.
    """

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


class Way(Protocol):
    """A way of choosing."""

    def answer(self, question: ChoiceQuestion) -> str:
        """The right answer of a question, as a demonstration gives it."""

    def room(self, question: ChoiceQuestion) -> int:
        """The most tokens of a prompt of a question."""

    def choose(self, asked: Sequence[Asked]) -> list[Choice]:
        """What the model chooses."""


def way_of(model: WritingModel, prompt: QuestionPrompt, options: ChoiceOptions, kept: KeptAnswers) -> Way:
    """The way of choosing that `options` name; `kept` keeps what is scored and written.

    Raises UsageError if the model cannot read `max_length`, or if it chooses letters that the prompt does not show.
    """
    if options.score != "text" and not prompt.shows_choices:
        raise UsageError(
            f'this prompt does not show the choices, so that letters mean nothing: `score="{options.score}"` needs a '
            "prompt with {choices}."
        )
    if options.score == "generated":
        return _ByWriting(model, options, kept.answers)
    length = model.max_length if options.max_length is None else options.max_length
    check_length(model, length)
    scorer = Scorer(model, kept.scores, progress=False)
    return (_ByText if options.score == "text" else _ByLetter)(prompt, scorer, length)


class _ByLikelihood(ABC):
    """Chooses what is likeliest behind the prompts. Of choices that read alike only the first counts."""

    def __init__(self, prompt: QuestionPrompt, scorer: Scorer, length: int) -> None:
        self._prompt = prompt
        self._scorer = scorer
        self._length = length
        self._encoder = PromptEncoder(scorer.tokenizer, MAX_COUNT, chat=prompt.chat)
        self._known: dict[tuple[str, tuple[str, ...]], list[IntArray]] = {}

    @abstractmethod
    def texts(self, question: ChoiceQuestion) -> Sequence[str]:
        """What stands for each choice."""

    @abstractmethod
    def worth(self, likelihood: Likelihood) -> float:
        """The logarithm of what a choice counts."""

    def answer(self, question: ChoiceQuestion) -> str:
        """What stands for the right choice."""
        return self.texts(question)[question.gold]

    def room(self, question: ChoiceQuestion) -> int:
        """What the longest choice leaves; its last token is predicted and not read."""
        return self._length + 1 - max(len(tokens) for tokens in self._tokens(question))

    def choose(self, asked: Sequence[Asked]) -> list[Choice]:
        """The choice with the highest worth of each question."""
        texts = [(one.prompts, tokens) for question, one in asked for tokens in self._tokens(question)]
        found = iter(zip(*self._bounds(texts), strict=True))
        return [self._likeliest(question, one, [next(found) for _ in question.choices]) for question, one in asked]

    def _bounds(self, texts: Sequence[tuple[Sequence[PromptPrefix], IntArray]]) -> Sequence[Sequence[Likelihood]]:
        """The lower and the upper bounds of the likelihood of each text: the same where the model tells it."""
        if self._scorer.bounds is None:
            return (likelihoods(texts, self._scorer),) * 2
        return [likelihoods(texts, Scorer(bound, progress=False)) for bound in self._scorer.bounds]

    def _likeliest(
        self, question: ChoiceQuestion, asked: QuestionInput, found: Sequence[tuple[Likelihood, Likelihood]]
    ) -> Choice:
        """The choice with the highest worth, given the lower and upper bound of each; the first of equal ones."""
        firsts = _firsts(self.texts(question))
        worths_2C = np.array([[self.worth(one) for one in bounds] for bounds in zip(*found, strict=True)])
        worths_2C[:, [first != place for place, first in enumerate(firsts)]] = -np.inf
        worths_C, uppers_C = worths_2C
        chosen = None if np.isneginf(worths_C).all() else int(np.argmax(worths_C))
        exact = np.array_equal(worths_C, uppers_C)
        return Choice(
            chosen=chosen,
            gold=firsts[question.gold],
            log_probs_C=np.array([lower.log_prob for lower, _ in found]) if exact else None,
            probabilities_C=_shares_of(worths_C) if exact else None,
            shares={} if chosen is None else _by_passage(asked.prompts, found[chosen][0]),
            cut=asked.largest_cut,
            certified=exact or (chosen is not None and worths_C[chosen] >= np.delete(uppers_C, chosen).max()),
        )

    def _tokens(self, question: ChoiceQuestion) -> list[IntArray]:
        """The tokens of each choice behind the prompt, found once for a question; UsageError if the model cannot tell
        two choices apart."""
        key = question.text, question.choices
        if key not in self._known:
            self._known[key] = self._found(question)
        return self._known[key]

    def _found(self, question: ChoiceQuestion) -> list[IntArray]:
        texts = self.texts(question)
        tokenizer = self._scorer.tokenizer
        prompt = self._encoder.encode(self._prompt.text(question.text, [], choices=question.choices)).tokens
        tokens = [tokens_behind(prompt, self._prompt.answered(text), tokenizer) for text in texts]
        for text, own in zip(texts, tokens, strict=True):
            if len(own) == 0:
                raise UsageError(f"choice {text!r} of question {question.id} has no tokens for {self._scorer.name}.")
        for one, other in combinations(sorted(set(_firsts(texts))), 2):
            if np.array_equal(tokens[one], tokens[other]):
                raise UsageError(
                    f"choices {question.letters[one]} and {question.letters[other]} of question {question.id} are the "
                    f"same tokens for {self._scorer.name}, which cannot tell them apart."
                )
        return tokens


class _ByLetter(_ByLikelihood):
    """Chooses the likeliest letter."""

    def texts(self, question: ChoiceQuestion) -> Sequence[str]:
        """The letters."""
        return question.letters

    def worth(self, likelihood: Likelihood) -> float:
        """Its log-probability."""
        return likelihood.log_prob


class _ByText(_ByLikelihood):
    """Chooses the text with the highest mean log-probability of a token, so that long texts have no disadvantage."""

    def texts(self, question: ChoiceQuestion) -> Sequence[str]:
        """The choices themselves."""
        return question.choices

    def worth(self, likelihood: Likelihood) -> float:
        """The mean log-probability of a token."""
        return likelihood.log_prob / likelihood.tokens


class _ByWriting:
    """Lets each prompt write an answer, adds up equal ones, and reads the best as a letter."""

    def __init__(self, model: WritingModel, options: ChoiceOptions, store: Store | None) -> None:
        self._model = model
        self._options = AnswerOptions(new_tokens=options.new_tokens, max_length=options.max_length, join="answers")
        self._store = store
        self._room = room_for_prompts(model, self._options)

    def answer(self, question: ChoiceQuestion) -> str:
        """Its letter."""
        return question.letters[question.gold]

    def room(self, question: ChoiceQuestion) -> int:  # noqa: ARG002
        """What an answer leaves."""
        return self._room

    def choose(self, asked: Sequence[Asked]) -> list[Choice]:
        """The letter that is the best answer."""
        answers = dict(answer_all([one for _, one in asked], self._model, self._options, self._store))
        return [
            Choice(
                chosen=letter_of(answers[number].text, question.letters),
                gold=question.gold,
                answer=answers[number].text,
                shares=answers[number].shares,
                cut=one.largest_cut,
            )
            for number, (question, one) in enumerate(asked)
        ]


def letter_of(answer: str, letters: str) -> int | None:
    """The place of the letter that an answer is, such as "B", "(b)" or "The answer is B."; None if it is anything else.

    Case and ASCII punctuation do not count. REPLUG's code removes articles too: there the letter A equals an empty
    answer.
    """
    said = without_punctuation(answer.rpartition(_BEFORE_LETTER)[2]).upper()
    return letters.index(said) if said in tuple(letters) else None


def _firsts(texts: Sequence[str]) -> list[int]:
    """For each text the place of the first that equals it."""
    return [texts.index(text) for text in texts]


def _shares_of(worths_C: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities in proportion to exp(worths); equal ones if all are impossible."""
    if np.isneginf(worths_C).all():
        return np.full(len(worths_C), 1 / len(worths_C))
    return np.exp(worths_C - log_sum_exp(worths_C))


def _by_passage(prompt_prefixes: Sequence[PromptPrefix], likelihood: Likelihood) -> dict[int, float]:
    """The share of a text's probability that came from each passage, largest first."""
    shares: dict[int, float] = {}
    for prompt_prefix, share in zip(prompt_prefixes, likelihood.shares_K.tolist(), strict=True):
        shares[prompt_prefix.passage] = shares.get(prompt_prefix.passage, 0.0) + share
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


_Columns: TypeAlias = Mapping[str, NDArray[np.float64]]
"""A number of each question (U) by the name of what is measured."""
_Key = TypeVar("_Key")


def measures_of(choices: Sequence[Choice], closed: Sequence[Choice], subjects: Sequence[str]) -> dict[str, JsonValue]:
    """The measures of choices with 95% intervals over questions, by subject too if there are `subjects`.

    If the same questions were asked without passages as well (`closed`), `closed_book` has the measures of these, and
    `difference` what they differ in, open book minus closed book.
    """
    books = {"open_book": _columns(choices)}
    if closed:
        books["closed_book"] = _columns(closed)
        books["difference"] = _difference(*books.values())
    means = _means_of({(book, name): values_U for book, own in books.items() for name, values_U in own.items()})
    found: dict[str, dict[str, JsonValue]] = {book: {} for book in books}
    for (book, name), (mean, *ends) in means.items():
        found[book] |= {name: mean, f"{name}_interval": [*ends]}
    for book, own in books.items():
        found[book] |= _by_subject(own["accuracy"], np.array(subjects))
    found["open_book"] |= _counts(choices) | _calibration(choices)
    if closed:
        found["closed_book"] |= _counts(closed) | _calibration(closed)
    return {**found.pop("open_book"), **found}


def _columns(choices: Sequence[Choice]) -> _Columns:
    """Whether each choice is right; if all have probabilities, the Brier score, and the natural logarithm of the
    probability of the right one, unless that is 0 anywhere."""
    columns = {"accuracy": np.array([float(one.right) for one in choices])}
    known = [(one.probabilities_C, one.gold) for one in choices if one.probabilities_C is not None]
    if known and len(known) == len(choices):
        columns["brier_score"] = np.array([brier_score(*one) for one in known])
        golds = np.array([probabilities_C[gold] for probabilities_C, gold in known])
        if golds.all():
            columns["gold_log_prob"] = np.log(golds)
    return columns


def _difference(columns: _Columns, others: _Columns) -> _Columns:
    return {name: columns[name] - others[name] for name in columns if name in others}


def _counts(choices: Sequence[Choice]) -> dict[str, JsonValue]:
    """How often nothing was chosen, and how many questions had a prompt that was cut; the share of choices that are
    certified, if not all are."""
    found: dict[str, JsonValue] = {
        "no_choice": sum(one.chosen is None for one in choices),
        "cut": sum(bool(one.cut) for one in choices),
    }
    certified = float(np.mean([one.certified for one in choices]))
    return found if certified == 1 else {**found, "certified": certified}


def _calibration(choices: Sequence[Choice]) -> dict[str, JsonValue]:
    """Mean confidence (the probability of the likeliest choice), expected calibration error and its bins; nothing if
    not all choices have probabilities."""
    confidences_U = np.array([one.probabilities_C.max() for one in choices if one.probabilities_C is not None])
    if not len(confidences_U) or len(confidences_U) < len(choices):
        return {}
    bins = calibration_bins(confidences_U, np.array([one.right for one in choices]))
    return {
        "confidence": float(confidences_U.mean()),
        "expected_calibration_error": expected_calibration_error(bins),
        "calibration": [asdict(one) for one in bins],
    }


def _means_of(columns: Mapping[_Key, NDArray[np.float64]]) -> dict[_Key, tuple[float, float, float]]:
    """The mean of each column, and where its interval begins and ends; all columns share the drawn questions."""
    values_UR = np.stack([*columns.values()], axis=1)
    drawn_DR = bootstrap_means(values_UR, np.ones(len(values_UR), dtype=np.int64))
    return {
        key: (float(values_UR[:, column].mean()), *interval(drawn_DR[:, column])) for column, key in enumerate(columns)
    }


def _by_subject(accuracy_U: NDArray[np.float64], subjects_U: NDArray[np.str_]) -> dict[str, JsonValue]:
    """The accuracy of each category of MMLU and of each subject that has questions, and the mean of the subjects;
    nothing if no question has a subject."""
    if not subjects_U.any():
        return {}
    categories_U = np.array([category_of(subject) or "" for subject in subjects_U])
    categories: dict[str, JsonValue] = {}
    for category in CATEGORIES:
        its_U = categories_U == category
        if its_U.any():
            mean = _mean_of_subjects(accuracy_U[its_U], subjects_U[its_U])
            categories[category] = {**_accuracy(accuracy_U[its_U]), "mean_of_subjects": mean}
    subjects = [subject for subject in np.unique(subjects_U).tolist() if subject]
    return {
        "mean_of_subjects": _mean_of_subjects(accuracy_U, subjects_U),
        "categories": categories,
        "subjects": {subject: _accuracy(accuracy_U[subjects_U == subject]) for subject in subjects},
    }


def _accuracy(accuracy_U: NDArray[np.float64]) -> dict[str, JsonValue]:
    [(mean, *ends)] = _means_of({"accuracy": accuracy_U}).values()
    return {"questions": len(accuracy_U), "accuracy": mean, "accuracy_interval": [*ends]}


def _mean_of_subjects(accuracy_U: NDArray[np.float64], subjects_U: NDArray[np.str_]) -> float:
    """The mean of the accuracies of subjects: each counts the same, however many questions it has. Questions without a
    subject do not count, unless there are no others."""
    subjects = [subject for subject in np.unique(subjects_U) if subject] or [""]
    return float(np.mean([accuracy_U[subjects_U == subject].mean() for subject in subjects]))


CATEGORIES: Final = {
    "humanities": (
        "formal_logic",
        "high_school_european_history",
        "high_school_us_history",
        "high_school_world_history",
        "international_law",
        "jurisprudence",
        "logical_fallacies",
        "moral_disputes",
        "moral_scenarios",
        "philosophy",
        "prehistory",
        "professional_law",
        "world_religions",
    ),
    "social sciences": (
        "econometrics",
        "high_school_geography",
        "high_school_government_and_politics",
        "high_school_macroeconomics",
        "high_school_microeconomics",
        "high_school_psychology",
        "human_sexuality",
        "professional_psychology",
        "public_relations",
        "security_studies",
        "sociology",
        "us_foreign_policy",
    ),
    "STEM": (
        "abstract_algebra",
        "anatomy",
        "astronomy",
        "college_biology",
        "college_chemistry",
        "college_computer_science",
        "college_mathematics",
        "college_physics",
        "computer_security",
        "conceptual_physics",
        "electrical_engineering",
        "elementary_mathematics",
        "high_school_biology",
        "high_school_chemistry",
        "high_school_computer_science",
        "high_school_mathematics",
        "high_school_physics",
        "high_school_statistics",
        "machine_learning",
    ),
    "other": (
        "business_ethics",
        "clinical_knowledge",
        "college_medicine",
        "global_facts",
        "human_aging",
        "management",
        "marketing",
        "medical_genetics",
        "miscellaneous",
        "nutrition",
        "professional_accounting",
        "professional_medicine",
        "virology",
    ),
}
"""The subjects of each category, by the names of MMLU's files."""
_CATEGORY_OF: Final = {subject: category for category, subjects in CATEGORIES.items() for subject in subjects}


def category_of(subject: str) -> str | None:
    """The category of a subject of MMLU; None for any other subject."""
    return _CATEGORY_OF.get(subject)
