"""The bodies of requests for completions and chats, and their values as the server uses them.

Fields of other servers are accepted if they change no answer (`_UNUSED`), or with the values that change nothing
(`_NO_CHANGE`). Other values and unknown fields are rejected, unless they are null; unknown fields of a message are not
read.
"""

import json
from collections.abc import Sequence
from secrets import randbits
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import pydantic
from pydantic import BaseModel, Field, JsonValue
from pydantic_core import PydanticCustomError

from ralm.answering.prompts import Conversation
from ralm.errors import UsageError
from ralm.options import without_none
from ralm.reading.sampling import Sampling
from ralm.records import Message
from ralm.serving.chat import ChatCompletion
from ralm.serving.completion import Completion
from ralm.serving.errors import BODY, FIELD, RequestError, check_bytes
from ralm.serving.options import Limits, choices
from ralm.validation import MAX_SEED

_NEW_TOKENS: Final = 16  # the default of `max_tokens` in OpenAI's API
_MAX_STOPS: Final = 64
_MAX_COUNT: Final = 2**31 - 1
_SYSTEM: Final = ("system", "developer")  # both are the role system of chat templates
_UNUSED_IN_CHATS: Final = ("stride", "query_tokens", "document_tokens")
"""Choices without effect in a chat: passages are found once, with the whole message, and read whole."""
_BETWEEN_TEXTS: Final = "\n"
_VALUES_WITHOUT_EFFECT: Final[Sequence[tuple[str, Sequence[JsonValue]]]] = (
    ("audio web_search_options", []),
    ("frequency_penalty min_p min_tokens presence_penalty", [0]),
    ("best_of length_penalty repeat_penalty repetition_penalty", [1]),
    ("continue_final_message echo ignore_eos include_stop_str_in_output use_beam_search", [False]),
    ("add_generation_prompt", [True]),
    ("reasoning_effort", []),
    ("verbosity", ["medium"]),
    ("chat_template_kwargs logit_bias", [{}]),
    ("functions stop_token_ids tools", [[]]),
    ("function_call tool_choice", ["none", "auto"]),
    ("modalities", [["text"]]),
    ("response_format", [{"type": "text"}]),
    ("suffix", [""]),
)
"""Fields, and the values beside null that change nothing; other values are rejected."""
_NO_CHANGE: Final = {name: values for names, values in _VALUES_WITHOUT_EFFECT for name in names.split()}
_UNUSED: Final = ("metadata", "prediction", "service_tier", "store")
"""Fields that change no answer."""


def only(*values: JsonValue) -> pydantic.AfterValidator:
    """The check of a field that is not supported: null and these values mean nothing, and others are errors."""

    def check(value: JsonValue) -> JsonValue:
        if value is not None and value not in values:
            raise PydanticCustomError(FIELD, "is not supported: leave it out")
        return value

    return pydantic.AfterValidator(check)


_Unsupported: TypeAlias = Annotated[JsonValue, only()]


