"""Ollama's own /api/generate: text as prompts, without the model's template, which its OpenAI routes put around it.

Since version 0.12.11 it tells the likeliest tokens; nothing is told of prompts. It would cut a text that is too long at
its beginning, and go on writing without the beginning of a text, so that both are switched off.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pydantic import JsonValue

from ralm.lm.api.backends import parses, part_of
from ralm.lm.api.backends.openai import Completions, retokenised
from ralm.lm.api.predictions import Prediction
from ralm.lm.api.transport import Asked, JsonObject
from ralm.records import IntArray

_GREEDY: Final[Mapping[str, JsonValue]] = {
    "temperature": 0,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "stop": [],
}
"""What a model's own settings may say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ollama(Completions):
    """POST /api/generate of an Ollama server, at its root."""

    name: ClassVar[str] = "ollama"
    names_parts: ClassVar[bool] = True

    def writing(self, text: IntArray, most: int) -> Asked:
        """Greedy tokens with `top_logprobs`."""
        return self._asked(text, most, {"logprobs": True, "top_logprobs": self.likeliest})

    @parses
    def text_of(self, answer: JsonObject) -> str | None:
        """`response`."""
        return str(part_of(answer, "response"))

    @parses
    def counted(self, answer: JsonObject) -> int | None:
        """`prompt_eval_count`."""
        counted = answer.get("prompt_eval_count")
        return counted if isinstance(counted, int) else None

    def _choice(self, answer: JsonObject) -> Mapping[str, Any]:
        return {"logprobs": {"content": part_of(answer, "logprobs")}, "finish_reason": answer.get("done_reason")}

    def _asked(self, tokens: IntArray, most: int, more: Mapping[str, JsonValue]) -> Asked:
        body: dict[str, JsonValue] = {
            "model": self.model,
            "prompt": self.form.sent(tokens),
            "raw": True,
            "stream": False,
            "truncate": False,
            "shift": False,
            "options": {**_GREEDY, "num_predict": most},
            **more,
        }
        return Asked("//api/generate", body, len(tokens), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaText(Ollama):
    """The same of a version that gives text alone, which is tokenised again."""

    name: ClassVar[str] = "ollama text"

    def writing(self, text: IntArray, most: int) -> Asked:
        """Greedy text."""
        return self._asked(text, most, {})

    @parses
    def written(self, answer: JsonObject, most: int) -> list[Prediction]:
        """One prediction without log-probabilities for each token of the text."""
        return retokenised(str(part_of(answer, "response")), answer.get("done_reason"), self.form, most)
