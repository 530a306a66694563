"""A judge: a language model that decides whether an answer agrees with a gold answer, asked with a fixed prompt.

A model with a chat template gets the text as the message of a user; another one goes on after a last line `Reply:`.
The first word of its greedy reply, of at most eight tokens, is the verdict. Any other word is a failure and gives no
verdict, and so is a text that does not fit into the model. At most 20 gold answers are listed.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from ralm.answering.answers import answer_all, room_for_prompts
from ralm.answering.metrics import without_punctuation
from ralm.answering.options import AnswerOptions
from ralm.answering.prompt_reader import open_prompt
from ralm.answering.prompts import prompt_config
from ralm.answering.questions import Question
from ralm.answering.sources import PromptBuilder
from ralm.errors import LengthError
from ralm.lm.tokenizer import has_chat_template
from ralm.protocols import WritingModel
from ralm.storage.store import Store
from ralm.terminal import progress_bar
from ralm.validation import config_of

_TEXT: Final = (
    "Question: {question}\nCorrect answers: {answers}\nGiven answer: {given}\n\n"
    "Does the given answer agree with one of the correct answers? Reply with yes or no alone."
)
_OPTIONS: Final = AnswerOptions(new_tokens=8, stop=())
_VERDICTS: Final = {"yes": True, "no": False}
_MAX_ANSWERS: Final = 20


class Judge:
    """Asks a model whether answers agree with gold answers.

    Raises UsageError if a reply leaves no room for a prompt in the model.
    """

    def __init__(self, model: WritingModel) -> None:
        self._model = model
        chat = open_prompt("chat")
        is_chat = has_chat_template(model.tokenizer)
        self._prompt = chat if is_chat else replace(chat, chat=False, closed="{question}\nReply:")
        self._builder = PromptBuilder(self._prompt, model.tokenizer, room_for_prompts(model, _OPTIONS))

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._model.name

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything that decides the verdicts: the model and its prompt."""
        prompt = prompt_config(replace(self._prompt, closed=_TEXT), self._model.tokenizer)
        return {"model": config_of(self._model, "language model"), "prompt": prompt}

    def verdicts(self, pairs: Sequence[tuple[Question, str]], store: Store | None = None) -> list[bool | None]:
        """Whether each answer agrees with a gold answer of its question; None after a failure.

        An empty answer agrees with nothing, and is not shown to the judge. Replies in the `store` are not generated
        again.
        """
        found: list[bool | None] = [None if answer.strip() else False for _, answer in pairs]
        asked, inputs = [], []
        for place, (question, answer) in enumerate(pairs):
            answers = "; ".join(question.answers[:_MAX_ANSWERS])
            text = _TEXT.format(question=question.text, answers=answers, given=answer.strip())
            if answer.strip():
                with suppress(LengthError):
                    inputs.append(self._builder.build(Question(question.id, text), [], ()))
                    asked.append(place)
        with progress_bar("Judging", len(inputs)) as advance:
            for number, reply, _ in answer_all(inputs, self._model, _OPTIONS, store):
                words = without_punctuation(reply.text).split()
                found[asked[number]] = _VERDICTS.get(words[0]) if words else None
                advance()
        return found
