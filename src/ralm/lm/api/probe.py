"""First contact with a server: tries backends on a known text, the best first, and verifies their figures.

Servers with OpenAI's API differ: some ignore `echo` silently, some add a BOS, some list 5 tokens and some 20. Tokens
that a server generates must have the same log-probabilities when it reads them in a prompt or when they are chosen, and
decode to its text; and it must read as many tokens as the text has, or one more: its BOS.

The result is stored. Later processes only compare the greedy tokens: the same ones mean the same model.
"""

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter

from ralm.errors import ModelError, ServerError, UsageError
from ralm.lm.api import tokenizers
from ralm.lm.api.answers import END, Prediction, ServerTokenNames, unexpected
from ralm.lm.api.backend import Backend, BackendConfig, Capabilities, ServerInfo
from ralm.lm.api.client import Client, answer_key
from ralm.lm.api.endpoint import ApiOptions, endpoint_of
from ralm.lm.api.http import ApiRequest, JsonObject
from ralm.lm.api.model import ApiModel
from ralm.lm.api.servers import NATIVE_BACKENDS, NEWER_CHATS, OPENAI_BACKENDS
from ralm.records import IntArray

_LOG: Final = logging.getLogger(__name__)
BACKENDS: Final[dict[str, type[Backend]]] = {
    backend.name: backend
    for backend in (*(backend for backend, _ in OPENAI_BACKENDS), *NEWER_CHATS.values(), *NATIVE_BACKENDS.values())
}
_OLLAMA: Final = "library"
"""The owner of the models of Ollama, which reads a template around a text and cuts long ones silently."""
_TEXT: Final = (
    "The history of the city begins in the 12th century: its name, Caf\u00e9-Br\u00fccke, is older. It's 3.14 km "
    "long.\n\n"
    "def area(r):\n    return 3.14 * r ** 2\n\nThe history of the city begins in the"
)
_GREEDY: Final = 16
"""Number of greedy tokens that identify a model."""
_READ_AGAIN: Final = 4
"""Of these, how many are scored in a prompt."""
_TOLERANCE: Final = 0.05
"""How far two log-probabilities of one token may differ in nats: servers compute in 16 bits."""
_TOP_COUNTS: Final = (100, 20, 5, 1)
"""Numbers of most likely tokens to try, the largest first."""


def load_api_model(name: str, options: ApiOptions | None = None) -> ApiModel:
    """Load the model behind an API with this name, which owns its client; an earlier probe that still holds is used."""
    model = _probed(name, options, again=False)
    if model.capabilities.max_length is None:
        _LOG.warning("%s does not report its length; write context_length=N, or long texts may be cut", name)
    return model


def probe_server(name: str, options: ApiOptions | None = None) -> ApiModel:
    """Load the model behind an API with this name, after a new probe."""
    return _probed(name, options, again=True)


def cache_difference(model: ApiModel) -> float | None:
    """Return how far log-probabilities move, in nats, if a prompt that is new to the server is asked for again."""
    backend, client = model.backend, model.client
    if backend.text_only:
        return None
    client.identity = ""  # so that the client does not reuse the first answer
    begin = [] if backend.config.begin is None else [backend.config.begin]

    def new_text() -> IntArray:
        return np.append(np.array(begin, dtype=np.int64), model.tokenizer.encode(f"{time.time_ns()} {_TEXT}"))

    request = backend.generation(new_text(), 1)
    [[cold, *_]], [[warm, *_]] = (client.answers([request]) for _ in range(2))
    both = [
        (float(before), warm.listed(int(token))) for token, before in zip(cold.tokens_C, cold.log_probs_C, strict=True)
    ]
    pairs = [(before, after) for before, after in both if after is not None and np.isfinite(before)]
    if backend.scores_prompts:
        text = new_text()
        request = backend.scoring(text, np.arange(1, len(text)))
        [scored_cold], [scored_warm] = (client.answers([request]) for _ in range(2))
        pairs += zip(scored_cold, scored_warm, strict=True)
    return max((abs(before - after) for before, after in pairs), default=None)


