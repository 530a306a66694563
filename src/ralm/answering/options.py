"""The options of question answering; importing them loads nothing heavy."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from ralm.options import Option
from ralm.reading.sampling import Sampling

AnswerSemantics = Literal["paper", "official"]
Joining = Literal["tokens", "answers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions(Sampling):
    """How an answer is drawn from the prompts of a question.

    Its tokens are greedy, as in both papers, or drawn as `Sampling` says. Every answer has its own random generator,
    seeded with `seed` and its prompts, so that an answer does not depend on other questions. An answer ends before the
    first of the `stop` strings, at the model's end of text, or after `new_tokens` tokens. With several prompts (an
    ensemble), `join` "tokens" averages their distributions for every token (REPLUG's paper); "answers" lets each prompt
    answer alone, and equal answers add up weight x exp(mean log-probability of a token) (REPLUG's code). With
    "tokens" a choice is made by likelihood, and nothing is drawn; with "answers" an answer is read as a letter.
    `max_length` None is the model's own.
    """

    new_tokens: Annotated[int, Option("Maximum number of tokens of an answer.", default_text="10; chat: 256")] = 10
    stop: Annotated[
        tuple[str, ...],
        Option("End an answer before this string; repeatable.", default_text="the end of the line; chat: none"),
    ] = ("\n",)
    join: Annotated[
        Joining,
        Option(
            "tokens: average every token over an ensemble; of choices, take the most likely. answers: let each passage "
            "write an answer, and add up."
        ),
    ] = "tokens"
    max_length: Annotated[
        int | None,
        Option("Maximum number of tokens that the model reads, answer included.", default_text="the model's"),
    ] = None


CHAT_ANSWER: Final = AnswerOptions(new_tokens=256, stop=())
"""How an answer is drawn after a chat prompt: models end it by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFields:
    """The names of the fields of a record that hold the question, its answers, its choices and its subject.

    `answers` None is the first of `answers`, `answer` and `possible_answers` that there is; of a question with choices,
    `answer`, which is the right one.
    """

    question: Annotated[str, Option("Field with the question.")] = "question"
    answers: Annotated[
        str | None,
        Option(
            "Field with its answers, of choices with the right one.",
            default_text="answers, answer or possible_answers; of choices answer",
        ),
    ] = None
    choices: Annotated[str, Option("Field with its choices.")] = "choices"
    subject: Annotated[str, Option("Field with its subject.")] = "subject"
