"""The bodies of requests for completions and chats, and their values as the server uses them.

Unknown fields are rejected, and so are fields of OpenAI's API without an effect here.
"""

import json
from collections.abc import Mapping
from secrets import randbits
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model, model_validator
from pydantic_core import PydanticCustomError

from ralm.answering.prompts import Conversation
from ralm.errors import UsageError
from ralm.reading.sampling import Sampling
from ralm.records import Message
from ralm.serving.chat import ChatCompletion
from ralm.serving.completion import Completion
from ralm.serving.errors import RequestError
from ralm.serving.options import Limits, choices
from ralm.validation import MAX_SEED


class Body(BaseModel):
    """The body of a request: JSON types are not converted, and unknown fields are errors."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _checked(cls, value: Any) -> Any:
        """The same value; PydanticCustomError if it cannot be encoded as JSON."""
        if not isinstance(value, dict):
            return value  # pydantic reports the type
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise PydanticCustomError("surrogates", "contains a lone surrogate (half a character)") from None
        except (RecursionError, ValueError):
            raise PydanticCustomError("nested", "is nested too deeply, or has a number that is too long") from None
        return value


class StreamOptions(Body):
    """Optional content of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


def _make_choice() -> type[Body]:
    fields: dict[str, Any] = {name: (Annotated[one.kind | None, one.option], None) for name, one in choices().items()}
    own: dict[str, tuple[Any, str]] = {
        "index": (str, "The name of the index to read with; null: none."),
        "query": (str, "The query for the retriever, instead of the end of the text."),
        "gain": (bool, "Also return the gain of each token from passages, in nats."),
    }
    for name, (kind, description) in own.items():
        fields[name] = (Annotated[kind | None, Field(description=description)], None)
    return create_model("Chosen", __base__=Body, __doc__="The choices of a request.", **fields)


if TYPE_CHECKING:
    Chosen = Body
else:
    Chosen = _make_choice()


class _TextRequest(Body):
    """The fields of completions and chats alike."""

    model: str
    frequency_penalty: float | None = None
    n: int | None = None
    presence_penalty: float | None = None
    ralm: Chosen | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    user: str | None = None

    @property
    def chosen(self) -> dict[str, Any]:
        """The choices by name; null chooses no index, and the default of everything else."""
        if self.ralm is None:
            return {}
        values = {name: getattr(self.ralm, name) for name in self.ralm.model_fields_set if name != "sources"}
        return {name: value for name, value in values.items() if value is not None or name == "index"}

    def sampling(self) -> dict[str, Any]:
        """The values of `Sampling` and the stop strings, by name; RequestError if a value is wrong."""
        if self.seed is not None and abs(self.seed) > MAX_SEED:
            raise RequestError("`seed` must be a whole number of 64 bits.", param="seed")
        given: dict[str, Any] = {
            "temperature": 1.0 if self.temperature is None else float(self.temperature),
            "top_k": self.top_k,
            "top_p": 1.0 if self.top_p is None else float(self.top_p),
            "seed": randbits(63) if self.seed is None else self.seed % (MAX_SEED + 1),
        }
        try:
            Sampling(**given)
        except UsageError as error:
            param = next((name for name in given if f"`{name}`" in str(error)), None)
            raise RequestError(str(error), param=param) from None
        return {**given, "stop": self._stop_strings()}

    def _stop_strings(self) -> tuple[str, ...]:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if "" in stop:
            raise RequestError("`stop` must not contain an empty text.", param="stop")
        if len(stop) > _MAX_STOPS:
            raise RequestError(f"`stop` has {len(stop):,} texts; the maximum is {_MAX_STOPS}.", param="stop")
        return stop

    def check_stream(self) -> None:
        """Raise RequestError if a request has options of a stream and is none."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("`stream_options` has no effect without `stream`: true.", param="stream_options")


def _reject_unsupported(body: Body, fields: Mapping[str, tuple[Any, ...]], where: str = "") -> None:
    """Raise RequestError if a field has another value than the listed ones, which mean nothing."""
    for name, nothing in fields.items():
        if getattr(body, name) not in nothing:
            raise RequestError(f"`{where}{name}` is not supported: leave it out.", param=f"{where}{name}")


def _count(name: str, given: int | None, least: int, most: int, default: int) -> int:
    """A number of a request, or the default; RequestError if it is out of range."""
    value = default if given is None else given
    if not least <= value <= most:
        raise RequestError(f"`{name}` must be from {least} to {most:,}.", param=name)
    return value


_NEW_TOKENS: Final = 16
"""The default of `max_tokens` in OpenAI's API."""
_MAX_STOPS: Final = 64
_UNSUPPORTED_IN_COMPLETIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    "suffix": (None, ""),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
}
"""Unsupported fields, with the values that mean nothing."""


