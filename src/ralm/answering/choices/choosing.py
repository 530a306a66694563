"""How a language model chooses: by the likelihood of the letters or of the choices' texts, or by writing a letter.

    p(c | q) = sum over prompts d of  weight_d  p(letter of c | prompt_d)          (REPLUG, Eq. 2 and section 6.2)

Knows questions, prompts as tokens, and models; knows nothing of files or of how passages are found. Letters of shapes:
C choices of a question.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ralm.answering.answers import AskedQuestion, KeptAnswers, answer_all, room_for_prompts
from ralm.answering.choices.questions import ChoiceQuestion
from ralm.answering.likelihoods import Likelihood, likelihoods
from ralm.answering.metrics import without_punctuation
from ralm.answering.options import AnswerOptions, ChoiceOptions
from ralm.answering.prompt_tokens import Cut, PromptEncoder, tokens_behind
from ralm.answering.prompts import QuestionPrompt
from ralm.errors import UsageError
from ralm.lm.journal import MemoryJournal
from ralm.lm.scoring import Scorer
from ralm.protocols import WritingModel
from ralm.reading.ensemble import log_sum_exp
from ralm.records import Front, IntArray
from ralm.validation import MOST, check_length

Asked: TypeAlias = tuple[ChoiceQuestion, AskedQuestion]
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
        self._encoder = PromptEncoder(scorer.tokenizer, MOST, chat=prompt.chat)
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
        texts = [(one.fronts, tokens) for question, one in asked for tokens in self._tokens(question)]
        found = iter(zip(*self._bounds(texts), strict=True))
        return [self._likeliest(question, one, [next(found) for _ in question.choices]) for question, one in asked]

    def _bounds(self, texts: Sequence[tuple[Sequence[Front], IntArray]]) -> Sequence[Sequence[Likelihood]]:
        """The lower and the upper bounds of the likelihood of each text: the same where the model tells it."""
        if self._scorer.bounds is None:
            return (likelihoods(texts, self._scorer),) * 2
        return [likelihoods(texts, Scorer(bound, progress=False)) for bound in self._scorer.bounds]

    def _likeliest(
        self, question: ChoiceQuestion, asked: AskedQuestion, found: Sequence[tuple[Likelihood, Likelihood]]
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
            shares={} if chosen is None else _by_passage(asked.fronts, found[chosen][0]),
            cut=asked.most_cut,
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

    def __init__(self, model: WritingModel, options: ChoiceOptions, journal: MemoryJournal | None) -> None:
        self._model = model
        self._options = AnswerOptions(new_tokens=options.new_tokens, max_length=options.max_length, join="answers")
        self._journal = journal
        self._room = room_for_prompts(model, self._options)

    def answer(self, question: ChoiceQuestion) -> str:
        """Its letter."""
        return question.letters[question.gold]

    def room(self, question: ChoiceQuestion) -> int:  # noqa: ARG002
        """What an answer leaves."""
        return self._room

    def choose(self, asked: Sequence[Asked]) -> list[Choice]:
        """The letter that is the best answer."""
        answers = dict(answer_all([one for _, one in asked], self._model, self._options, self._journal))
        return [
            Choice(
                chosen=letter_of(answers[number].text, question.letters),
                gold=question.gold,
                answer=answers[number].text,
                shares=answers[number].shares,
                cut=one.most_cut,
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


def _by_passage(fronts: Sequence[Front], likelihood: Likelihood) -> dict[int, float]:
    """The share of a text's probability that came from each passage, largest first."""
    shares: dict[int, float] = {}
    for front, share in zip(fronts, likelihood.shares_K.tolist(), strict=True):
        shares[front.passage] = shares.get(front.passage, 0.0) + share
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
