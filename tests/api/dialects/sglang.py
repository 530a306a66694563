"""SGLang's server: its own /generate, and OpenAI's routes.

Facts, from docs/basic_usage/sampling_params.md, managers/io_struct.py, scheduler_components and entrypoints/openai
(serving_completions.py, utils.py) of the repository sgl-project/sglang: log-probabilities are lists of [logprob, id,
text or null]; those of the prompt begin at `logprob_start_len`, which is 0 or -1 (nothing is told of the prompt) here,
and the first of them is always null. `token_ids_logprob` asks for chosen ids, in the order asked, also in the place of
every token of the prompt. A prompt may be scored with 0 new tokens. In OpenAI's completions, echo tells nothing of the
prompt at `logprobs` 0, every text offset is -1, and of two tokens with the same text the likelier stays. The model that
a request names is not looked at.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.api.dialects.base import Call, Handler
from tests.api.dialects.openai import OpenAI
from tests.api.writing import Json, RefusedError, Row, Task, Written

Told: TypeAlias = list[float | int | str | None]
"""A log-probability, an id and a text or null."""


@dataclass(frozen=True, kw_only=True)
class SGLang(OpenAI):
    """SGLang's server."""

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        return {**super().routes(), ("GET", "/get_model_info"): self.info, ("POST", "/generate"): self.generate}

    def info(self, call: Call) -> Json:
        return {
            "model_path": call.model,
            "tokenizer_path": call.model,
            "is_generation": True,
            "weight_version": "default",
        }

    def model_card(self, call: Call) -> Json:
        card = {"owned_by": "sglang", "root": call.model, "parent": None, "max_model_len": call.backing.max_length}
        return {**super().model_card(call), **card}

    def generate(self, call: Call) -> Json:
        prompt = call.begun(call.body["input_ids"])
        options = call.body.get("sampling_params") or {}
        most_new = options.get("max_new_tokens", 128)
        length = call.backing.max_length
        if len(prompt) + most_new > length:
            text = f"Requested token count exceeds the model's maximum context length of {length} tokens. You requested"
            raise RefusedError(400, {"error": {"message": f"{text} a total of {len(prompt) + most_new} tokens."}})
        written = call.write(Task(prompt=prompt, most_new=most_new))
        meta = {
            "id": f"request-{call.number}",
            "finish_reason": _finish(written),
            "prompt_tokens": len(prompt),
            "completion_tokens": len(written.new),
            "cached_tokens": 0,
            "weight_version": "default",
            **(self.logprobs_of(call, written) if call.body.get("return_logprob") else {}),
        }
        return {"text": written.text, "output_ids": [row.token for row in written.new], "meta_info": meta}

    def logprobs_of(self, call: Call, written: Written) -> Json:
        """The lists of log-probabilities: of each token, of the likeliest and of the chosen ids."""
        prompt = written.prompt if call.body.get("logprob_start_len", -1) == 0 else []
        top, chosen = call.body.get("top_logprobs_num", 0), call.body.get("token_ids_logprob")
        told = {
            "input_token_logprobs": [self.told_as(call, row.token, row.log_prob) for row in prompt],
            "output_token_logprobs": [self.told_as(call, row.token, row.log_prob) for row in written.new],
        }
        if top:
            told |= self.in_places(call, "top", prompt, written.new, lambda row: row.likeliest(top))
        if chosen:
            told |= self.in_places(call, "token_ids", prompt, written.new, lambda row: row.of(chosen))
        return told

    def in_places(
        self, call: Call, kind: str, prompt: list[Row], new: list[Row], of: Callable[[Row], list[tuple[int, float]]]
    ) -> Json:
        """Some tokens in the place of each: null where nothing is known."""

        def listed(row: Row) -> list[Told] | None:
            return None if row.log_probs_V is None else [self.told_as(call, *pair) for pair in of(row)]

        return {f"input_{kind}_logprobs": list(map(listed, prompt)), f"output_{kind}_logprobs": list(map(listed, new))}

    def told_as(self, call: Call, token: int, log_prob: float | None) -> Told:
        return [log_prob, token, None]

    def encoded(self, call: Call, text: str) -> list[int]:
        return call.encode(text, special=True)

    def choice(self, call: Call, index: int, prompt: list[int], written: Written) -> Json:
        choice = super().choice(call, index, prompt, written)
        if call.body.get("logprobs") != 0:
            return choice
        return {**choice, "logprobs": self.logprobs(call, self.told(call, written))}

    def logprobs(self, call: Call, rows: list[Row]) -> Json:
        told = super().logprobs(call, rows)
        return {**told, "top_logprobs": told["top_logprobs"] or []}

    def listed(self, call: Call, row: Row, count: int) -> dict[str, float | None] | None:
        """The likeliest alone, without the token itself; the likelier of two with the same text."""
        if row.log_probs_V is None:
            return None
        return {call.text(token): log_prob for token, log_prob in reversed(row.likeliest(count))}

    def name(self, call: Call, row: Row, token: int) -> str:
        return call.text(token)

    def check_model(self, call: Call) -> None:
        """Any name will do."""

    def check_completion(self, call: Call) -> None:
        """Any number of likeliest tokens will do."""

    def check_chat(self, call: Call) -> None:
        """Any number of likeliest tokens will do."""

    def failure(self, status: int) -> Any:
        message = "The server is overloaded or failed."
        return {"object": "error", "message": message, "type": "InternalServerError", "param": None, "code": status}


def _finish(written: Written) -> Json:
    if written.ended_by == "length":
        return {"type": "length", "length": len(written.new)}
    return {"type": "stop", "matched": written.new[-1].token}
