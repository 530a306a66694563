"""llama.cpp's server (llama-server): its own completions, and OpenAI's as far as it has them.

Facts, seen of a server of autumn 2026 and read in tools/server (README.md, server-task.cpp, server-common.cpp) of the
repository ggml-org/llama.cpp: the list `completion_probabilities` has an entry for each new token, with id, token,
bytes, logprob and top_logprobs, before temperature and biases; with `post_sampling_probs` these are prob and top_probs
after them; OpenAI's routes give the same entries in `logprobs.content`. Nothing tells of the tokens of the prompt; echo
is ignored. 0 new tokens write one. A prompt is a text, a list of ids, or a list of such; a text gets the BOS of the
model, ids do not; an empty text writes nothing. The model that a request names is not looked at. Too long a prompt is
an error 400 of type `exceed_context_size_error`. A log-probability of minus infinity is the lowest float. What was cut
off with a stop string has no entries; the end of the text has one with an empty token; a token after which a character
is unfinished has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.api.dialects.base import Call, Dialect, Handler, bias_of
from tests.api.writing import Json, RefusedError, Row, Task, Written, unfinished

LEAST = float(np.finfo(np.float32).min)
_ENDINGS = {"length": "limit", "end": "eos"}


@dataclass(frozen=True, kw_only=True)
class LlamaCpp(Dialect):
    """llama.cpp's server."""

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        return {
            ("GET", "/v1/models"): self.models,
            ("POST", "/completion"): self.completion,
        }

    def models(self, call: Call) -> Json:
        length = call.backing.max_length
        meta = {"n_vocab": call.backing.vocabulary, "n_ctx": length, "n_ctx_train": length}
        card = {"id": call.model, "object": "model", "created": 1700000000, "owned_by": "llamacpp", "meta": meta}
        return {"object": "list", "data": [card]}

    def completion(self, call: Call) -> Json | list[Json]:
        answers = [self.native(call, prompt, self.written(call, prompt)) for prompt in self.prompts(call)]
        return answers[0] if len(answers) == 1 else [{**one, "index": i} for i, one in enumerate(answers)]

    def prompts(self, call: Call) -> list[list[int]]:
        prompt = call.body["prompt"]
        if prompt == []:
            raise _refused(400, '"prompt" must not be empty', "invalid_request_error")
        every = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        return [call.begun(self.encoded(call, one)) for one in every]

    def encoded(self, call: Call, prompt: str | list[int]) -> list[int]:
        """A text, which gets the special tokens, or ids."""
        tokens = call.encode(prompt, special=True) if isinstance(prompt, str) else prompt
        if any(not 0 <= token < call.backing.vocabulary for token in tokens):
            raise _refused(400, "Prompt contains invalid tokens", "invalid_request_error")
        return tokens

    def written(self, call: Call, prompt: list[int]) -> Written:
        body, length = call.body, call.backing.max_length
        if len(prompt) >= length:
            text = (
                f"request ({len(prompt)} tokens) exceeds the available context size ({length} tokens), "
                "try increasing it"
            )
            raise _refused(400, text, "exceed_context_size_error", n_prompt_tokens=len(prompt), n_ctx=length)
        most_new = body.get("n_predict", body.get("max_tokens", -1))
        room = length - len(prompt) if prompt else 0
        return call.write(
            Task(
                prompt=prompt,
                most_new=room if most_new is None or most_new < 0 else min(max(most_new, 1), room),
                bias=bias_of(body.get("logit_bias")),
            )
        )

    def listed(self, call: Call) -> int:
        """How many likeliest tokens are asked for: `n_probs`, or as OpenAI's routes call it."""
        return int(call.body.get("n_probs") or call.body.get("logprobs") or 0)

    def native(self, call: Call, prompt: list[int], written: Written) -> Json:
        answer = {
            "index": 0,
            "content": written.text,
            "tokens": [row.token for row in written.new] if call.body.get("return_tokens") else [],
            "model": call.model,
            "tokens_predicted": len(written.new),
            "tokens_evaluated": len(prompt),
            "stop_type": _ENDINGS[written.ended_by] if prompt else "none",
        }
        listed = self.probabilities(call, written)
        return {**answer, "completion_probabilities": listed} if listed else answer

    def probabilities(self, call: Call, written: Written) -> list[Json]:
        """The entry of each new token; none if no likeliest tokens were asked for.

        A token after which a character is unfinished has none; the one that ends it has the text of all.
        """
        count = self.listed(call)
        entries, unsent = list[Json](), b""
        for row in written.new if count else []:
            unsent += b"" if row.token in call.backing.end_tokens else call.backing.piece(row.token)
            if not unfinished(unsent):
                entries.append(self.entry(call, row, count) | _spelled(unsent))
                unsent = b""
        return entries

    def entry(self, call: Call, row: Row, count: int) -> Json:
        assert row.log_prob is not None
        top = [{**self.token(call, token), "logprob": _told(log_prob)} for token, log_prob in row.likeliest(count)]
        return {**self.token(call, row.token), "logprob": _told(row.log_prob), "top_logprobs": top}

    def token(self, call: Call, token: int) -> Json:
        return {"id": token, **_spelled(call.backing.piece(token))}

    def failure(self, status: int) -> Any:
        kinds = {503: ("Loading model", "unavailable_error"), 429: ("Too many requests", "rate_limit_error")}
        message, kind = kinds.get(status, ("Internal error", "server_error"))
        return {"error": {"code": status, "message": message, "type": kind}}

    def wrong_key(self, key: str) -> RefusedError:
        return _refused(401, "Invalid API Key", "authentication_error")


def _spelled(text: bytes) -> Json:
    return {"token": text.decode(errors="replace"), "bytes": list(text)}


def _told(log_prob: float) -> float:
    return max(log_prob, LEAST)


def _refused(status: int, message: str, kind: str, **more: int) -> RefusedError:
    return RefusedError(status, {"error": {"code": status, "message": message, "type": kind, **more}})
