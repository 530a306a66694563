"""Requests of /v1/chat/completions."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, JsonValue

from ralm.answering.conversation import Conversation
from ralm.records import Message
from ralm.serving.chat import Chat
from ralm.serving.errors import RequestError
from ralm.serving.options import Limits
from ralm.serving.wire.completions import sampling_of
from ralm.serving.wire.fields import Body, Chosen, StreamOptions, check_stream, chosen, count, refuse_idle

_IDLE: Final[Mapping[str, tuple[Any, ...]]] = {
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
_IDLE_IN_MESSAGES: Final[Mapping[str, tuple[Any, ...]]] = {
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


def chat_of(body: ChatRequest, limits: Limits) -> Chat:
    """What a request asks for.

    Raises RequestError if a value is wrong, beyond the limits, or asks for something that there is not.
    """
    refuse_idle(body, _IDLE)
    check_stream(body)
    likeliest = count("top_logprobs", body.top_logprobs, 0, limits.likeliest, default=0)
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("`top_logprobs` goes with `logprobs`: true.", param="top_logprobs")
    choice = body.chosen
    return Chat(
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
    refuse_idle(given, _IDLE_IN_MESSAGES, f"{where}.")
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
