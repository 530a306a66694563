"""The bodies of requests for completions and chats, and their values as the server uses them.

Fields of other servers are accepted with the values that change nothing (`_VALUES_WITHOUT_EFFECT`). Other values and
unknown fields are rejected, unless they are null; unknown fields of a message are not read.
"""

import json
from collections.abc import Mapping, Sequence
from secrets import randbits
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, TypeVar

import pydantic
from pydantic import BaseModel, Field, JsonValue
from pydantic_core import PydanticCustomError

from ralm.answering.prompts import Conversation
from ralm.errors import UsageError
from ralm.reading.sampling import Sampling
from ralm.records import Message
from ralm.serving.errors import FIELD, RequestError, validation_error
from ralm.serving.options import MAX_TEXTS, Limits
from ralm.validation import MAX_SEED

_NEW_TOKENS: Final = 16  # the default of `max_tokens` in OpenAI's API
_MAX_STOPS: Final = 64
_MAX_COUNT: Final = 2**31 - 1
_SYSTEM: Final = ("system", "developer")  # both are the role system of chat templates
_UNUSED_IN_CHATS: Final = ("stride", "query_tokens", "document_tokens")
"""Choices without effect in a chat: passages are found once, with the whole message, and read whole."""
_BETWEEN_TEXTS: Final = "\n"
_VALUES_WITHOUT_EFFECT: Final[Sequence[tuple[str, Sequence[JsonValue] | None]]] = (
    ("audio reasoning_effort web_search_options", []),
    ("frequency_penalty min_p min_tokens presence_penalty", [0]),
    ("best_of length_penalty repeat_penalty repetition_penalty", [1]),
    ("continue_final_message echo ignore_eos include_stop_str_in_output use_beam_search", [False]),
    ("add_generation_prompt", [True]),
    ("verbosity", ["medium"]),
    ("chat_template_kwargs logit_bias", [{}]),
    ("functions stop_token_ids tools", [[]]),
    ("function_call tool_choice", ["none", "auto"]),
    ("modalities", [["text"]]),
    ("response_format", [{"type": "text"}]),
    ("suffix", [""]),
    ("metadata parallel_tool_calls prediction prompt_cache_key safety_identifier service_tier store user", None),
)
"""Fields of other servers that texts ignore, and the values beside null that change no answer; None: any value."""


class Body(BaseModel):
    """The body of a request: JSON types are not converted, and unknown fields are errors unless they are null."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    without_effect: ClassVar[Mapping[str, Sequence[JsonValue] | None]] = {}
    """Fields that are not read, with the values beside null that change nothing; None: any value."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _checked(cls, value: Any) -> Any:
        """Return the value without fields that change nothing or are null."""
        if not isinstance(value, dict):
            return value  # pydantic reports the type
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise RequestError("the body contains a lone surrogate (half a character).") from None
        except (RecursionError, ValueError):
            raise RequestError("the body is nested too deeply, or has a number that is too long.") from None
        return {name: content for name, content in value.items() if cls._is_read(name, content)}

    @classmethod
    def _is_read(cls, name: str, content: Any) -> bool:
        if (field := cls.model_fields.get(name)) is not None:
            return content is not None or field.is_required() or field.default is None
        unchanged = cls.without_effect.get(name, ())
        return content is not None and unchanged is not None and content not in unchanged


_Body = TypeVar("_Body", bound=Body)


def read_body(kind: type[_Body], value: object) -> _Body:
    """Return a value as a body of this kind; RequestError if a field is wrong."""
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise validation_error({**first, "loc": ("body", *first["loc"])}) from None


class StreamOptions(Body):
    """Optional content of a stream."""

    without_effect = {"continuous_usage_stats": [False], "include_obfuscation": None}
    include_usage: bool | None = None


class Chosen(Body):
    """The choices of a request: an index, null for none, and how its passages are found and read."""

    index: str | None = None
    query: str | None = None
    gain: bool | None = None
    retriever: str | None = None
    reader: str | None = None
    documents: int | None = None
    mixer: str | None = None
    rerank: str | None = None
    stride: int | None = None
    query_tokens: int | None = None
    document_tokens: int | None = None


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


class TextRequest(ChoosingRequest):
    """The fields of completions and chats alike."""

    without_effect = {name: values for names, values in _VALUES_WITHOUT_EFFECT for name in names.split()}
    n: Annotated[int, Field(ge=1, le=MAX_TEXTS)] = 1
    seed: Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED)] | None = None
    stop: str | list[str] = []  # pydantic copies it
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def sampling(self) -> dict[str, Any]:
        """Return the values of `Sampling` and the stop strings, by name; RequestError if one is wrong."""
        sampling: dict[str, Any] = {
            "temperature": float(self.temperature),
            "top_k": None if self.top_k in (-1, 0) else self.top_k,
            "top_p": float(self.top_p),
            "seed": randbits(63) if self.seed is None else self.seed % (MAX_SEED + 1),
        }
        try:
            Sampling(**sampling)
        except UsageError as error:
            param = next((name for name in sampling if f"`{name}`" in str(error)), None)
            raise RequestError(str(error), param=param) from None
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if "" in stop:
            raise RequestError("`stop` must not contain an empty text.", param="stop")
        if len(stop) > _MAX_STOPS:
            raise RequestError(f"`stop` has {len(stop):,} texts; the maximum is {_MAX_STOPS}.", param="stop")
        return {**sampling, "stop": stop}