class Body(BaseModel):
    """The body of a request: JSON types are not converted, and unknown fields are errors unless they are null."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _checked(cls, value: Any) -> Any:
        """The value without unknown fields that are null; PydanticCustomError if it cannot be encoded as JSON."""
        if not isinstance(value, dict):
            return value  # pydantic reports the type
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise PydanticCustomError(BODY, "contains a lone surrogate (half a character)") from None
        except (RecursionError, ValueError):
            raise PydanticCustomError(BODY, "is nested too deeply, or has a number that is too long") from None
        return {name: one for name, one in value.items() if one is not None or name in cls.model_fields}


class StreamOptions(Body):
    """Optional content of a stream."""

    continuous_usage_stats: Annotated[bool | None, only(False)] = None
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


def _make_choice() -> type[Body]:
    fields: dict[str, Any] = {
        name: (Annotated[without_none(one.kind) | None, one.option], None) for name, one in choices().items()
    }
    own: dict[str, tuple[Any, str]] = {
        "index": (str, "The name of the index to read with; null: none."),
        "query": (str, "The query for the retriever, instead of the end of the text."),
        "gain": (bool, "Also return the gain of each token from passages, in nats."),
    }
    for name, (kind, description) in own.items():
        fields[name] = (Annotated[kind | None, Field(description=description)], None)
    return pydantic.create_model("Chosen", __base__=Body, __doc__="The choices of a request.", **fields)


if TYPE_CHECKING:
    Chosen = Body
else:
    Chosen = _make_choice()


class ChoosingRequest(Body):
    """A request for a model, with choices in its field `ralm`."""

    model: str
    ralm: Chosen | None = None

    @property
    def chosen(self) -> dict[str, Any]:
        """The choices by name; null chooses no index, and the default of everything else."""
        if self.ralm is None:
            return {}
        values = {name: getattr(self.ralm, name) for name in self.ralm.model_fields_set if name != "sources"}
        return {name: value for name, value in values.items() if value is not None or name == "index"}


if TYPE_CHECKING:
    _TolerantRequest = ChoosingRequest
else:
    _TolerantRequest = pydantic.create_model(
        "TolerantRequest",
        __base__=ChoosingRequest,
        **{name: (Annotated[JsonValue, only(*values)], None) for name, values in _NO_CHANGE.items()},
        **dict.fromkeys(_UNUSED, (JsonValue, None)),
    )


class TextRequest(_TolerantRequest):
    """The fields of completions and chats alike."""

    n: int | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    user: str | None = None

    def streams_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling(self) -> dict[str, Any]:
        """The values of `Sampling` and the stop strings, by name; RequestError if a value is wrong."""
        if self.seed is not None and abs(self.seed) > MAX_SEED:
            raise RequestError("`seed` must be a whole number of 64 bits.", param="seed")
        given: dict[str, Any] = {
            "temperature": 1.0 if self.temperature is None else float(self.temperature),
            "top_k": None if self.top_k in (-1, 0) else self.top_k,
            "top_p": 1.0 if self.top_p is None else float(self.top_p),
            "seed": randbits(63) if self.seed is None else self.seed % (MAX_SEED + 1),
        }
        try:
            Sampling(**given)
        except UsageError as error:
            param = next((name for name in given if f"`{name}`" in str(error)), None)
            raise RequestError(str(error), param=param) from None
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if "" in stop:
            raise RequestError("`stop` must not contain an empty text.", param="stop")
        if len(stop) > _MAX_STOPS:
            raise RequestError(f"`stop` has {len(stop):,} texts; the maximum is {_MAX_STOPS}.", param="stop")
        return {**given, "stop": stop}


def _count(name: str, given: int | None, least: int, most: int, default: int) -> int:
    """A number of a request, or the default; RequestError if it is out of range."""
    value = default if given is None else given
    if not least <= value <= most:
        raise RequestError(f"`{name}` must be from {least} to {most:,}.", param=name)
    return value


def _texts(given: Any) -> list[Any]:
    """A list of texts, or of lists of token ids."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if _are_ids(given):
            return [given]
        if all(isinstance(one, str) for one in given) or all(isinstance(one, list) and _are_ids(one) for one in given):
            return given
    message = "must be text, a list of texts, a list of token ids, or a list of such lists, none empty"
    raise PydanticCustomError(FIELD, message)


def _are_ids(given: list[Any]) -> bool:
    return len(given) > 0 and all(type(one) is int for one in given)


Texts: TypeAlias = Annotated[
    list[Any],
    pydantic.PlainValidator(_texts),
    pydantic.WithJsonSchema(pydantic.TypeAdapter(str | list[str] | list[int] | list[list[int]]).json_schema()),
    Field(description="Text, token ids, or a list of either."),
]
"""Each text or token ids."""


class CompletionRequest(TextRequest):
    """The body of POST /v1/completions."""

    prompt: Texts
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    max_tokens: int | None = None
    return_tokens_as_token_ids: bool | None = None


def completion_of(body: CompletionRequest, limits: Limits) -> Completion:
    """The values of a request; RequestError if one is wrong, unsupported or beyond the limits."""
    times = _count("n", body.n, 1, limits.texts, default=1)
    if body.best_of not in (None, 1, times):
        raise RequestError("`best_of` is not supported: leave it out, or give the value of `n`.", param="best_of")
    if len(body.prompt) * times > limits.texts:
        raise RequestError(
            f"{len(body.prompt):,} prompts times `n` {times} exceed {limits.texts} texts: send several requests.",
            param="n",
        )
    most = _MAX_COUNT if limits.new_tokens is None else limits.new_tokens
    choice = body.chosen
    check_bytes([choice.get("query") or ""], limits.text_bytes, "ralm.query")
    _count("logprobs", body.logprobs, 0, limits.top_logprobs, default=0)
    return Completion(
        prompts=body.prompt,
        new_tokens=_count("max_tokens", body.max_tokens, 0, most, default=min(_NEW_TOKENS, most)),
        times=times,
        echo=bool(body.echo),
        logprobs=body.logprobs,
        as_ids=bool(body.return_tokens_as_token_ids),
        query=choice.get("query"),
        gain=bool(choice.get("gain")),
        sampling=body.sampling(),
    )


