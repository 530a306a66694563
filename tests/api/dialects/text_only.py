"""Servers with OpenAI's routes that tell no log-probabilities: they ignore that these are asked for, or refuse.

Facts on `transformers serve`, seen of version 5.23: the fields `logprobs` and `echo` are ignored, and a choice has no
log-probabilities; prompts are one text; too long a text is answered; errors are {"detail": text}.
"""

from dataclasses import dataclass, replace

from tests.api.dialects.base import Call
from tests.api.dialects.openai import OpenAI, error
from tests.api.writing import Json, RefusedError, Written


@dataclass(frozen=True, kw_only=True)
class TextOnly(OpenAI):
    """Texts alone; with `refuses`, a request for log-probabilities is an error 400."""

    refuses: bool = False

    def choice(self, call: Call, index: int, prompt: list[int], written: Written) -> Json:
        return {**super().choice(call, index, prompt, written), "logprobs": None}

    def chat(self, call: Call) -> Json:
        answer = super().chat(call)
        answer["choices"][0]["logprobs"] = None
        return answer

    def check_completion(self, call: Call) -> None:
        if self.refuses and call.body.get("logprobs"):
            text = "logprobs is not supported by this model"
            raise RefusedError(400, error(text, "invalid_request_error", "logprobs"))

    def check_chat(self, call: Call) -> None:
        self.check_completion(call)


@dataclass(frozen=True, kw_only=True)
class TransformersServe(TextOnly):
    """`transformers serve` of one model."""

    def completions(self, call: Call) -> Json:
        if not isinstance(call.body["prompt"], str):
            raise RefusedError(400, {"detail": "prompt must be a string."})
        answer = super().completions(replace(call, body={**call.body, "echo": False}))
        return {**answer, "choices": [_bare(choice) for choice in answer["choices"]]}

    def chat(self, call: Call) -> Json:
        answer = super().chat(call)
        return {**answer, "choices": [_bare(choice) for choice in answer["choices"]]}

    def check_length(self, call: Call, prompt: int, new: int) -> None:
        """No text is too long."""


def _bare(choice: Json) -> Json:
    return {key: value for key, value in choice.items() if key != "logprobs"}
