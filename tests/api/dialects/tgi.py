"""Text Generation Inference: its own /generate.

Facts, from router/src (lib.rs, validation.rs) of the repository huggingface/text-generation-inference and its issues
2973 and 3070: prompts are texts, never ids; `details.prefill` has id, text and logprob of each token of the prompt, a
null first, if `decoder_input_details` asks for it; since version 3.0 it is an empty list, without a word, unless the
server was started with --enable-prefill-logprobs. `top_n_tokens` (at most 5 unless started so) fills
`details.top_tokens`, a list for each new token. Sampling is greedy unless `do_sample` or a temperature asks for it; a
temperature of 0 and 0 new tokens are errors. Errors are 422 and {error, error_type}.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.api.dialects.base import Call, Dialect, Handler
from tests.api.writing import Json, RefusedError, Task, Written

_ENDINGS = {"length": "length", "end": "eos_token"}


@dataclass(frozen=True, kw_only=True)
class TGI(Dialect):
    """Text Generation Inference; `prefill` if it was started with --enable-prefill-logprobs."""

    prefill: bool = True
    max_top_n_tokens: int = 5

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        return {
            ("GET", "/info"): self.info,
            ("POST", "/tokenize"): self.tokenize,
            ("POST", "/generate"): self.generate,
        }

    def info(self, call: Call) -> Json:
        length = call.backing.max_length
        return {
            "model_id": call.model,
            "model_sha": call.fingerprint,
            "max_input_tokens": length - 1,
            "max_total_tokens": length,
            "router": "text-generation-router",
            "version": "3.3.6",
        }

    def tokenize(self, call: Call) -> Any:
        tokens = call.encode(call.body["inputs"], special=call.body.get("add_special_tokens", True))
        return [{"id": token, "text": call.text(token)} for token in tokens]

    def generate(self, call: Call) -> Json:
        asked: Json = call.body.get("parameters") or {}
        self.check(asked)
        prompt = call.begun(call.encode(call.body["inputs"], special=call.body.get("add_special_tokens", True)))
        written = call.write(self.task(call, asked, prompt))
        answer = {"generated_text": written.text}
        detailed = asked.get("details") or asked.get("decoder_input_details")
        return {**answer, "details": self.details(call, asked, written)} if detailed else answer

    def task(self, call: Call, asked: Json, prompt: list[int]) -> Task:
        length, new = call.backing.max_length, asked.get("max_new_tokens", 100)
        if len(prompt) + new > length:
            given = f"Given: {len(prompt)} `inputs` tokens and {new} `max_new_tokens`"
            raise _invalid(f"`inputs` tokens + `max_new_tokens` must be <= {length}. {given}")
        return Task(prompt=prompt, most_new=new)

    def check(self, asked: Json) -> None:
        if asked.get("top_n_tokens", 0) > self.max_top_n_tokens:
            most = self.max_top_n_tokens
            raise _invalid(f"`top_n_tokens` must be >= 0 and <= {most}. Given: {asked['top_n_tokens']}")

    def details(self, call: Call, asked: Json, written: Written) -> Json:
        listed = asked.get("top_n_tokens", 0)
        prefill = written.prompt if self.prefill and asked.get("decoder_input_details") else []
        tops = [[self.token(call, *pair) for pair in row.likeliest(listed)] for row in written.new] if listed else []
        return {
            "finish_reason": _ENDINGS[written.ended_by],
            "generated_tokens": len(written.new),
            "prefill": [{"id": row.token, "text": call.text(row.token), "logprob": row.log_prob} for row in prefill],
            "tokens": [self.token(call, row.token, row.log_prob) for row in written.new],
            **({"top_tokens": tops} if tops else {}),
        }

    def token(self, call: Call, token: int, log_prob: float | None) -> Json:
        special = token in call.backing.end_tokens
        return {"id": token, "text": call.text(token), "logprob": log_prob, "special": special}

    def wrong_key(self, key: str) -> RefusedError:
        return RefusedError(401, {"error": "Unauthorized", "error_type": "unauthorized"})

    def failure(self, status: int) -> Any:
        return {"error": "Request failed during generation", "error_type": "generation"}


def _invalid(text: str) -> RefusedError:
    return RefusedError(422, {"error": f"Input validation error: {text}", "error_type": "validation"})
