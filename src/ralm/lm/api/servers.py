"""What a server says of itself: which kind it is, and how long a text its model reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ralm.errors import ServerError
from ralm.lm.api.client import Client
from ralm.lm.api.transport import JsonObject

_ANY_OF_TGI: Final = "tgi"
"""What TGI's users call the one model that it has."""
_TELLING: Final = ("root", "model_path", "weight_version", "model_id", "model_sha", "model_dtype", "digest")
"""What servers say of the weights that they have loaded; vLLM, SGLang, TGI, and Ollama."""
_TELLING_IN_META: Final = ("n_params", "size")
"""The same of llama.cpp, in `meta`: other quantisations have another size."""


@dataclass(frozen=True, slots=True)
class Server:
    """What a server says of itself: the kind that it is (or ""), and what it says of the model."""

    kind: str
    says: JsonObject

    @property
    def length(self) -> int | None:
        """The most tokens that the model reads, if it is said under one of the names in use."""
        named = [self.says.get(name) for name in ("max_model_len", "context_length", "n_ctx", "context_window")]
        found = [*named, self._meta.get("n_ctx")]
        return next((length for length in found if isinstance(length, int) and length > 0), None)

    @property
    def weights(self) -> JsonObject:
        """What it says that tells the weights of the model from others by the same name."""
        said = {name: self.says.get(name) for name in _TELLING}
        in_meta = {name: self._meta.get(name) for name in _TELLING_IN_META}
        return {name: value for name, value in {**said, **in_meta}.items() if value is not None}

    @property
    def _meta(self) -> JsonObject:
        meta = self.says.get("meta")
        return meta if isinstance(meta, dict) else {}


def server_of(client: Client) -> Server:
    """The kind of a server, by what it lists and by endpoints that only one kind has.

    Raises ServerError if it cannot be reached or refuses the key.
    """
    listed = _got(client, "/models").get("data")
    models = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    own = next((one for one in models if one.get("id") == client.endpoint.model), {})
    owner = str((own or (models[0] if models else {})).get("owned_by", ""))
    if owner == "vllm":
        return Server("vllm", own)
    if owner == "llamacpp":
        if not own:
            raise _another_model(client, [str(one.get("id")) for one in models])
        return Server("llama.cpp", own)
    found = _by_own_endpoint(client, own) if client.endpoint.is_url else None
    return found or Server("", own)


def _by_own_endpoint(client: Client, own: JsonObject) -> Server | None:
    """A server that has an endpoint which no other kind has; `own` is what it lists of the model."""
    if "model_path" in (told := _got(client, "//get_model_info")):
        length = own.get("max_model_len")
        return Server("sglang", {**told, **({} if length is None else {"max_model_len": length})})
    if "max_total_tokens" in (told := _got(client, "//info")):
        return _tgi(client, told)
    if "version" in _got(client, "//api/version"):
        return Server("ollama", _loaded_by_ollama(client))
    return None


def _tgi(client: Client, told: JsonObject) -> Server:
    served, total, prompt = (told.get(name) for name in ("model_id", "max_total_tokens", "max_input_tokens"))
    if client.endpoint.model not in (served, _ANY_OF_TGI):
        raise _another_model(client, [str(served)])
    lengths = [total, prompt + 1 if isinstance(prompt, int) else None]
    return Server("tgi", {**told, "max_model_len": min((one for one in lengths if isinstance(one, int)), default=None)})


def _loaded_by_ollama(client: Client) -> JsonObject:
    """What Ollama says of the model once it is loaded: as how long a context it has memory for."""
    model = client.endpoint.model
    client.post("//api/generate", {"model": model, "stream": False})
    running = _got(client, "//api/ps").get("models")
    models = [one for one in running if isinstance(one, dict)] if isinstance(running, list) else []
    return next((one for one in models if one.get("name") in (model, f"{model}:latest")), {})


def _another_model(client: Client, served: Sequence[str]) -> ServerError:
    names = ", ".join(served)
    return ServerError(f"{client.endpoint.url} has no model {client.endpoint.model}; it has {names}.", 404)


def _got(client: Client, path: str) -> JsonObject:
    """What a server says at a path; nothing if it has no such path."""
    try:
        return client.get(path)
    except ServerError as error:
        if error.status is None or error.status in (401, 403, 429):
            raise
        return {}  # some fail at what they do not have
