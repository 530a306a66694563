"""What the bodies of requests have in common: unknown fields are refused, and what a request chooses in `ralm`."""

import json
from collections.abc import Mapping, Sequence
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
        """The same value; PydanticCustomError if it is no text that can be sent on."""
        if not isinstance(value, dict):
            return value  # pydantic says what is wrong
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise PydanticCustomError("surrogates", "contains a lone surrogate (half a character)") from None
        except (RecursionError, ValueError):
            raise PydanticCustomError("nested", "is nested too deeply, or has a number that is too long") from None
        return value


class StreamOptions(Body):
    """What a stream tells beside the text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


def _chosen() -> type[Body]:
    fields: dict[str, Any] = {name: (Annotated[one.kind | None, one.option], None) for name, one in choices().items()}
    own = {
        "index": "The name of the index to read with; null: none.",
        "query": "What the retriever is asked with, instead of the end of the text.",
    }
    for name, said in own.items():
        fields[name] = (Annotated[str | None, Field(description=said)], None)
    said = "Also tell what passages changed for each token, in nats."
    fields["gain"] = (Annotated[bool | None, Field(description=said)], None)
    return create_model("Chosen", __base__=Body, __doc__="What a request chooses of how it is read.", **fields)


if TYPE_CHECKING:
    Chosen = Body
else:
    Chosen = _chosen()


def chosen(given: Chosen | None) -> dict[str, Any]:
    """What a request chooses, by name; null is a choice of the index alone, and the default elsewhere."""
    if given is None:
        return {}
    values = {name: getattr(given, name) for name in given.model_fields_set}
    return {name: value for name, value in values.items() if value is not None or name == "index"}


def reject_ignored(body: Body, idle: Mapping[str, tuple[Any, ...]], where: str = "") -> None:
    """Raise RequestError if a field that does nothing has another value than those that clients send for nothing."""
    for name, nothing in idle.items():
        if getattr(body, name) not in nothing:
            raise RequestError(f"`{where}{name}` is not supported: leave it out.", param=f"{where}{name}")


def check_stream(body: Any) -> None:
    """Raise RequestError if a request has options of a stream and wants none."""
    if body.stream_options is not None and not body.stream:
        raise RequestError("`stream_options` goes with `stream`: true.", param="stream_options")


def count(name: str, given: int | None, least: int, most: int, default: int) -> int:
    """A number of a request, or the default; RequestError if it is out of range."""
    value = default if given is None else given
    if not least <= value <= most:
        raise RequestError(f"`{name}` must be from {least} to {most:,}.", param=name)
    return value


_MOST_TOKENS: Final = 16
"""Tokens that OpenAI's API writes if a request does not say."""
_MOST_STOPS: Final = 64
_IGNORED_IN_COMPLETIONS: Final[Mapping[str, tuple[Any, ...]]] = {
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
    reject_ignored(body, _IGNORED_IN_COMPLETIONS)
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
    if body.seed is not None and abs(body.seed) > MAX_SEED:
        raise RequestError("`seed` must be a whole number of 64 bits.", param="seed")
    given: dict[str, Any] = {
        "temperature": float(temperature if body.temperature is None else body.temperature),
        "top_k": body.top_k,
        "top_p": 1.0 if body.top_p is None else float(body.top_p),
        "seed": randbits(63) if body.seed is None else body.seed % (MAX_SEED + 1),
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


_IGNORED_IN_CHATS: Final[Mapping[str, tuple[Any, ...]]] = {
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
"""Fields of OpenAI's API that do nothing here, with the values that clients send for nothing."""
_IGNORED_IN_MESSAGES: Final[Mapping[str, tuple[Any, ...]]] = {
    "audio": (None,),
    "function_call": (None,),
    "name": (None,),
    "refusal": (None,),
    "tool_call_id": (None,),
    "tool_calls": (None, []),
    "type": (None, "text", "message"),
}
"""The same of messages; an answer of this server may be sent back as it is."""
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles of OpenAI's API, and what chat templates call them."""
_LENGTHS: Final = ("max_completion_tokens", "max_tokens")
"""The names that OpenAI's API has for the most tokens of an answer."""
_JOINED: Final = "\n"
"""What is put between the texts of a message of several."""


class MessageBody(Body):
    """A message: who sent it, and its text, or a list of texts."""

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
    """What a request chooses of how a chat is read, and where it wants its sources."""

    sources: Annotated[
        Literal["annotations", "text"] | None,
        Field(description="Sources as annotations of the message alone, or as text at its end too."),
    ] = None


class ChatRequest(Body):
    """What OpenAI's clients send, and the field `ralm`."""

    model: str
    messages: list[MessageBody]
    audio: JsonValue = None
    frequency_penalty: float | None = None
    function_call: JsonValue = None
    functions: JsonValue = None
    logit_bias: JsonValue = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    metadata: JsonValue = None
    modalities: JsonValue = None
    n: int | None = None
    parallel_tool_calls: bool | None = None
    prediction: JsonValue = None
    presence_penalty: float | None = None
    prompt_cache_key: str | None = None
    ralm: ChatChosen | None = None
    reasoning_effort: JsonValue = None
    response_format: JsonValue = None
    safety_identifier: str | None = None
    seed: int | None = None
    service_tier: str | None = None
    stop: str | list[str] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    tool_choice: JsonValue = None
    tools: JsonValue = None
    top_k: int | None = None
    top_logprobs: int | None = None
    top_p: float | None = None
    user: str | None = None
    verbosity: JsonValue = None
    web_search_options: JsonValue = None

    @property
    def chosen(self) -> dict[str, Any]:
        """What it chooses of how it is read."""
        return {name: value for name, value in chosen(self.ralm).items() if name != "sources"}

    @property
    def sources_as_text(self) -> bool:
        """Whether the sources are told at the end of the text too."""
        return self.ralm is not None and self.ralm.sources == "text"


def chat_of(body: ChatRequest, limits: Limits) -> ChatCompletion:
    """What a request asks for.

    Raises RequestError if a value is wrong, beyond the limits, or asks for something that there is not.
    """
    reject_ignored(body, _IGNORED_IN_CHATS)
    check_stream(body)
    likeliest = count("top_logprobs", body.top_logprobs, 0, limits.likeliest, default=0)
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("`top_logprobs` goes with `logprobs`: true.", param="top_logprobs")
    choice = body.chosen
    return ChatCompletion(
        conversation=_conversation(body.messages, choice.get("query")),
        new_tokens=_new_tokens(body, limits),
        times=count("n", body.n, 1, limits.texts, default=1),
        measured=choice.get("gain", True),
        likeliest=likeliest,
        sampling=sampling_of(body, 1.0),
    )


def _new_tokens(body: ChatRequest, limits: Limits) -> int | None:
    """The most tokens of an answer; None: not said."""
    given = {name: value for name in _LENGTHS if (value := getattr(body, name)) is not None}
    if len(set(given.values())) > 1:
        raise RequestError(
            "`max_tokens` and `max_completion_tokens` differ: leave one of them out.", param="max_tokens"
        )
    most = limits.new_tokens or 2**31 - 1
    return next((count(name, value, 1, most, default=1) for name, value in given.items()), None)


def _conversation(given: list[MessageBody], query: str | None) -> Conversation:
    messages = [_message(one, f"messages.{place}") for place, one in enumerate(given)]
    asked = [one.content for one in messages if one.role == "user"]
    if not asked:
        raise RequestError("`messages` has no message with the role user, which is answered.", param="messages")
    if not asked[-1].strip():
        raise RequestError("the last message of the user is empty: ask with at least one word.", param="messages")
    if query is not None and not query.strip():
        raise RequestError("`ralm.query` is empty: leave it out, or give at least one word.", param="ralm.query")
    return Conversation(messages, query)


def _message(given: MessageBody, where: str) -> Message:
    if given.role in ("tool", "function"):
        raise RequestError(f"`{where}` is the answer of a tool, and tools are not supported.", param=where)
    if given.role not in _ROLES:
        said = f"`{where}.role` is {given.role[:40]!r}; it must be {', '.join(_ROLES)}."
        raise RequestError(said, param=f"{where}.role")
    reject_ignored(given, _IGNORED_IN_MESSAGES, f"{where}.")
    return Message(_ROLES[given.role], _text(given.content, f"{where}.content"))


def _text(given: Any, where: str) -> str:
    """The text of a message; RequestError if there is anything else in it."""
    if given is None:
        return ""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise RequestError(f"`{where}` must be text or a list of parts.", param=where)
    return _JOINED.join(_part(one, f"{where}.{place}") for place, one in enumerate(given))


def _part(given: Any, where: str) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind != "text":
        said = f"of the type {kind}" if isinstance(kind, str) else "of no type"
        raise RequestError(f"`{where}` is {said[:60]}; only text is read here.", param=where)
    if not isinstance(given.get("text"), str):
        raise RequestError(f"`{where}.text` must be text.", param=where)
    return str(given["text"])
