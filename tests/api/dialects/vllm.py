"""vLLM's server: OpenAI's completions and chats, and what it adds to them.

Facts, seen of version 0.32 and read in vllm/entrypoints/openai/completion (protocol.py, serving.py),
serve/tokenize/protocol.py and sampling_params.py of the repository vllm-project/vllm and its pull request 43463:
`prompt_logprobs` stands in each choice, a null and then a dictionary from ids (as text) to logprob, rank and
decoded_token, the actual token first, then the likeliest; echo fills it too. No request here may write 0 tokens.
`logprob_token_ids` is a list of at most 128 ids in the body, needs `logprobs`, replaces the likeliest in the place of
each *new* token, and is refused with an echo that writes nothing. A list of likeliest begins with the sampled token and
has one more entry than asked for if that is not among them. `return_tokens_as_token_ids` names tokens `token_id:17`;
text offsets then count those names. Texts are read with the special tokens of the tokenizer unless `add_special_tokens`
is false. At most `max_logprobs` (20) can be asked for. A prompt needs room for one new token; more are cut without a
word.
"""

from dataclasses import dataclass, replace
from typing import Any

from tests.api.dialects.base import Call
from tests.api.dialects.openai import OpenAI, error, sent
from tests.api.writing import Json, RefusedError, Row, Task, Written

_MOST_CHOSEN = 128


@dataclass(frozen=True, kw_only=True)
class VLLM(OpenAI):
    """vLLM's server; without `knows_token_ids` it is of before May 2026 and ignores `logprob_token_ids`."""

    max_logprobs: int = 20
    knows_token_ids: bool = True

    def model_card(self, call: Call) -> Json:
        card = {"owned_by": "vllm", "root": call.model, "parent": None, "max_model_len": call.backing.max_length}
        return {**super().model_card(call), **card}

    def prompts(self, call: Call) -> list[list[int]]:
        if call.body.get("prompt") in (None, "", []):
            raise _bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        prompts = super().prompts(call)
        for prompt in prompts:
            unknown = [token for token in prompt if not 0 <= token < call.backing.vocabulary]
            if unknown:
                raise _refused(f"Token id {unknown[0]} is out of vocabulary")
            if not prompt:
                raise _refused("The decoder prompt cannot be empty")
        return prompts

    def head(self, call: Call, short: str, kind: str) -> Json:
        return {**super().head(call, short, kind), "service_tier": None, "kv_transfer_params": None}

    def encoded(self, call: Call, text: str) -> list[int]:
        return call.encode(text, special=call.body.get("add_special_tokens", True))

    def told(self, call: Call, written: Written) -> list[Row]:
        """Every new token, the end of the text included."""
        return written.new

    def choice(self, call: Call, index: int, prompt: list[int], written: Written) -> Json:
        return {**super().choice(call, index, prompt, written), "prompt_logprobs": self.prompt_logprobs(call, written)}

    def prompt_logprobs(self, call: Call, written: Written) -> list[Json | None] | None:
        count = call.body.get("prompt_logprobs")
        if count is None and call.body.get("echo") and not call.fault.ignores_echo:
            count = call.body.get("logprobs")
        if count is None:
            return None
        return [self.place(call, row, count) for row in written.prompt]

    def place(self, call: Call, row: Row, count: int) -> Json | None:
        """What was expected in the place of one token of the prompt."""
        if row.log_probs_V is None:
            return None
        told = {row.token: row.log_prob} | dict(row.likeliest(count)) | {row.token: row.log_prob}
        return {
            str(token): {"logprob": log_prob, "decoded_token": call.text(token)} for token, log_prob in told.items()
        }

    def logprobs(self, call: Call, rows: list[Row]) -> Json:
        """The lists; one token is listed even if 0 were asked for."""
        told = super().logprobs(call, rows)
        return {**told, "top_logprobs": [self.listed(call, row, call.body["logprobs"]) for row in rows]}

    def listed(self, call: Call, row: Row, count: int) -> dict[str, float | None] | None:
        if row.log_probs_V is None:
            return None
        return {self.name(call, row, token): sent(log_prob) for token, log_prob in self.in_place(call, row, count)}

    def in_place(self, call: Call, row: Row, count: int) -> list[tuple[int, float | None]]:
        """The actual token, then the chosen ids (of new tokens alone) or the likeliest."""
        chosen = call.body.get("logprob_token_ids") if self.knows_token_ids else None
        others = row.of(chosen) if chosen else row.likeliest(count)
        return [(row.token, row.log_prob), *(other for other in others if other[0] != row.token)]

    def name(self, call: Call, row: Row, token: int) -> str:
        return f"token_id:{token}" if call.body.get("return_tokens_as_token_ids") else call.text(token)

    def task(self, call: Call, prompt: list[int]) -> Task:
        task = super().task(call, prompt)
        if task.most_new < 1:
            raise _bad(f"max_tokens must be at least 1, got {task.most_new}.", "max_tokens", task.most_new)
        return replace(task, most_new=min(task.most_new, call.backing.max_length - len(prompt)))

    def unknown_model(self, asked: str | None) -> RefusedError:
        text = f"The model `{asked}` does not exist."
        return RefusedError(404, error(text, "NotFoundError", "model", 404))

    def check_completion(self, call: Call) -> None:
        self.check_count(call, "logprobs", "sample")
        self.check_count(call, "prompt_logprobs", "prompt")
        if self.knows_token_ids:
            self.check_chosen(call)

    def check_count(self, call: Call, field: str, kind: str) -> None:
        count, most = call.body.get(field) or 0, self.max_logprobs
        if count > most:
            raise _bad(f"Requested {kind} logprobs of {count}, which is greater than max allowed: {most}", field, count)

    def check_chosen(self, call: Call) -> None:
        chosen = call.body.get("logprob_token_ids")
        if not chosen:
            return
        if call.body.get("logprobs") is None:
            raise _bad("when using `logprob_token_ids`, `logprobs` must be set.", "logprob_token_ids")
        if len(chosen) > _MOST_CHOSEN:
            most = f"which is greater than max allowed: {_MOST_CHOSEN}"
            raise _bad(f"Requested logprob_token_ids of length {len(chosen)}, {most}", "logprob_token_ids", len(chosen))

    def check_length(self, call: Call, prompt: int, new: int) -> None:
        length = call.backing.max_length
        if prompt >= length:
            text = f"The decoder prompt (length {prompt}) plus the number of requested output tokens (at least 1)"
            raise _refused(f"{text} is longer than the maximum model length of {length}.")

    def failure(self, status: int) -> Any:
        return error("The server is overloaded or failed.", "InternalServerError", code=status)

    def wrong_key(self, key: str) -> RefusedError:
        return RefusedError(401, {"error": "Unauthorized"})


def _bad(text: str, param: str, value: object = None) -> RefusedError:
    said = f"(parameter={param})" if value is None else f"(parameter={param}, value={value})"
    return RefusedError(400, error(f"{text} {said}", "BadRequestError", param, 400))


def _refused(text: str) -> RefusedError:
    """A refusal that names no parameter."""
    return RefusedError(400, error(text, "BadRequestError", code=400))
