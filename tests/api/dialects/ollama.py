"""Ollama: its own /api/generate, and OpenAI's chats.

Facts, from docs/api.md and docs/openapi.yaml of the repository ollama/ollama, whose versions since 0.12.11 tell
log-probabilities: `logprobs` (true or false) and `top_logprobs` (at most 20) fill a list with token, logprob, bytes and
top_logprobs of each new token; nothing tells of the tokens of the prompt. Prompts are texts, never ids; `raw` leaves
out the template. Answers are streamed, a JSON object a line, unless `stream` is false. `options` has temperature, seed,
num_predict and stop. Too long a prompt is cut at its beginning without a word, unless `truncate` is false. There are no
keys. Errors are {"error": text}.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.api.dialects.base import Call, Handler, chat_text
from tests.api.dialects.openai import OpenAI
from tests.api.writing import Json, RefusedError, Row, Task, Written


@dataclass(frozen=True, kw_only=True)
class Ollama(OpenAI):
    """Ollama; without `knows_logprobs` it is of before version 0.12.11 and ignores that they are asked for."""

    knows_logprobs: bool = True

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        return {
            ("GET", "/api/version"): lambda call: {"version": "0.12.11" if self.knows_logprobs else "0.12.10"},
            ("GET", "/api/ps"): lambda call: {"models": [self.running(call)]},
            ("POST", "/api/generate"): self.generate,
            ("GET", "/v1/models"): self.models,
            ("POST", "/v1/chat/completions"): self.chat,
        }

    def model_card(self, call: Call) -> Json:
        return {**super().model_card(call), "owned_by": "library"}

    def running(self, call: Call) -> Json:
        """What is told of the model once it is loaded."""
        name = call.model if ":" in call.model else f"{call.model}:latest"
        return {"name": name, "model": name, "context_length": call.backing.max_length}

    def generate(self, call: Call) -> Json:
        self.check_model(call)
        self.check_listed(call)
        prompt = call.body.get("prompt", "")
        if not prompt:
            return {"model": call.model, "response": "", "done": True, "done_reason": "load"}
        text = prompt if call.body.get("raw") else chat_text([{"role": "user", "content": prompt}])
        written = call.write(self.native_task(call, call.begun(call.encode(text, special=True))))
        assert call.body.get("stream") is False
        return {**self.native(call, written), "response": written.text, **self.logprobs_list(call, written)}

    def native_task(self, call: Call, prompt: list[int]) -> Task:
        options = call.body.get("options") or {}
        length = min(options.get("num_ctx", call.backing.max_length), call.backing.max_length)
        if len(prompt) >= length and call.body.get("truncate") is False:
            raise RefusedError(400, {"error": "the input length exceeds the context length"})
        prompt = prompt[-(length - 1) :]
        most_new = options.get("num_predict", -1)
        room = length - len(prompt)
        return Task(
            prompt=prompt,
            most_new=min(most_new, room) if most_new > 0 else room,
        )

    def native(self, call: Call, written: Written) -> Json:
        return {
            "model": call.model,
            "created_at": "2026-01-01T00:00:00.000000Z",
            "done": True,
            "done_reason": written.finish,
            "prompt_eval_count": len(written.prompt),
            "eval_count": len(written.new),
        }

    def logprobs_list(self, call: Call, written: Written) -> Json:
        if not call.body.get("logprobs") or not self.knows_logprobs:
            return {}
        return {"logprobs": [self.chat_token(call, row) for row in self.told(call, written)]}

    def name(self, call: Call, row: Row, token: int) -> str:
        return call.text(token)

    def unknown_model(self, asked: str | None) -> RefusedError:
        return RefusedError(404, {"error": f"model '{asked}' not found"})

    def check_listed(self, call: Call) -> None:
        if not 0 <= (call.body.get("top_logprobs") or 0) <= self.most_in_chat:
            raise RefusedError(400, {"error": f"top_logprobs must be between 0 and {self.most_in_chat}"})

    def task(self, call: Call, prompt: list[int]) -> Task:
        """A chat, cut at its beginning like a prompt."""
        return super().task(call, prompt[-(call.backing.max_length - 1) :])

    def check_length(self, call: Call, prompt: int, new: int) -> None:
        """No chat is too long."""
