"""First contact with a server: what it can do, found out with a known text, and never taken on trust.

Servers that speak OpenAI's API differ: some ignore `echo` without a word, some add a BOS, some list 5 tokens and some
20. So each way is tried on a text (`ralm.lm.api.trials`), the best first.

What was found is kept. Later processes ask for the greedy tokens alone: if they are the same, so is the model.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Final

from ralm.errors import ModelError, ServerError, UsageError
from ralm.lm.api.bare import BareTokenizer
from ralm.lm.api.capabilities import Asking, Capabilities
from ralm.lm.api.client import Client
from ralm.lm.api.endpoint import endpoint_of
from ralm.lm.api.model import ApiModel
from ralm.lm.api.options import ApiOptions
from ralm.lm.api.predictions import Prediction
from ralm.lm.api.rehearsal import rehearsed
from ralm.lm.api.servers import Server, server_of
from ralm.lm.api.store import JsonObject
from ralm.lm.api.tokenizers import ApiTokenizer, open_tokenizer
from ralm.lm.api.trials import GREEDY, Trials
from ralm.lm.api.watching import KnownText, Watch
from ralm.lm.api.ways.chat import NewChat, NewTextChat
from ralm.lm.api.ways.ollama import Ollama, OllamaText
from ralm.lm.api.ways.tgi import Tgi, TgiLikeliest

_OF_TEXT: Final = {"tgi": (Tgi.name, TgiLikeliest.name), "ollama": (Ollama.name, OllamaText.name)}
"""The ways of servers whose own ways take text and no token ids, the best first."""
_BARE: Final = ("chat", "text", "text chat", NewChat.name, NewTextChat.name, OllamaText.name)
"""The ways in which a server puts its special tokens before a prompt without a word of them."""


def load_api_model(name: str, options: ApiOptions | None = None) -> ApiModel:
    """The model behind an API that goes by a name, ready to be used; its client is the model's own.

    What was found out about it before is used again if it writes the same greedy tokens as then. Raises UsageError if
    the name or the options are wrong, ServerError if the server does not answer, and ModelError if it cannot be asked
    in any known way, or the tokenizer is that of another model.
    """
    probe = _probe(name, options)
    model = probe.kept() or probe.run()
    return rehearsed(model) if options is not None and options.dry_run else model


def probe_server(name: str, options: ApiOptions | None = None) -> ApiModel:
    """The same, with everything found out anew."""
    return _probe(name, options).run()


def _probe(name: str, options: ApiOptions | None) -> "_Probe":
    client = Client(endpoint_of(name), options)
    server = server_of(client)
    return _Probe(name, client, server, open_tokenizer(client, server))


class _Probe:
    """Finds out and remembers the best way of asking one server that works."""

    def __init__(self, name: str, client: Client, server: Server, tokenizer: ApiTokenizer) -> None:
        self._name = name
        self._client = client
        self._server = server
        self._tokenizer = tokenizer
        self._trials = Trials(name, client, tokenizer)
        self._ruled_out: list[tuple[str, ServerError]] = []
        self._length = _length(client, server)
        said = [client.endpoint.url, client.endpoint.model, tokenizer.fingerprint, str(client.options.likeliest)]
        self._key = sha256(json.dumps(["capabilities", *said, server.weights]).encode()).digest()

    def kept(self) -> ApiModel | None:
        """The model as it was found before, if it is still the same."""
        found = self._client.store.get(self._key)
        if found is None:
            return None
        with suppress(KeyError, TypeError, ValueError, ServerError):
            capabilities = Capabilities.of_json(found)
            asking, greedy = capabilities.asking, capabilities.greedy
            if not greedy or _tokens(self._trials.written(asking)) == greedy:
                return self._model(replace(capabilities, max_length=self._max_length(asking)))
        return None

    def run(self) -> ApiModel:
        """The model by the first way that works, of those that tell most."""
        for asking in self._askings():
            try:
                capabilities = self._capabilities(self._trials.settled(asking))
            except ServerError as error:
                if not (error.rejects_request or error.fails):
                    raise
                self._ruled_out.append((_described(asking), error))
                continue
            if not any(error.fails for _, error in self._ruled_out):
                self._client.store.put(self._key, capabilities.as_json())
            return self._model(capabilities)
        raise self._hopeless([error for _, error in self._ruled_out])

    def _hopeless(self, errors: Sequence[ServerError]) -> ModelError:
        """The error of a server that no way works for: its own, if it has the same trouble with all."""
        if len({error.status for error in errors}) == 1:
            return errors[0]
        reasons = "; ".join(dict.fromkeys(str(error).removesuffix(".") for error in errors))
        return ModelError(f"{self._name} cannot be asked in any known way: {reasons}.")

    def _askings(self) -> Iterator[Asking]:
        """The ways to try on a server of this kind, the best first; those of unknown servers with ids and with text."""
        if kind := self._server.kind:
            yield from (Asking(way=way, as_ids=kind not in _OF_TEXT) for way in _OF_TEXT.get(kind, (kind,)))
        by_ids = (("echo", True), ("bias", True), ("echo", False), ("completions", True))
        yield from (Asking(way=way, as_ids=as_ids) for way, as_ids in by_ids)
        for way in ("completions", "chat", "text", "text chat"):
            yield Asking(way=way, as_ids=False)
            if "chat" in way and NewChat.most_name in str(self._ruled_out[-1][1]):
                yield Asking(way=f"new {way}", as_ids=False)

    def _capabilities(self, asking: Asking) -> Capabilities:
        """What a server can do that is asked so."""
        greedy = () if "chat" in asking.way else _tokens(self._trials.written(asking))
        endpoint = self._client.endpoint
        known = [*greedy] or endpoint.url  # of a chat no text is known, and another server may use the same name
        said = [asdict(asking), endpoint.model, self._tokenizer.fingerprint, known, self._server.weights]
        return Capabilities(
            asking=asking,
            max_length=self._max_length(asking),
            greedy=greedy,
            identity=sha256(json.dumps(said).encode()).hexdigest()[:16],
            ruled_out=tuple((what, str(error)) for what, error in self._ruled_out),
        )

    def _max_length(self, asking: Asking) -> int | None:
        return None if self._length is None else self._length - self._trials.way(asking).margin

    def _model(self, capabilities: Capabilities) -> ApiModel:
        self._client.identity = capabilities.identity
        self._client.watch = self._watch(capabilities)
        tokenizer, way = self._tokenizer.tokenizer, capabilities.asking.way
        if way in _BARE:
            tokenizer = BareTokenizer(tokenizer, messages="chat" in way)
        return ApiModel(self._name, self._client, self._trials.way(capabilities.asking), tokenizer, capabilities)

    def _watch(self, found: Capabilities) -> Watch:
        """Notices that the server no longer writes the greedy tokens that were found."""
        way, text = self._trials.way(found.asking), self._trials.prompt(found.asking)

        def is_same(answer: JsonObject) -> bool:
            with suppress(ServerError):  # another model writes what cannot be read
                return _tokens(way.written(answer, GREEDY)) == found.greedy
            return False

        known = KnownText(way.writing(text, GREEDY), is_same) if found.greedy else None
        return Watch(self._client.endpoint.url, self._client.store, known, self._trials.said)


def _length(client: Client, server: Server) -> int | None:
    """The most tokens that the model reads, by what the server says and the options. Raises UsageError if the options
    say more."""
    named = client.options.context_length
    if named is not None and server.length is not None and named > server.length:
        raise UsageError(
            f"`context_length` is {named:,}, and {client.endpoint.url} says that its model reads {server.length:,} "
            "tokens: lower it or leave it out."
        )
    return named or server.length


def _tokens(predictions: Sequence[Prediction]) -> tuple[int, ...]:
    return tuple(one.token for one in predictions)


def _described(asking: Asking) -> str:
    if asking.way in ("echo", "bias", "completions"):
        return f"{asking.way} of {'token ids' if asking.as_ids else 'text'}"
    return asking.way
