"""OpenAI's /chat/completions: the prompt is a message of the user, which the server puts into its own template.

The likeliest tokens are told for what the model writes, from the beginning of its answer; a text that goes on from
there cannot be asked for. Ollama and the hosted models have nothing else.
"""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import JsonValue

from ralm.lm.api.client import Asked
from ralm.lm.api.predictions import Prediction
from ralm.lm.api.ways.completions import Completions, retokenised
from ralm.lm.api.ways.way import JsonObject, parses, part_of
from ralm.records import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat(Completions):
    """The k likeliest tokens of each place of an answer."""

    name: ClassVar[str] = "chat"
    names_parts: ClassVar[bool] = True
    goes_on: ClassVar[bool] = False

    def writing(self, text: IntArray, most: int) -> Asked:
        """A greedy answer with `top_logprobs`."""
        return self._message(text, most, {"logprobs": True, "top_logprobs": self.likeliest})

    def keeps(self, text: IntArray) -> bool:  # noqa: ARG002
        """Yes: a message is its text, whatever tokens that is."""
        return True

    @parses
    def text_of(self, answer: JsonObject) -> str | None:
        """The content of the message."""
        return str(part_of(answer, "choices", 0, "message", "content") or "")

    def _message(self, text: IntArray, most: int, more: dict[str, JsonValue]) -> Asked:
        body: dict[str, JsonValue] = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.form.tokenizer.decode(text)}],
            "max_tokens": most,
            "temperature": 0,
            **more,
        }
        return Asked("/chat/completions", body, len(text), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChat(Chat):
    """The same of a server that gives text alone, which is tokenised again."""

    name: ClassVar[str] = "text chat"

    def writing(self, text: IntArray, most: int) -> Asked:
        """A greedy answer."""
        return self._message(text, most, {})

    @parses
    def written(self, answer: JsonObject, most: int) -> list[Prediction]:
        """One prediction without log-probabilities for each token of the answer."""
        choice = part_of(answer, "choices", 0)
        return retokenised(self.text_of(answer) or "", choice.get("finish_reason"), self.form, most)
