"""Models behind a scripted server, opened as a user would: by the server's URL, with a probe."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from ralm import FromRetriever, GenerationOptions, generate
from ralm.lm.api import tokenizers
from ralm.lm.api.answers import ServerTokenNames
from ralm.lm.api.backend import Backend, BackendConfig, Capabilities
from ralm.lm.api.client import Client
from ralm.lm.api.endpoint import ApiOptions, Endpoint
from ralm.lm.api.model import ApiModel
from ralm.lm.api.probe import BACKENDS, load_api_model
from ralm.lm.api.tokenizers import ApiTokenizer
from ralm.lm.registry import load_local_model
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import WritingModel
from ralm.reading.parts import Parts
from ralm.reading.pieces import GeneratedToken
from tests.api.backings import Backing, CharacterTokenizer, OfModel, OfTable
from tests.api.dialects import VLLM, Call, Dialect, Handler, LlamaCpp, OpenAI, error
from tests.api.scripted_server import ScriptedServer
from tests.api.writing import Json, RefusedError
from tests.fakes import SharedWordsRetriever, passages_of

VOCABULARY = 192
"""Characters of a table that knows the probe's text."""
EXACT: dict[str, Dialect] = {"echo": OpenAI(), "vllm": VLLM(), "llama.cpp": LlamaCpp()}
"""Servers that tell log-probabilities of given texts, by the way of asking them."""


@cache
def tiny() -> Any:
    """The built-in model in this process."""
    return load_local_model("ralm-tiny")


@cache
def behind() -> Backing:
    """The same for a server."""
    return OfModel(tiny())


@dataclass(frozen=True, kw_only=True)
class ChatsOnly(OpenAI):
    """A hosted model that answers messages alone."""

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        routes = super().routes()
        return {route: routes[route] for route in routes if route[1] != "/v1/completions"}


@dataclass(frozen=True, kw_only=True)
class NewChatsOnly(ChatsOnly):
    """One of OpenAI's newer models: other words for some fields; it may tell no log-probabilities, or write no greedy
    text."""

    tells: bool = True
    greedy: bool = True

    def check_chat(self, call: Call) -> None:
        super().check_chat(call)
        for name, refused in (("logprobs", not self.tells), ("temperature", not self.greedy), ("max_tokens", True)):
            if refused and name in call.body:
                text = f"Unsupported parameter: '{name}' is not supported with this model."
                more = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
                raise RefusedError(400, error(text + more, "invalid_request_error", name))


@dataclass(frozen=True, kw_only=True)
class TextsOnly(OpenAI):
    """A server that echoes prompts, and takes none as token ids."""

    def prompts(self, call: Call) -> list[list[int]]:
        if not isinstance(call.body.get("prompt"), str):
            raise RefusedError(400, error("The prompt must be a text.", "invalid_request_error", "prompt"))
        return super().prompts(call)


@dataclass(frozen=True, kw_only=True)
class Ollama(OpenAI):
    """Ollama, which the owner of its models gives away."""

    def model_card(self, call: Call) -> Json:
        return {**super().model_card(call), "owned_by": "library"}


def opened(
    server: ScriptedServer,
    *,
    load: Callable[[str, ApiOptions], ApiModel] = load_api_model,
    model: str | None = None,
    **options: Any,
) -> ApiModel:
    """The model of a server; a table's tokenizer cannot be named, so it is given here."""
    name = f"{server.url}#{model or server.model}"
    tokenizer = server.backing.tokenizer
    if not isinstance(tokenizer, CharacterTokenizer):
        return load(name, ApiOptions(**{"tokenizer": "ralm-tiny", **options}))
    given = ApiTokenizer(full_tokenizer(tokenizer), "characters", len(tokenizer.spellings), tokenizer.fingerprint)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizers, "open_tokenizer", lambda *_: given)
        return load(name, ApiOptions(**options))


@contextmanager
def served(
    backing: Backing, dialect: Dialect, *, options: dict[str, Any] | None = None, **server: Any
) -> Iterator[tuple[ScriptedServer, ApiModel]]:
    """A server in front of a model, and the model as it is seen through it."""
    with ScriptedServer(backing, dialect, **server) as scripted:
        model = opened(scripted, **(options or {}))
        try:
            yield scripted, model
        finally:
            model.client.close()


PASSAGES = passages_of(
    "The city was built on a river by the sea",
    "A list type is a mutable sequence of the language",
    "The river floods the city in the spring",
    "Sequences such as a list or a tuple have a length",
    "The sea is cold in the spring",
)
SOURCE = FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})


def tokens_of(
    model: WritingModel, prompt: str, parts: Parts, source: FromRetriever = SOURCE, **options: Any
) -> list[GeneratedToken]:
    """The tokens that a model generates, from passages of a source."""
    chosen = GenerationOptions(**{"new_tokens": 12, "document_tokens": 16, **options})
    return [token for piece in generate(prompt, model, chosen, source, parts) for token in piece.tokens]


def check_tokens(found: Sequence[GeneratedToken], expected: Sequence[GeneratedToken], atol: float = 1e-5) -> None:
    """Tokens, figures and passages are equal, and exact."""
    assert [one.token for one in found] == [one.token for one in expected]
    np.testing.assert_allclose([one.log_prob for one in found], [one.log_prob for one in expected], atol=atol)
    for one, other in zip(found, expected, strict=True):
        assert abs(one.bound_width) < 1e-5
        np.testing.assert_array_equal(one.passages_K, other.passages_K)
        np.testing.assert_allclose(one.posteriors_K, other.posteriors_K, atol=atol)


def check_sentence(error: Exception, longest: int = 700) -> None:
    """One or two sentences without a traceback, which tell the user what was wrong."""
    said = str(error)
    assert said.endswith("."), said
    assert "Traceback" not in said
    assert "\n" not in said
    assert ". ." not in said
    assert ".." not in said.replace("...", ""), said
    assert len(said) < longest, said


def backend_named(name: str, backing: OfTable, likeliest: int, *, as_ids: bool = True) -> Backend:
    """The backend for the server of a table, as the probe would make it."""
    config = BackendConfig(backend=name, top_logprobs=likeliest, as_ids=as_ids)
    return BACKENDS[name](config, "scripted", ServerTokenNames(backing.tokenizer, backing.vocabulary))


def unprobed(
    server: ScriptedServer, backing: OfTable, name: str, likeliest: int = 5, *, as_ids: bool = True
) -> ApiModel:
    """The same as if it were probed, in no time; no answer is kept."""
    backend = backend_named(name, backing, likeliest, as_ids=as_ids)
    length = backing.max_length - backend.reserved_tokens
    capabilities = Capabilities(config=backend.config, max_length=length, greedy=(), identity="")
    client = Client(Endpoint(server.url, server.model))
    return ApiModel(f"{server.url}#{server.model}", client, backend, full_tokenizer(backing.tokenizer), capabilities)
