"""The kinds of servers, how to detect them, and the record of what a server can do.

To support another server API, add its `ServerKind` to `_KINDS`.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from pydantic import JsonValue

from ralm.lm.api.backends import Backend, ModelList, PromptFormat, get_or_empty
from ralm.lm.api.backends.llamacpp import LLAMA_CPP
from ralm.lm.api.backends.ollama import OLLAMA
from ralm.lm.api.backends.openai import (
    BiasedCompletions,
    ChatCompletions,
    Completions,
    EchoCompletions,
    NewChatCompletions,
    NewTextChatCompletions,
    TextChatCompletions,
    TextCompletions,
)
from ralm.lm.api.backends.sglang import SGLANG
from ralm.lm.api.backends.tgi import TGI
from ralm.lm.api.backends.vllm import VLLM
from ralm.lm.api.client import Client
from ralm.lm.api.predictions import ServerTokenNames
from ralm.lm.api.transport import JsonObject
from ralm.protocols import FullTokenizer

_KINDS: Final = (VLLM, LLAMA_CPP, SGLANG, TGI, OLLAMA)
_OPENAI: Final[tuple[type[Backend], ...]] = (
    Completions,
    EchoCompletions,
    BiasedCompletions,
    TextCompletions,
    ChatCompletions,
    TextChatCompletions,
    NewChatCompletions,
    NewTextChatCompletions,
)
_BACKENDS: Final[dict[str, type[Backend]]] = {
    backend.name: backend for backends in (_OPENAI, *(kind.backends for kind in _KINDS)) for backend in backends
}
_NEWER: Final = {ChatCompletions: NewChatCompletions, TextChatCompletions: NewTextChatCompletions}
_LENGTHS: Final = ("max_model_len", "context_length", "n_ctx", "context_window")
"""Names under which servers report the maximum number of tokens."""
_WEIGHTS: Final = ("root", "model_path", "weight_version", "model_id", "model_sha", "model_dtype", "digest")
"""Fields of vLLM, SGLang, TGI and Ollama that identify the loaded weights."""
_WEIGHTS_IN_META: Final = ("n_params", "size")
"""The same for llama.cpp, in `meta`; another quantisation has another size."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's kind ("" if unknown) and the fields that it returns about the model."""

    kind: str
    fields: JsonObject

    @property
    def length(self) -> int | None:
        """The maximum number of tokens that the model reads, if the server reports it."""
        found = [*(self.fields.get(name) for name in _LENGTHS), self.meta.get("n_ctx")]
        return next((length for length in found if isinstance(length, int) and length > 0), None)

    @property
    def weights(self) -> JsonObject:
        """The fields that distinguish the loaded weights from others by the same name."""
        fields = {name: self.fields.get(name) for name in _WEIGHTS}
        in_meta = {name: self.meta.get(name) for name in _WEIGHTS_IN_META}
        return {name: value for name, value in {**fields, **in_meta}.items() if value is not None}

    @property
    def meta(self) -> JsonObject:
        """The object `meta` among the fields, which llama.cpp has."""
        meta = self.fields.get("meta")
        return meta if isinstance(meta, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """How a server is asked: by the backend of this name, for the `top_logprobs` most likely tokens (0: text only).

    With `as_ids`, prompts are token ids, not text. `begin` is the token that the server puts before a text.
    """

    backend: str
    top_logprobs: int = 0
    as_ids: bool = True
    begin: int | None = None

    @property
    def kind(self) -> type[Backend]:
        """The class of the backend."""
        return _BACKENDS[self.backend]

    def describe(self) -> str:
        """The backend in words, as `ralm probe` prints it."""
        if self.kind in (EchoCompletions, BiasedCompletions, Completions):
            return f"{self.backend} of {'token ids' if self.as_ids else 'text'}"
        return self.backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a server can do with the best backend that works.

    `max_length` is the maximum number of tokens that the model reads, None if the server does not report it. `greedy`
    are the tokens that it generates after the probe's text; they distinguish models. `identity` is a hash of all that
    answers depend on. `ruled_out` are better backends that do not work, with the reasons.
    """

    config: BackendConfig
    max_length: int | None
    greedy: tuple[int, ...]
    identity: str
    ruled_out: tuple[tuple[str, str], ...] = ()

    @property
    def tier(self) -> str:
        """What is exact, in words."""
        kind = self.config.kind
        exact = kind.scores_prompts or kind.max_chosen > 0
        return _TIERS[0 if exact else 1 if self.config.top_logprobs else 2]

    def as_json(self) -> dict[str, JsonValue]:
        """The fields as JSON."""
        return asdict(self)

    @classmethod
    def of_json(cls, stored: Any) -> Self:
        """The capabilities in stored JSON. Raises KeyError, TypeError or ValueError if it has another format."""
        config = BackendConfig(**stored["config"])
        _ = config.kind
        return cls(
            config=config,
            max_length=stored["max_length"],
            greedy=tuple(int(token) for token in stored["greedy"]),
            identity=str(stored["identity"]),
            ruled_out=tuple((str(backend), str(reason)) for backend, reason in stored["ruled_out"]),
        )


_TIERS: Final = (
    "1: log-probabilities of given texts (scoring, reranking, ensembles and signals are exact)",
    "2: the most likely next tokens (greedy answers and ensembles with certified tokens; scores as bounds)",
    "3: text alone (generation with passages in one context; answers that add up over passages)",
)


def build_backend(config: BackendConfig, model: str, tokenizer: FullTokenizer, names: ServerTokenNames) -> Backend:
    """The backend that `config` describes, for a server's `model`. Raises KeyError if none has this name."""
    prompts = PromptFormat(tokenizer=tokenizer, as_ids=config.as_ids, begin=config.begin)
    return config.kind(top_logprobs=config.top_logprobs, model=model, prompts=prompts, names=names)


def configs_to_try(kind: str) -> Iterator[BackendConfig]:
    """The backends to try on a server of this kind, the best first, without the newer chats (see `newer_chat`)."""
    for backend in next((one.backends for one in _KINDS if one.name == kind), ()):
        yield BackendConfig(backend=backend.name, as_ids=not backend.takes_text)
    by_ids = ((EchoCompletions, True), (BiasedCompletions, True), (EchoCompletions, False), (Completions, True))
    by_text = ((one, False) for one in (Completions, ChatCompletions, TextCompletions, TextChatCompletions))
    for backend, as_ids in (*by_ids, *by_text):
        yield BackendConfig(backend=backend.name, as_ids=as_ids)


def newer_chat(config: BackendConfig, problem: str) -> BackendConfig | None:
    """The chat to try next if an error asks for the field that newer models have instead of `max_tokens`; else None."""
    newer = next((newer for older, newer in _NEWER.items() if config.kind is older), None)
    if newer is None or newer.max_tokens_field not in problem:
        return None
    return BackendConfig(backend=newer.name, as_ids=False)


def detect_server(client: Client) -> ServerInfo:
    """The kind of a server, by the owner of its models and by endpoints that only one kind has.

    Raises ServerError if it cannot be reached, rejects the key, or has other models.
    """
    listed = _model_list(client)
    for kind in _KINDS:
        may_be = listed.owner == kind.owner if kind.owner else client.endpoint.is_url
        if may_be and (fields := kind.find(client, listed)) is not None:
            return ServerInfo(kind.name, fields)
    return ServerInfo("", listed.entry)


def _model_list(client: Client) -> ModelList:
    listed = get_or_empty(client, "/models").get("data")
    models = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    entry = next((one for one in models if one.get("id") == client.endpoint.model), {})
    owner = str((entry or (models[0] if models else {})).get("owned_by", ""))
    return ModelList(entry, tuple(str(one.get("id")) for one in models), owner)
