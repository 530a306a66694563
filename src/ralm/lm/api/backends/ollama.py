"""Ollama's own /api/generate: it takes text without the model's template, which its OpenAI routes add.

Since version 0.12.11 it lists the most likely tokens; it scores no prompts. It would truncate a long text at its
beginning and shift a full context while it generates; both are switched off.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pydantic import JsonValue

from ralm.lm.api.backends import ModelList, ServerKind, answer_field, count_in, get_or_empty, parsing
from ralm.lm.api.backends.openai import Completions, retokenize
from ralm.lm.api.client import Client
from ralm.lm.api.predictions import Prediction
from ralm.lm.api.transport import ApiRequest, JsonObject
from ralm.records import IntArray

_GREEDY: Final[Mapping[str, JsonValue]] = {
    "temperature": 0,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "stop": [],
}
"""Options that the settings of a model may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaGenerate(Completions):
    """POST /api/generate of an Ollama server, at its root."""

    name: ClassVar[str] = "ollama"
    names_parts: ClassVar[bool] = True
    takes_text: ClassVar[bool] = True

    def generation_request(self, text: IntArray, max_tokens: int) -> ApiRequest:
        """Greedy tokens with `top_logprobs`."""
        return self._request(text, max_tokens, {"logprobs": True, "top_logprobs": self.top_logprobs})

    @parsing
    def generated_text(self, answer: JsonObject) -> str | None:
        """`response`."""
        return str(answer_field(answer, "response"))

    @parsing
    def prompt_token_count(self, answer: JsonObject) -> int | None:
        """`prompt_eval_count`."""
        return count_in(answer, "prompt_eval_count")

    def _choice(self, answer: JsonObject) -> Mapping[str, Any]:
        return {"logprobs": {"content": answer_field(answer, "logprobs")}, "finish_reason": answer.get("done_reason")}

    def _request(self, tokens: IntArray, max_tokens: int, more: Mapping[str, JsonValue]) -> ApiRequest:
        body: dict[str, JsonValue] = {
            "model": self.model,
            "prompt": self.prompts.encode(tokens),
            "raw": True,
            "stream": False,
            "truncate": False,
            "shift": False,
            "options": {**_GREEDY, "num_predict": max_tokens},
            **more,
        }
        return ApiRequest("//api/generate", body, len(tokens), max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaTextGenerate(OllamaGenerate):
    """The same for a version that returns only text, which is tokenized again."""

    name: ClassVar[str] = "ollama text"
    text_only: ClassVar[bool] = True
    hides_special_tokens: ClassVar[bool] = True

    def generation_request(self, text: IntArray, max_tokens: int) -> ApiRequest:
        """Greedy text."""
        return self._request(text, max_tokens, {})

    @parsing
    def generated(self, answer: JsonObject, max_tokens: int) -> list[Prediction]:
        """One prediction without log-probabilities for each token of the text."""
        return retokenize(str(answer_field(answer, "response")), answer.get("done_reason"), self.prompts, max_tokens)


def _find(client: Client, _: ModelList) -> JsonObject | None:
    """The fields of the model once it is loaded, which include the length of the context that it has memory for."""
    if "version" not in get_or_empty(client, "//api/version"):
        return None
    model = client.endpoint.model
    client.post("//api/generate", {"model": model, "stream": False})
    running = get_or_empty(client, "//api/ps").get("models")
    models = [one for one in running if isinstance(one, dict)] if isinstance(running, list) else []
    return next((one for one in models if one.get("name") in (model, f"{model}:latest")), {})


OLLAMA: Final = ServerKind("ollama", (OllamaGenerate, OllamaTextGenerate), _find)