def _parts(given: Any) -> Any:
    """The content of a message as a list of parts."""
    if given is None or isinstance(given, str):
        return [{"type": "text", "text": given or ""}]
    if not isinstance(given, list):
        raise PydanticCustomError(FIELD, "must be text or a list of parts")
    return given


def _text_of_part(given: Any) -> Any:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind != "text":
        found = f"of the type {kind}" if isinstance(kind, str) else "of no type"
        raise PydanticCustomError(FIELD, "is {found}; only text is supported", {"found": found[:60]})
    return given.get("text")


_PART_SCHEMA: Final = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT_SCHEMA: Final = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART_SCHEMA}, {"type": "null"}]}


class MessageBody(Body, extra="allow"):
    """A message: its role, and its text or a list of texts. An answer of a server may be sent back as it is."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        list[Annotated[str, pydantic.BeforeValidator(_text_of_part)]],
        pydantic.BeforeValidator(_parts),
        pydantic.WithJsonSchema(_CONTENT_SCHEMA),
        Field(description="Text, or a list of parts with text."),
    ] = []  # pydantic copies it
    annotations: list[JsonValue] | None = None
    audio: _Unsupported = None
    function_call: _Unsupported = None
    refusal: Annotated[str | None, only()] = None
    tool_call_id: Annotated[str | None, only()] = None
    tool_calls: Annotated[JsonValue, only([])] = None
    type: Annotated[str | None, only("text", "message")] = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_no_tool(cls, value: Any) -> Any:
        """The same value; PydanticCustomError for the answer of a tool."""
        if isinstance(value, dict) and value.get("role") in ("tool", "function"):
            raise PydanticCustomError(FIELD, "is the answer of a tool, and tools are not supported")
        return value

    @property
    def message(self) -> Message:
        """The message as chat templates know it."""
        return Message("system" if self.role in _SYSTEM else self.role, _BETWEEN_TEXTS.join(self.content))


class ChatChosen(Chosen):
    """The choices of a chat, and the place of its sources."""

    sources: Annotated[
        Literal["annotations", "text"] | None,
        Field(description="Sources as annotations of the message only, or also as text at its end."),
    ] = None


class PassedOnRequest(ChoosingRequest, extra="allow"):
    """The fields of a request to the server of the model that are read here."""

    ralm: ChatChosen | None = None


class ChatRequest(TextRequest):
    """The body of POST /v1/chat/completions."""

    messages: list[MessageBody]
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    ralm: ChatChosen | None = None
    top_logprobs: int | None = None


def chat_of(body: ChatRequest, limits: Limits) -> ChatCompletion:
    """The values of a request; RequestError if one is wrong, unsupported or beyond the limits."""
    top_logprobs = _count("top_logprobs", body.top_logprobs, 0, limits.top_logprobs, default=0)
    if top_logprobs and not body.logprobs:
        raise RequestError("`top_logprobs` has no effect without `logprobs`: true.", param="top_logprobs")
    choice = body.chosen
    for name in _UNUSED_IN_CHATS:
        if name in choice:
            raise RequestError(f"`{name}` has no effect in a chat: leave it out.", param=f"ralm.{name}")
    check_bytes([choice.get("query") or ""], limits.text_bytes, "ralm.query")
    return ChatCompletion(
        conversation=_conversation([one.message for one in body.messages], choice.get("query")),
        new_tokens=_new_tokens(body, limits),
        times=_count("n", body.n, 1, limits.texts, default=1),
        measured=choice.get("gain"),
        logprobs=bool(body.logprobs),
        top_logprobs=top_logprobs,
        sources_as_text=body.ralm is not None and body.ralm.sources == "text",
        sampling=body.sampling(),
    )


def _new_tokens(body: ChatRequest, limits: Limits) -> int | None:
    """The maximum number of tokens of an answer; None if it is not given."""
    short, long = body.max_tokens, body.max_completion_tokens
    if short is not None and long is not None and short != long:
        raise RequestError(
            "`max_tokens` and `max_completion_tokens` differ: leave one of them out.", param="max_tokens"
        )
    if short is None and long is None:
        return None
    name, given = ("max_completion_tokens", long) if short is None else ("max_tokens", short)
    return _count(name, given, 1, limits.new_tokens or _MAX_COUNT, default=1)


def _conversation(messages: list[Message], query: str | None) -> Conversation:
    asked = [one.content for one in messages if one.role == "user"]
    if not asked:
        raise RequestError("`messages` needs a message with the role user.", param="messages")
    if not asked[-1].strip():
        raise RequestError("the last message of the user is empty: give at least one word.", param="messages")
    if query is not None and not query.strip():
        raise RequestError("`ralm.query` is empty: leave it out, or give at least one word.", param="ralm.query")
    return Conversation(messages, query)