class CompletionRequest(_TextRequest):
    """The body of POST /v1/completions."""

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
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = None
    max_tokens: int | None = None
    return_tokens_as_token_ids: bool | None = None
    suffix: str | None = None


def completion_of(body: CompletionRequest, limits: Limits) -> Completion:
    """The values of a request; RequestError if one is wrong, unsupported or beyond the limits."""
    _reject_unsupported(body, _UNSUPPORTED_IN_COMPLETIONS)
    body.check_stream()
    prompts = prompts_of(body.prompt)
    times = _count("n", body.n, 1, limits.texts, default=1)
    if body.best_of not in (None, times):
        raise RequestError("`best_of` is not supported: leave it out, or give the value of `n`.", param="best_of")
    if len(prompts) * times > limits.texts:
        raise RequestError(
            f"{len(prompts):,} prompts times `n` {times} exceed {limits.texts} texts: send several requests.",
            param="n",
        )
    most = 2**31 - 1 if limits.new_tokens is None else limits.new_tokens
    choice = body.chosen
    return Completion(
        prompts=prompts,
        new_tokens=_count("max_tokens", body.max_tokens, 0, most, default=min(_NEW_TOKENS, most)),
        times=times,
        echo=bool(body.echo),
        scored=body.logprobs is not None or bool(choice.get("gain")),
        top_logprobs=_count("logprobs", body.logprobs, 0, limits.top_logprobs, default=0),
        query=choice.get("query"),
        gain=bool(choice.get("gain")),
        sampling=body.sampling(),
    )


def prompts_of(given: Any, param: str = "prompt") -> list[Any]:
    """The prompts of a request, each text or token ids; RequestError for anything else."""
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


_UNSUPPORTED_IN_CHATS: Final[Mapping[str, tuple[Any, ...]]] = {
    "audio": (None,),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "metadata": (None, {}),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, True, False),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None,),
    "response_format": (None, {"type": "text"}),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "verbosity": (None,),
    "web_search_options": (None,),
}
"""Unsupported fields of OpenAI's API, with the values that mean nothing."""
_UNSUPPORTED_IN_MESSAGES: Final[Mapping[str, tuple[Any, ...]]] = {
    "audio": (None,),
    "function_call": (None,),
    "name": (None,),
    "refusal": (None,),
    "tool_call_id": (None,),
    "tool_calls": (None, []),
    "type": (None, "text", "message"),
}
"""The same for messages; an answer of this server may be sent back as it is."""
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles of OpenAI's API, and their names in chat templates."""
_LENGTHS: Final = ("max_completion_tokens", "max_tokens")
"""The names of the maximum number of tokens in OpenAI's API."""
_BETWEEN_TEXTS: Final = "\n"


class MessageBody(Body):
    """A message: its role, and its text or a list of texts."""

    role: str
    content: Annotated[
        Any,
        Field(
            description="Text, or a list of parts with text.",
            json_schema_extra={
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                            "required": ["type", "text"],
                        },
                    },
                    {"type": "null"},
                ]
            },
        ),
    ] = None
    annotations: list[JsonValue] | None = None
    audio: JsonValue = None
    function_call: JsonValue = None
    name: str | None = None
    refusal: str | None = None
    tool_call_id: str | None = None
    tool_calls: JsonValue = None
    type: str | None = None


class ChatChosen(Chosen):
    """The choices of a chat, and the place of its sources."""

    sources: Annotated[
        Literal["annotations", "text"] | None,
        Field(description="Sources as annotations of the message only, or also as text at its end."),
    ] = None


