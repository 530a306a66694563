"""The kinds of servers, how to detect them, and the record of what a server can do.

To support another server API, add its `ServerKind` to `_KINDS`.
"""

from dataclasses import dataclass
from typing import Final

from ralm.errors import ServerError
from ralm.lm.api.backends import Backend, BackendConfig, ServerKind, get_or_empty
from ralm.lm.api.backends.llamacpp import LLAMA_CPP
from ralm.lm.api.backends.openai import NEWER_CHATS, OPENAI_BACKENDS
from ralm.lm.api.backends.sglang import SGLANG
from ralm.lm.api.backends.vllm import VLLM
from ralm.lm.api.client import Client
from ralm.lm.api.transport import JsonObject

_KINDS: Final = (VLLM, LLAMA_CPP, SGLANG)
BACKENDS: Final[dict[str, type[Backend]]] = {
    backend.name: backend
    for backend in (
        *(backend for backend, _ in OPENAI_BACKENDS),
        *NEWER_CHATS.values(),
        *(backend for kind in _KINDS for backend in kind.backends),
    )
}
_OLLAMA: Final = "library"
"""The owner of the models of Ollama, which reads a template around a text and cuts long ones silently."""
_LENGTHS: Final = ("max_model_len", "context_length", "n_ctx", "context_window")
"""Names under which servers report the maximum number of tokens."""
_WEIGHTS: Final = ("root", "model_path", "weight_version")
"""Fields of vLLM and SGLang that identify the loaded weights."""
_WEIGHTS_IN_META: Final = ("n_params", "size")
"""The same for llama.cpp, in `meta`; another quantisation has another size."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's kind (None: unknown) and its fields about the model; Ollama is only passed requests on."""

    kind: ServerKind | None
    fields: JsonObject
    is_ollama: bool = False

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


def detect_server(client: Client) -> ServerInfo:
    """The kind of a server, by the owner of its models or by an endpoint that only one kind has. Raises ServerError."""
    listed = get_or_empty(client, "/models").get("data")
    models = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    entry = next((one for one in models if one.get("id") == client.endpoint.model), {})
    owner = str((entry or (models[0] if models else {})).get("owned_by", ""))
    for kind in _KINDS:
        if kind.owner == owner:
            if not entry:
                names = ", ".join(str(one.get("id")) for one in models)
                raise ServerError(f"{client.endpoint.url} has no model {client.endpoint.model}; it has {names}.", 404)
            return ServerInfo(kind, entry)
        if kind.own_path and client.endpoint.is_url and "model_path" in (fields := get_or_empty(client, kind.own_path)):
            lengths: JsonObject = {name: entry[name] for name in _LENGTHS if name in entry}
            return ServerInfo(kind, {**fields, **lengths})
    return ServerInfo(None, entry, is_ollama=owner == _OLLAMA)
