"""llama-cpp-python's server, which imitates OpenAI's routes.

Facts, seen of version 0.3.36: a prompt is one text; ids, several texts and an empty text are an error 500. Echo is off
by one, in silence: what is told of a token is its log-probability *after* itself, the first is null, and the last token
has no entry; if a BOS stands in front, it is left out of the lists, and all is right. New tokens without echo are
right. Any number of likeliest tokens can be asked for; they are named by text, a part of a character by "". 0 new
tokens mean as many as there is room for. What was cut off with a stop string is told; the end of the text is not. Any
model's name is taken, and given back. `bytes` of a chat's tokens are null. Errors of the model are 500 and named as
OpenAI's; the refusal of a key is {"detail": text}.
"""

from dataclasses import dataclass, replace
from typing import Any

from tests.api.dialects.base import Call
from tests.api.dialects.openai import OpenAI, error
from tests.api.writing import Json, RefusedError, Row, Task, Written


@dataclass(frozen=True, kw_only=True)
class LlamaCppPython(OpenAI):
    """llama-cpp-python's server; without `logits_all` it tells no log-probabilities."""

    logits_all: bool = True

    def model_card(self, call: Call) -> Json:
        return {"id": call.model, "object": "model", "owned_by": "me", "permissions": []}

    def head(self, call: Call, short: str, kind: str) -> Json:
        return {**super().head(call, short, kind), "model": call.body.get("model", call.model)}

    def prompts(self, call: Call) -> list[list[int]]:
        prompt = call.body["prompt"]
        if not isinstance(prompt, str):
            raise _failed("validation errors: {'type': 'string_type', 'loc': ('body', 'prompt', 'str')}")
        return [call.begun(self.encoded(call, prompt))]

    def encoded(self, call: Call, text: str) -> list[int]:
        return call.encode(text, special=True)

    def task(self, call: Call, prompt: list[int]) -> Task:
        task = super().task(call, prompt)
        room = call.backing.max_length - len(prompt)
        return replace(task, most_new=min(task.most_new, room) if task.most_new > 0 else room)

    def told(self, call: Call, written: Written) -> list[Row]:
        """Every new token but the end of the text."""
        return written.new if written.ended_by != "end" else written.new[:-1]

    def choice(self, call: Call, index: int, prompt: list[int], written: Written) -> Json:
        choice = super().choice(call, index, prompt, written)
        if choice["logprobs"] is None or not call.body.get("echo") or call.fault.ignores_echo:
            return choice
        rows = _after_themselves(call, [*written.prompt, *self.told(call, written)])
        return {**choice, "logprobs": self.logprobs(call, rows)}

    def logprobs(self, call: Call, rows: list[Row]) -> Json:
        told = super().logprobs(call, rows)
        count = call.body["logprobs"]
        return {**told, "top_logprobs": [self.listed(call, row, count) for row in rows]}

    def name(self, call: Call, row: Row, token: int) -> str:
        return call.backing.piece(token).decode(errors="ignore")

    def check_model(self, call: Call) -> None:
        """Any name will do."""

    def check_completion(self, call: Call) -> None:
        if call.body.get("logprobs") is not None and not self.logits_all:
            raise _failed("logprobs is not supported for models created with logits_all=False")

    def check_chat(self, call: Call) -> None:
        if call.body.get("logprobs"):
            self.check_completion(call)

    def check_length(self, call: Call, prompt: int, new: int) -> None:
        if prompt >= call.backing.max_length:
            super().check_length(call, prompt, new)

    def failure(self, status: int) -> Any:
        return error("", "internal_server_error")


def _after_themselves(call: Call, rows: list[Row]) -> list[Row]:
    """The tokens but the BOS, the i-th with what is expected after i + 1 tokens: the next place, if there is no BOS."""
    kept = [row for row in rows if row.token != call.begin]
    mixed = [_mixed(row, place) for row, place in zip(kept, rows[1:], strict=False)]
    return [replace(mixed[0], log_prob=None, log_probs_V=None), *mixed[1:]] if mixed else []


def _mixed(row: Row, place: Row) -> Row:
    """A token with what is expected in the place of another."""
    if row is place:
        return row
    assert place.log_probs_V is not None
    return replace(row, log_prob=float(place.log_probs_V[row.token]), log_probs_V=place.log_probs_V)


def _failed(message: str) -> RefusedError:
    return RefusedError(500, error(message, "internal_server_error"))
