"""Requests and answers of /v1/completions."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import randbits, token_hex
from typing import Annotated, Any, Final

from pydantic import Field, JsonValue

from ralm.errors import UsageError
from ralm.reading.sampling import Sampling
from ralm.serving.completion import Completion
from ralm.serving.errors import RequestError
from ralm.serving.options import Limits
from ralm.serving.wire.fields import Body, Chosen, StreamOptions, check_stream, chosen, count, refuse_idle
from ralm.validation import MOST_SEEDS

_MOST_TOKENS: Final = 16
"""Tokens that OpenAI's API writes if a request does not say."""
_MOST_STOPS: Final = 64
_IDLE: Final[Mapping[str, tuple[Any, ...]]] = {
    "suffix": (None, ""),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
}
"""Fields that do nothing here, with the values that clients send for nothing."""


class CompletionRequest(Body):
    """What OpenAI's clients send, and the field `ralm`."""

    model: str
    prompt: Annotated[
        Any,
        Field(
            description="Text, token ids, or a list of either.",
            json_schema_extra={
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "string"}},
                    {"type": "array", "items": {"type": "integer"}},
                    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                ]
            },
        ),
    ]
    best_of: int | None = None
    echo: bool | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = None
    max_tokens: int | None = None
    n: int | None = None
    presence_penalty: float | None = None
    ralm: Chosen | None = None
    return_tokens_as_token_ids: bool | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    user: str | None = None

    @property
    def chosen(self) -> dict[str, Any]:
        """What it chooses of how it is read."""
        return chosen(self.ralm)


def completion_of(body: CompletionRequest, limits: Limits) -> Completion:
    """What a request asks for.

    Raises RequestError if a value is wrong, beyond the limits, or asks for something that there is not.
    """
    refuse_idle(body, _IDLE)
    check_stream(body)
    prompts = prompts_of(body.prompt)
    times = count("n", body.n, 1, limits.texts, default=1)
    if body.best_of not in (None, times):
        raise RequestError("`best_of` is not supported: leave it out, or give the value of `n`.", param="best_of")
    if len(prompts) * times > limits.texts:
        raise RequestError(
            f"{len(prompts):,} prompts `n` {times} times are more than the {limits.texts} texts that a request may ask "
            "for: send several requests.",
            param="n",
        )
    most = 2**31 - 1 if limits.new_tokens is None else limits.new_tokens
    choice = body.chosen
    return Completion(
        prompts=prompts,
        new_tokens=count("max_tokens", body.max_tokens, 0, most, default=min(_MOST_TOKENS, most)),
        times=times,
        echo=bool(body.echo),
        scored=body.logprobs is not None or bool(choice.get("gain")),
        likeliest=count("logprobs", body.logprobs, 0, limits.likeliest, default=0),
        query=choice.get("query"),
        gain=bool(choice.get("gain")),
        sampling=sampling_of(body, 1.0),
    )


def sampling_of(body: Any, temperature: float) -> dict[str, Any]:
    """The options of sampling and stopping of a request, by the names of `GenerationOptions`; `temperature` is the
    default one. Raises RequestError if a value is wrong."""
    if body.seed is not None and abs(body.seed) > MOST_SEEDS:
        raise RequestError("`seed` must be a whole number of 64 bits.", param="seed")
    given: dict[str, Any] = {
        "temperature": float(temperature if body.temperature is None else body.temperature),
        "top_k": body.top_k,
        "top_p": 1.0 if body.top_p is None else float(body.top_p),
        "seed": randbits(63) if body.seed is None else body.seed % (MOST_SEEDS + 1),
    }
    try:
        Sampling(**given)
    except UsageError as error:
        param = next((name for name in given if f"`{name}`" in str(error)), None)
        raise RequestError(str(error), param=param) from None
    return {**given, "stop": _stop(body.stop)}


def _stop(given: str | Sequence[str] | None) -> tuple[str, ...]:
    stop = (given,) if isinstance(given, str) else tuple(given or ())
    if "" in stop:
        raise RequestError("`stop` must not hold an empty text.", param="stop")
    if len(stop) > _MOST_STOPS:
        raise RequestError(f"`stop` has {len(stop):,} texts; at most {_MOST_STOPS} are read.", param="stop")
    return stop


def prompts_of(given: Any, param: str = "prompt") -> list[Any]:
    """A prompt, or several, each text or token ids; RequestError if it is anything else."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if _are_ids(given):
            return [given]
        if all(isinstance(one, str) for one in given) or all(isinstance(one, list) and _are_ids(one) for one in given):
            return given
    raise RequestError(
        f"`{param}` must be text, a list of texts, a list of token ids, or a list of such lists, none empty.",
        param=param,
    )


def _are_ids(given: list[Any]) -> bool:
    return len(given) > 0 and all(type(one) is int for one in given)


@dataclass
class Usage:
    """Tokens that were read and written."""

    prompt: int = 0
    written: int = 0

    def as_json(self) -> dict[str, JsonValue]:
        """As OpenAI's API says it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.written,
            "total_tokens": self.prompt + self.written,
        }


@dataclass
class Head:
    """What every answer and every piece of one begins with."""

    model: str
    kind: str = "text_completion"
    id: str = field(default_factory=lambda: f"cmpl-{token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def as_json(self) -> dict[str, JsonValue]:
        """Its fields."""
        return {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}

    def stream(self, pieces: Iterator[dict[str, JsonValue]], usage: Usage | None) -> Iterator[dict[str, JsonValue]]:
        """The pieces, each behind these fields, and at the end the usage if it is wanted."""
        more: dict[str, JsonValue] = {} if usage is None else {"usage": None}
        for piece in pieces:
            yield {**self.as_json(), **piece, **more}
        if usage is not None:
            yield {**self.as_json(), "choices": [], "usage": usage.as_json()}


def server_sent(value: JsonValue) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


DONE: Final = b"data: [DONE]\n\n"
