"""Ollama's own /api/generate: it takes text without the model's template, which its OpenAI routes add.

Since version 0.12.11 it lists the most likely tokens; it scores no prompts. It would truncate a long text at its
beginning and shift a full context while it generates; both are switched off.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import JsonValue

from ralm.lm.api.backends import ModelList, ServerKind, get_or_empty, openai
from ralm.lm.api.client import Client
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


class _Generate(openai.Completions):
    name = "ollama"
    text_path = ("response",)
    count_path = ("prompt_eval_count",)
    lists_as_chat = True
    names_parts = True
    takes_text = True

    def _choice(self, answer: JsonObject) -> Mapping[str, Any]:
        listed = answer.get("logprobs")
        logprobs = None if listed is None else {"content": listed}
        return {"logprobs": logprobs, "finish_reason": answer.get("done_reason")}

    def _request(self, tokens: IntArray, max_tokens: int, more: Mapping[str, JsonValue]) -> ApiRequest:
        body: dict[str, JsonValue] = {
            "model": self.model,
            "prompt": self.encode(tokens),
            "raw": True,
            "stream": False,
            "truncate": False,
            "shift": False,
            "options": {**_GREEDY, "num_predict": max_tokens},
            **more,
        }
        return ApiRequest("//api/generate", body, len(tokens), max_tokens)


class _TextGenerate(_Generate):
    """The same for a version that returns only text."""

    name = "ollama text"
    text_only = True
    hides_special_tokens = True


def _find(client: Client, _: ModelList) -> JsonObject | None:
    """The fields of the model once it is loaded, which include the length of the context that it has memory for."""
    if "version" not in get_or_empty(client, "//api/version"):
        return None
    model = client.endpoint.model
    client.post("//api/generate", {"model": model, "stream": False})
    running = get_or_empty(client, "//api/ps").get("models")
    models = [one for one in running if isinstance(one, dict)] if isinstance(running, list) else []
    return next((one for one in models if one.get("name") in (model, f"{model}:latest")), {})


OLLAMA: Final = ServerKind((_Generate, _TextGenerate), _find)
