"""The options of question answering; importing them loads nothing heavy."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options
from ralm.reading.sampling import Sampling

AnswerSemantics = Literal["paper", "official"]
Joining = Literal["tokens", "answers"]
Scoring = Literal["letter", "text", "generated"]
_AnswerLength = Annotated[
    int | None, Option("Maximum number of tokens that the model reads, answer included.", default_text="the model's")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions(Sampling):
    """How an answer is drawn from the prompts of a question.

    Its tokens are greedy, as in both papers, or drawn as `Sampling` says. Every answer has its own random generator,
    seeded with `seed` and its prompts, so that an answer does not depend on other questions. An answer ends before the
    first of the `stop` strings, at the model's end of text, or after `new_tokens` tokens. With several prompts (an
    ensemble), `join` "tokens" averages their distributions for every token (REPLUG's paper); "answers" lets each prompt
    answer alone, and equal answers add up weight x exp(mean log-probability of a token) (REPLUG's code). `max_length`
    None is the model's own.
    """

    new_tokens: Annotated[int, Option("Maximum number of tokens of an answer.")] = 10
    stop: Annotated[
        tuple[str, ...],
        Option("End an answer before this string; repeatable.", default_text="the end of the line"),
    ] = ("\n",)
    join: Annotated[
        Joining, Option("How an ensemble answers: average every token, or let each passage answer and add up.")
    ] = "tokens"
    max_length: _AnswerLength = None

    def __post_init__(self) -> None:
        Sampling.__post_init__(self)
        if "" in self.stop:
            raise UsageError("`stop` must not be empty.")


CHAT_ANSWER: Final = AnswerOptions(new_tokens=256, stop=())
"""How an answer is drawn after a chat prompt: models end it by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFields:
    """The names of the fields of a record that hold the question and its answers.

    `answers` None is the first of `answers`, `answer` and `possible_answers` that there is.
    """

    question: Annotated[str, Option("Field with the question.", flag="question-field")] = "question"
    answers: Annotated[
        str | None,
        Option("Field with the answers.", flag="answers-field", default_text="answers, answer or possible_answers"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceOptions:
    """How one of the choices of a question is chosen.

    `letter`: the choice whose letter is the most likely after the prompt, under the average of the distributions of all
    prompts (REPLUG's paper). `text`: the choice whose whole text has the highest mean log-probability of a token there.
    `generated`: each prompt writes an answer of at most `new_tokens` tokens, equal answers add up, and the best one is
    read as a letter (REPLUG's code). `max_length` None is the model's own.
    """

    score: Annotated[
        Scoring, Option("Choose by the likelihood of the letters, of the choices' texts, or by a generated letter.")
    ] = "letter"
    new_tokens: Annotated[
        int,
        Option(
            "Maximum number of tokens of a generated answer.",
            needs=Needs.value("score", "generated"),
        ),
    ] = 10
    max_length: _AnswerLength = None

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFields:
    """The names of the fields of a record that hold the question, its choices, the right one and the subject."""

    question: Annotated[str, Option("Field with the question.", flag="question-field")] = "question"
    choices: Annotated[str, Option("Field with the choices.", flag="choices-field")] = "choices"
    answer: Annotated[str, Option("Field with the right choice.", flag="answer-field")] = "answer"
    subject: Annotated[str, Option("Field with the subject; it may be missing.", flag="subject-field")] = "subject"
