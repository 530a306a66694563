"""OpenAI's own API: completions of babbage-002, davinci-002 and gpt-3.5-turbo-instruct, chats of the GPT-4s.

Facts, from platform.openai.com's API reference of completions and chats and from programs that read their answers:
`logprobs` of a completion lists at most 5 tokens, `top_logprobs` of a chat at most 20; a dictionary of likeliest tokens
has the actual token in addition if it is not among them; echoed texts begin with a null; tokens that are no whole
character are called `bytes:\\xe2\\x80` in completions; gpt-3.5-turbo-instruct refuses echo with log-probabilities;
errors are `{"error": {message, type, param, code}}`, and the one of a wrong key quotes the masked key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.api.dialects.base import Call, Dialect, Handler, bias_of, chat_text
from tests.api.writing import Json, RefusedError, Row, Task, Written

LEAST = -9999.0
"""What stands for the log-probability of a token that is all but impossible."""


@dataclass(frozen=True, kw_only=True)
class OpenAI(Dialect):
    """OpenAI's API. `echoes` is False for models that refuse echo with log-probabilities."""

    echoes: bool = True
    most_likeliest: int = 5
    most_in_chat: int = 20

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        return {
            ("GET", "/v1/models"): self.models,
            ("POST", "/v1/completions"): self.completions,
            ("POST", "/v1/chat/completions"): self.chat,
        }

    def models(self, call: Call) -> Json:
        return {"object": "list", "data": [self.model_card(call)]}

    def model_card(self, call: Call) -> Json:
        return {"id": call.model, "object": "model", "created": 1687882411, "owned_by": "system"}

    def completions(self, call: Call) -> Json:
        self.check_model(call)
        self.check_completion(call)
        prompts = self.prompts(call)
        written = [call.write(self.task(call, prompt)) for prompt in prompts]
        choices = [
            self.choice(call, index, prompt, one)
            for index, (prompt, one) in enumerate(zip(prompts, written, strict=True))
        ]
        return {
            **self.head(call, "cmpl", "text_completion"),
            "choices": choices,
            "usage": usage(sum(map(len, prompts)), sum(len(one.new) for one in written)),
        }

    def chat(self, call: Call) -> Json:
        self.check_model(call)
        self.check_chat(call)
        prompt = call.begun(call.encode(chat_text(call.body["messages"]), special=True))
        task = self.task(call, prompt)
        written = call.write(task)
        content = [self.chat_token(call, row) for row in self.told(call, written)]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": written.text, "refusal": None},
            "logprobs": {"content": content, "refusal": None} if call.body.get("logprobs") else None,
            "finish_reason": written.finish,
        }
        return {
            **self.head(call, "chatcmpl", "chat.completion"),
            "choices": [choice],
            "usage": usage(len(prompt), len(written.new)),
        }

    def head(self, call: Call, short: str, kind: str) -> Json:
        return {
            "id": f"{short}-{call.number}",
            "object": kind,
            "created": 1700000000 + call.number,
            "model": call.model,
        }

    def prompts(self, call: Call) -> list[list[int]]:
        """The prompts as token ids: one text or list of ids, or a list of either."""
        prompt = call.body.get("prompt", "<|endoftext|>")
        one = isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int))
        every = [prompt] if one else prompt
        return [call.begun(self.encoded(call, text) if isinstance(text, str) else list(text)) for text in every]

    def encoded(self, call: Call, text: str) -> list[int]:
        """A prompt's text as token ids; OpenAI adds no special tokens."""
        return call.encode(text, special=False)

    def task(self, call: Call, prompt: list[int]) -> Task:
        body = call.body
        most_new = int(body.get("max_completion_tokens") or body.get("max_tokens", 16))
        self.check_length(call, len(prompt), most_new)
        return Task(prompt=prompt, most_new=most_new, bias=bias_of(body.get("logit_bias")))

    def choice(self, call: Call, index: int, prompt: list[int], written: Written) -> Json:
        echo = bool(call.body.get("echo")) and not call.fault.ignores_echo
        before = call.decode(prompt)
        rows = [*(written.prompt if echo else []), *self.told(call, written)]
        logprobs = call.body.get("logprobs")
        return {
            "text": (before if echo else "") + written.text,
            "index": index,
            "logprobs": None if logprobs is None else self.logprobs(call, rows),
            "finish_reason": written.finish,
        }

    def told(self, call: Call, written: Written) -> list[Row]:
        """The new tokens without the end of the text."""
        return [row for row in written.new if row.token not in call.backing.end_tokens]

    def logprobs(self, call: Call, rows: list[Row]) -> Json:
        """The lists of a completion; `top_logprobs` is null if 0 tokens were asked for."""
        listed = call.body["logprobs"]
        return {
            "tokens": [self.name(call, row, row.token) for row in rows],
            "token_logprobs": [sent(row.log_prob) for row in rows],
            "top_logprobs": [self.listed(call, row, listed) for row in rows] if listed else None,
        }

    def listed(self, call: Call, row: Row, count: int) -> dict[str, float | None] | None:
        """The likeliest tokens in the place of a token, and the token itself; one of two with the same name."""
        if row.log_probs_V is None:
            return None
        likeliest = {self.name(call, row, token): sent(log_prob) for token, log_prob in row.likeliest(count)}
        return likeliest | {self.name(call, row, row.token): sent(row.log_prob)}

    def name(self, call: Call, row: Row, token: int) -> str:
        """What a token is called in the place of a row."""
        try:
            return call.backing.piece(token).decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in call.bytes_of(token))

    def chat_token(self, call: Call, row: Row) -> Json:
        count = call.body.get("top_logprobs") or 0
        return {
            **self.chat_name(call, row, row.token),
            "logprob": sent(row.log_prob),
            "top_logprobs": [
                {**self.chat_name(call, row, token), "logprob": sent(log_prob)}
                for token, log_prob in row.likeliest(count)
            ],
        }

    def chat_name(self, call: Call, row: Row, token: int) -> Json:
        """What a token is called in a chat: its text, or its bytes if that is no whole character, and its bytes."""
        name = self.name(call, row, token).removeprefix("bytes:")
        return {"token": name, "bytes": call.bytes_of(token)}

    def check_model(self, call: Call) -> None:
        asked = call.body.get("model")
        if asked != call.model:
            raise self.unknown_model(asked)

    def unknown_model(self, asked: str | None) -> RefusedError:
        text = f"The model `{asked}` does not exist or you do not have access to it."
        return RefusedError(404, error(text, "invalid_request_error", code="model_not_found"))

    def check_completion(self, call: Call) -> None:
        listed = call.body.get("logprobs")
        if listed is not None and not 0 <= listed <= self.most_likeliest:
            text = f"Invalid value for 'logprobs': must be at most {self.most_likeliest}."
            raise RefusedError(400, error(text, "invalid_request_error", "logprobs"))
        if call.body.get("echo") and listed is not None and not self.echoes:
            text = "Setting 'echo' and 'logprobs' at the same time is not supported for this model."
            raise RefusedError(400, error(text, "invalid_request_error"))

    def check_chat(self, call: Call) -> None:
        listed = call.body.get("top_logprobs")
        if listed is not None and not 0 <= listed <= self.most_in_chat:
            text = f"Invalid value for 'top_logprobs': must be less than or equal to {self.most_in_chat}."
            raise RefusedError(400, error(text, "invalid_request_error", "top_logprobs"))

    def check_length(self, call: Call, prompt: int, new: int) -> None:
        length = call.backing.max_length
        if prompt + new > length:
            text = (
                f"This model's maximum context length is {length} tokens, however you requested {prompt + new} tokens "
                f"({prompt} in your prompt; {new} for the completion). Please reduce your prompt; or completion length."
            )
            raise RefusedError(400, error(text, "invalid_request_error", "messages", "context_length_exceeded"))

    def failure(self, status: int) -> Any:
        if status == 429:
            return error("Rate limit reached for requests", "requests", code="rate_limit_exceeded")
        return error("The server had an error while processing your request. Sorry about that!", "server_error")

    def wrong_key(self, key: str) -> RefusedError:
        if not key:
            return RefusedError(401, error("You didn't provide an API key.", "invalid_request_error"))
        text = f"Incorrect API key provided: {key[:3]}{'*' * 8}{key[-4:]}."
        return RefusedError(401, error(text, "invalid_request_error", code="invalid_api_key"))

    def not_found(self, path: str) -> RefusedError:
        return RefusedError(404, error(f"Invalid URL ({path})", "invalid_request_error"))


def error(message: str, kind: str, param: str | None = None, code: str | int | None = None) -> Json:
    """An error as OpenAI writes it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def usage(prompt: int, new: int) -> Json:
    """The tokens that were read and written."""
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def sent(log_prob: float | None) -> float | None:
    """A log-probability as it is sent; NaN stays NaN."""
    return log_prob if log_prob is None or log_prob != log_prob else max(log_prob, LEAST)
