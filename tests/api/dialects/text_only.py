"""Servers with OpenAI's routes that tell no log-probabilities: they ignore that these are asked for, or refuse.

Facts on `transformers serve`, seen of version 5.23: the fields `logprobs` and `echo` are ignored, and a choice has no
log-probabilities; prompts are one text; other servers' fields are an error 422; the stop string stays in the text; too
long a text is answered; errors are {"detail": text}, but a plain text where the server fails, as with 0 new tokens.
"""

from dataclasses import dataclass, replace
from typing import Any

from tests.api.dialects.base import Call
from tests.api.dialects.openai import OpenAI, error
from tests.api.replies import Json, RefusedError
from tests.api.writing import Written


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
        if self.refuses and call.body.get("logprobs") is not None:
            raise RefusedError(
                400, error("logprobs is not supported by this model", "invalid_request_error", "logprobs")
            )

    def check_chat(self, call: Call) -> None:
        if self.refuses and call.body.get("logprobs"):
            raise RefusedError(
                400, error("logprobs is not supported by this model", "invalid_request_error", "logprobs")
            )


@dataclass(frozen=True, kw_only=True)
class TransformersServe(TextOnly):
    """`transformers serve` of one model."""

    def completions(self, call: Call) -> Json:
        if not isinstance(call.body["prompt"], str):
            raise RefusedError(400, {"detail": "prompt must be a string."})
        unknown = call.body.keys() - _KNOWN
        if unknown:
            raise RefusedError(422, {"detail": f"Unexpected fields in the request: {unknown}"})
        if not call.body["prompt"] or call.body.get("max_tokens") == 0:
            raise RefusedError(500, self.failure(500))
        answer = super().completions(replace(call, body={**call.body, "echo": False}))
        return {**answer, "choices": [_bare(choice) for choice in answer["choices"]]}

    def chat(self, call: Call) -> Json:
        answer = super().chat(call)
        return {**answer, "choices": [_bare(choice) for choice in answer["choices"]]}

    def head(self, call: Call, short: str, kind: str) -> Json:
        head = super().head(call, short, kind)
        return {key: value for key, value in head.items() if key != "system_fingerprint"}

    def check_length(self, call: Call, prompt: int, new: int) -> None:
        """No text is too long."""

    def unknown_model(self, asked: str | None) -> RefusedError:
        return RefusedError(400, {"detail": f"Server is pinned to another model; requested '{asked}'."})

    def failure(self, status: int) -> Any:
        return "Internal Server Error"

    def needs_key(self, path: str) -> bool:
        return False

    def not_found(self, path: str) -> RefusedError:
        return RefusedError(404, {"detail": "Not Found"})


_KNOWN = frozenset("model prompt echo logprobs max_tokens n seed stop stream temperature top_p best_of user".split())


def _bare(choice: Json) -> Json:
    return {key: value for key, value in choice.items() if key != "logprobs"}