def _check(name: str, value: int, least: int, most: int | None) -> None:
    """Raise RequestError if a number of a request is out of range."""
    most = _MAX_COUNT if most is None else most
    if not least <= value <= most:
        raise RequestError(f"`{name}` must be from {least} to {most:,}.", param=name)


def _texts(prompt: Any) -> list[Any]:
    """Return a list of texts, or of lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if _are_ids(prompt):
            return [prompt]
        if all(isinstance(text, str) for text in prompt) or all(map(_are_ids, prompt)):
            return prompt
    message = "must be text, a list of texts, a list of token ids, or a list of such lists, none empty"
    raise PydanticCustomError(FIELD, message)


def _are_ids(tokens: Any) -> bool:
    return isinstance(tokens, list) and len(tokens) > 0 and all(type(token) is int for token in tokens)


TopLogprobs: TypeAlias = Annotated[int, Field(ge=0, le=20)]
Texts: TypeAlias = Annotated[list[Any], pydantic.PlainValidator(_texts)]
"""Each text or token ids."""


class CompletionRequest(TextRequest):
    """The body of POST /v1/completions."""

    prompt: Texts
    echo: bool = False
    logprobs: TopLogprobs | None = None
    max_tokens: int = _NEW_TOKENS
    return_tokens_as_token_ids: bool = False

    def check(self, limits: Limits) -> None:
        """Raise RequestError if a value is wrong, unsupported or beyond the limits."""
        if len(self.prompt) * self.n > MAX_TEXTS:
            raise RequestError(
                f"{len(self.prompt):,} prompts times `n` {self.n} exceed {MAX_TEXTS} texts: send several requests.",
                param="n",
            )
        if "max_tokens" in self.model_fields_set:
            _check("max_tokens", self.max_tokens, 0, limits.new_tokens)
        for name in ("query", "gain"):
            if self.echo and name in self.chosen:
                raise RequestError(f"`ralm.{name}` has no effect with `echo`: leave it out.", param=f"ralm.{name}")


def _parts(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content or ""}]
    if not isinstance(content, list):
        raise PydanticCustomError(FIELD, "must be text or a list of parts")
    return content


def _text_of_part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        fault = f"of the type {kind}" if isinstance(kind, str) else "of no type"
        raise PydanticCustomError(FIELD, "is {fault}; only text is supported", {"fault": fault[:60]})
    return part.get("text")


class MessageBody(Body):
    """A message: its role, and its text or a list of texts. Other fields, which an answer may have, are not read."""

    without_effect = {"audio": [], "function_call": [], "refusal": [], "tool_call_id": [], "tool_calls": [[]]}
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        list[Annotated[str, pydantic.BeforeValidator(_text_of_part)]], pydantic.BeforeValidator(_parts)
    ] = []  # pydantic copies it

    @classmethod
    def _is_read(cls, name: str, content: Any) -> bool:
        return name in {*cls.model_fields, *cls.without_effect} and super()._is_read(name, content)

    @property
    def message(self) -> Message:
        """The message as chat templates know it."""
        return Message("system" if self.role in _SYSTEM else self.role, _BETWEEN_TEXTS.join(self.content))


class ChatChosen(Chosen):
    """The choices of a chat, and the place of its sources."""

    sources: Literal["annotations", "text"] | None = None


class PassedOnRequest(ChoosingRequest, extra="allow"):
    """The fields of a request to the server of the model that are read here."""

    ralm: ChatChosen | None = None


class ChatRequest(TextRequest):
    """The body of POST /v1/chat/completions."""

    messages: list[MessageBody]
    logprobs: bool = False
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    ralm: ChatChosen | None = None
    top_logprobs: TopLogprobs = 0

    def check(self, limits: Limits) -> None:
        """Raise RequestError if a value is wrong, unsupported or beyond the limits."""
        if self.top_logprobs and not self.logprobs:
            raise RequestError("`top_logprobs` has no effect without `logprobs`: true.", param="top_logprobs")
        for name in ("max_tokens", "max_completion_tokens"):
            if (tokens := getattr(self, name)) is not None:
                _check(name, tokens, 1, limits.new_tokens)
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise RequestError(
                "`max_tokens` and `max_completion_tokens` differ: leave one of them out.", param="max_tokens"
            )
        for name in _UNUSED_IN_CHATS:
            if name in self.chosen:
                raise RequestError(f"`{name}` has no effect in a chat: leave it out.", param=f"ralm.{name}")

    @property
    def new_tokens(self) -> int | None:
        """The maximum number of tokens of an answer; None if it is not given."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def conversation(self) -> Conversation:
        """The messages; RequestError if there is none to answer."""
        asked = [message.content for message in self.messages if message.role == "user"]
        if not asked:
            raise RequestError("`messages` needs a message with the role user.", param="messages")
        if not "".join(asked[-1]).strip():
            raise RequestError("the last message of the user is empty: give at least one word.", param="messages")
        return Conversation([message.message for message in self.messages], self.chosen.get("query"))