class ChatRequest(_TextRequest):
    """The body of POST /v1/chat/completions."""

    messages: list[MessageBody]
    audio: JsonValue = None
    function_call: JsonValue = None
    functions: JsonValue = None
    logit_bias: JsonValue = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    metadata: JsonValue = None
    modalities: JsonValue = None
    parallel_tool_calls: bool | None = None
    prediction: JsonValue = None
    prompt_cache_key: str | None = None
    ralm: ChatChosen | None = None
    reasoning_effort: JsonValue = None
    response_format: JsonValue = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    tool_choice: JsonValue = None
    tools: JsonValue = None
    top_logprobs: int | None = None
    verbosity: JsonValue = None
    web_search_options: JsonValue = None

    @property
    def sources_as_text(self) -> bool:
        """Whether the sources are also appended to the text."""
        return self.ralm is not None and self.ralm.sources == "text"


def chat_of(body: ChatRequest, limits: Limits) -> ChatCompletion:
    """The values of a request; RequestError if one is wrong, unsupported or beyond the limits."""
    _reject_unsupported(body, _UNSUPPORTED_IN_CHATS)
    body.check_stream()
    top_logprobs = _count("top_logprobs", body.top_logprobs, 0, limits.top_logprobs, default=0)
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("`top_logprobs` has no effect without `logprobs`: true.", param="top_logprobs")
    choice = body.chosen
    return ChatCompletion(
        conversation=_conversation(body.messages, choice.get("query")),
        new_tokens=_new_tokens(body, limits),
        times=_count("n", body.n, 1, limits.texts, default=1),
        measured=choice.get("gain", True),
        top_logprobs=top_logprobs,
        sampling=body.sampling(),
    )


def _new_tokens(body: ChatRequest, limits: Limits) -> int | None:
    """The maximum number of tokens of an answer; None if it is not given."""
    given = {name: value for name in _LENGTHS if (value := getattr(body, name)) is not None}
    if len(set(given.values())) > 1:
        raise RequestError(
            "`max_tokens` and `max_completion_tokens` differ: leave one of them out.", param="max_tokens"
        )
    most = limits.new_tokens or 2**31 - 1
    return next((_count(name, value, 1, most, default=1) for name, value in given.items()), None)


def _conversation(given: list[MessageBody], query: str | None) -> Conversation:
    messages = [_message(one, f"messages.{place}") for place, one in enumerate(given)]
    asked = [one.content for one in messages if one.role == "user"]
    if not asked:
        raise RequestError("`messages` needs a message with the role user.", param="messages")
    if not asked[-1].strip():
        raise RequestError("the last message of the user is empty: give at least one word.", param="messages")
    if query is not None and not query.strip():
        raise RequestError("`ralm.query` is empty: leave it out, or give at least one word.", param="ralm.query")
    return Conversation(messages, query)


def _message(given: MessageBody, where: str) -> Message:
    if given.role in ("tool", "function"):
        raise RequestError(f"`{where}` is the answer of a tool, and tools are not supported.", param=where)
    if given.role not in _ROLES:
        message = f"`{where}.role` is {given.role[:40]!r}; it must be {', '.join(_ROLES)}."
        raise RequestError(message, param=f"{where}.role")
    _reject_unsupported(given, _UNSUPPORTED_IN_MESSAGES, f"{where}.")
    return Message(_ROLES[given.role], _text(given.content, f"{where}.content"))


def _text(given: Any, where: str) -> str:
    """The text of a message; RequestError if it contains anything else."""
    if given is None:
        return ""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise RequestError(f"`{where}` must be text or a list of parts.", param=where)
    return _BETWEEN_TEXTS.join(_part(one, f"{where}.{place}") for place, one in enumerate(given))


def _part(given: Any, where: str) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind != "text":
        found = f"of the type {kind}" if isinstance(kind, str) else "of no type"
        raise RequestError(f"`{where}` is {found[:60]}; only text is supported.", param=where)
    if not isinstance(given.get("text"), str):
        raise RequestError(f"`{where}.text` must be text.", param=where)
    return str(given["text"])