def _probed(name: str, options: ApiOptions | None, *, again: bool) -> ApiModel:
    with ExitStack() as stack:
        client = stack.enter_context(Client(endpoint_of(name), options))
        probe = _Probe(name, client, detect_server(client))
        model = (None if again else probe.stored()) or probe.run()
        stack.pop_all()
    return model


def detect_server(client: Client) -> ServerInfo:
    """Return the owner of a server's models and what it says of the named one; ServerError if it lacks that."""
    listed = _get_or_empty(client, "/models").get("data")
    models = [model for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []
    entry = next((model for model in models if model.get("id") == client.endpoint.model), {})
    owner = str((entry or (models[0] if models else {})).get("owned_by", ""))
    if owner in NATIVE_BACKENDS and not entry:
        names = ", ".join(str(model.get("id")) for model in models)
        raise ServerError(f"{client.endpoint.url} has no model {client.endpoint.model}; it has {names}.", 404)
    return ServerInfo(owner, entry)


def _get_or_empty(client: Client, path: str) -> JsonObject:
    """Return the server's answer at a path; empty if it has no such path. ServerError if it cannot be reached."""
    try:
        return client.get(path)
    except ServerError as error:
        if error.status is None or error.status in (401, 403, 429):
            raise
        return {}  # some servers fail at paths that they do not have


class _Probe:
    """A search for the best backend that works on one server, which remembers the answers that it had."""

    def __init__(self, name: str, client: Client, server: ServerInfo) -> None:
        if server.owner == _OLLAMA:
            raise UsageError(
                f"{client.endpoint.url} is Ollama, whose own API is not used any more: serve the model with "
                "llama-server of llama.cpp; `ralm serve` still passes requests on to Ollama."
            )
        self._name = name
        self._client = client
        self._server = server
        self._tokenizer = tokenizers.open_tokenizer(client, server)
        self._names = ServerTokenNames(self._tokenizer.tokenizer, self._tokenizer.size)
        self._text = self._tokenizer.tokenizer.encode(_TEXT)
        self._answers: dict[bytes, JsonObject] = {}
        self._length = _length(client, server)
        decisive = [
            "capabilities",
            client.endpoint.url,
            client.endpoint.model,
            self._tokenizer.fingerprint,
            str(client.options.top_logprobs),
            self._server.weights,
        ]
        self._key = sha256(json.dumps(decisive).encode()).digest()

    def stored(self) -> ApiModel | None:
        """Return the model as an earlier probe found it, if it still generates the same tokens."""
        record = self._client.store.get(self._key)
        with suppress(KeyError, ValueError, ServerError):
            capabilities = TypeAdapter(Capabilities).validate_python(record)
            backend = self._backend(capabilities.config)
            if not capabilities.greedy or _tokens(self._generated(backend)) == capabilities.greedy:
                return self._model(backend, replace(capabilities, max_length=self._max_length(backend)))
        return None

    def run(self) -> ApiModel:
        """Return the model with the first backend that works."""
        ruled_out: list[tuple[str, ServerError]] = []
        for config in self._configs(ruled_out):
            try:
                backend = self._complete(self._backend(config))
                greedy = _tokens(self._generated(backend)) if backend.continues_own_text else ()
            except ServerError as error:
                if not (error.rejects_request or error.fails):
                    raise
                ruled_out.append((config.describe(), error))
                continue
            capabilities = Capabilities(
                config=backend.config,
                max_length=self._max_length(backend),
                greedy=greedy,
                identity=self._identity(backend.config, greedy),
                ruled_out=tuple((what, str(error)) for what, error in ruled_out),
            )
            if not any(error.fails for _, error in ruled_out):  # a failure may be over by the next time
                self._client.store.put(self._key, asdict(capabilities))
            return self._model(backend, capabilities)
        errors = [error for _, error in ruled_out]
        if len({error.status for error in errors}) == 1:
            raise errors[0]
        reasons = "; ".join(dict.fromkeys(str(error).removesuffix(".") for error in errors))
        raise ModelError(f"{self._name} works with no known backend: {reasons}.")

    def _configs(self, ruled_out: Sequence[tuple[str, ServerError]]) -> Iterator[BackendConfig]:
        """Yield the backends to try, the best first; newer chats if the error of a chat asks for them."""
        native = [(NATIVE_BACKENDS[self._server.owner], True)] if self._server.owner in NATIVE_BACKENDS else []
        for backend, as_ids in (*native, *OPENAI_BACKENDS):
            yield BackendConfig(backend=backend.name, as_ids=as_ids)
            newer = NEWER_CHATS.get(backend)
            if newer is not None and newer.max_tokens_field in str(ruled_out[-1][1]):
                yield BackendConfig(backend=newer.name, as_ids=False)

    def _identity(self, config: BackendConfig, greedy: Sequence[int]) -> str:
        endpoint = self._client.endpoint
        # a chat continues no known text, and two servers may share a model's name
        signature = [*greedy] or endpoint.url
        decisive = [asdict(config), endpoint.model, self._tokenizer.fingerprint, signature, self._server.weights]
        return sha256(json.dumps(decisive).encode()).hexdigest()[:16]

    def _max_length(self, backend: Backend) -> int | None:
        return None if self._length is None else self._length - backend.reserved_tokens

    def _model(self, backend: Backend, capabilities: Capabilities) -> ApiModel:
        client, tokenizer = self._client, self._tokenizer.tokenizer
        client.identity = capabilities.identity
        if backend.text_only or not backend.continues_own_text:  # special tokens that the server adds are not reported
            tokenizer = tokenizers.PlainTokenizer(tokenizer, messages=not backend.continues_own_text)
        return ApiModel(self._name, client, backend, tokenizer, capabilities)

    def _backend(self, config: BackendConfig) -> Backend:
        """Return the backend that `config` describes; KeyError if none has this name."""
        return BACKENDS[config.backend](config, self._client.endpoint.model, self._names)

    def _complete(self, backend: Backend) -> Backend:
        """Return the backend with the server's BOS and length of lists; ServerError if its figures disagree."""
        if backend.text_only:
            self._generated(backend)
            return backend
        backend = self._with_top_logprobs(backend)
        if backend.continues_own_text:
            backend = self._with_bos(backend)
        text, greedy = self._prompt(backend), self._generated(backend)
        self._check_text(backend, text, greedy)
        if backend.scores_prompts:
            self._check_prompt(backend, text, greedy)
        if backend.max_chosen:
            self._check_chosen(backend, text, greedy[0])
        return backend

    def _generated(self, backend: Backend, max_tokens: int = _GREEDY) -> list[Prediction]:
        """Return the predictions of the tokens that the server generates after the known text, at least one."""
        answer = self._answer(backend.generation_request(self._prompt(backend), max_tokens))
        if predictions := backend.generated(answer, max_tokens):
            return predictions
        raise unexpected("the server generates nothing")

    def _prompt(self, backend: Backend) -> IntArray:
        """Return the known text with the BOS that the server puts before it."""
        begin = backend.config.begin
        return self._text if begin is None else np.concatenate([[begin], self._text])

    def _with_top_logprobs(self, backend: Backend) -> Backend:
        """Return the backend with as many most likely tokens as the server lists, or as the options request."""
        requested = self._client.options.top_logprobs
        counts = (requested, *(count for count in _TOP_COUNTS if count < requested)) if requested else _TOP_COUNTS
        for count in counts:
            tried = _changed(backend, top_logprobs=count)
            try:
                listed = self._generated(tried, 1)[0].tokens_C
            except ServerError as error:
                if count == counts[-1] or error.status == 200 or not (error.rejects_request or error.fails):
                    raise
                continue
            return _changed(backend, top_logprobs=min(count, len(listed)))
        raise AssertionError("the last count returns or raises")

    def _with_bos(self, backend: Backend) -> Backend:
        """Return the backend with the token that the server puts before a text; ServerError for other tokens."""
        count = backend.prompt_token_count(self._answer(backend.generation_request(self._text, 1)))
        begin = self._tokenizer.tokenizer.special_tokens.begin
        more = 0 if count is None else count - len(self._text)
        if more == 1 and begin is not None and not backend.config.as_ids:
            return _changed(backend, begin=begin)
        if more and backend.config.as_ids:
            raise unexpected(f"the server reads {count:,} tokens of {len(self._text):,}")
        if more:
            raise ModelError(
                f"{self._name} reads {count:,} tokens of a text for which the tokenizer {self._tokenizer.name} has "
                f"{len(self._text):,}: it is that of another model; name another `tokenizer`."
            )
        return backend

    def _check_text(self, backend: Backend, text: IntArray, greedy: Sequence[Prediction]) -> None:
        """Raise ModelError if the generated tokens do not decode to the server's text: the tokenizer is another one."""
        answer = self._answer(backend.generation_request(text, _GREEDY))
        tokens = np.array([prediction.token for prediction in greedy if prediction.token != END], dtype=np.int64)
        decoded = self._tokenizer.tokenizer.decode(np.concatenate([text, tokens]))
        wrote = backend.generated_text(answer).strip()
        if wrote not in decoded:
            raise ModelError(
                f"the tokenizer {self._tokenizer.name} is not that of {self._name}: the server wrote {wrote[:40]!r}, "
                f"and it decodes {decoded[-len(wrote) :][:40]!r}; name another `tokenizer`."
            )

    def _check_prompt(self, backend: Backend, text: IntArray, greedy: Sequence[Prediction]) -> None:
        """Raise ServerError if generated tokens have other log-probabilities in a prompt."""
        tokens = [prediction.token for prediction in greedy[:_READ_AGAIN] if prediction.token != END]
        while len(tokens) > 1 and not backend.keeps_tokens(np.append(text, tokens)):
            tokens.pop()
        prompt = np.concatenate([text, np.array(tokens, dtype=np.int64)])
        answer = self._answer(backend.scoring_request(prompt))
        scored = backend.scored_log_probs(answer, prompt, np.arange(len(text), len(prompt)))
        for log_prob, prediction in zip(scored, greedy[: len(tokens)], strict=True):
            _check_equal(log_prob, prediction.log_prob, "in a prompt")

    def _check_chosen(self, backend: Backend, text: IntArray, first: Prediction) -> None:
        """Raise ServerError if a chosen token has another log-probability than among the most likely ones."""
        for place in np.argsort(-first.log_probs_C)[:2]:
            token = int(first.tokens_C[place])
            [log_prob] = backend.chosen_log_probs(self._answer(backend.choice_request(text, [token])), [token])
            _check_equal(log_prob, float(first.log_probs_C[place]), "if it is chosen")

    def _answer(self, request: ApiRequest) -> JsonObject:
        """Return the answer to a request; it is not stored, since the client has no identity yet."""
        key = answer_key("", request.path, request.body)
        if key not in self._answers:
            [self._answers[key]] = self._client.answers([replace(request, retries=1)])
        return self._answers[key]


def _changed(backend: Backend, **fields: Any) -> Backend:
    return replace(backend, config=replace(backend.config, **fields))


def _check_equal(value: float, expected: float, where: str) -> None:
    if not abs(value - expected) <= _TOLERANCE + _TOLERANCE * abs(expected):
        raise unexpected(
            f"a token has a log-probability of {value:.3f} {where}, and of {expected:.3f} where the server generates it"
        )


def _length(client: Client, server: ServerInfo) -> int | None:
    """Return the maximum number of tokens that the model reads; UsageError if the options exceed the server's value."""
    option = client.options.context_length
    if option is not None and server.length is not None and option > server.length:
        raise UsageError(
            f"`context_length` is {option:,}, and {client.endpoint.url} says that its model reads {server.length:,} "
            "tokens: lower it or leave it out."
        )
    return option or server.length


def _tokens(predictions: Sequence[Prediction]) -> tuple[int, ...]:
    return tuple(prediction.token for prediction in predictions)
