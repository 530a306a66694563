"""First contact with a server: what it can do, found out with a known text, and never taken on trust.

Servers that speak OpenAI's API differ: some ignore `echo` without a word, some add a BOS, some list 5 tokens and some
20. So each way is tried on a text (`ralm.lm.api.probe`), the best first.

What was found is kept. Later processes ask for the greedy tokens alone: if they are the same, so is the model.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Final

import numpy as np

from ralm.errors import ModelError, ServerError, UsageError
from ralm.lm.api.backends import END, PromptForm, Way, odd
from ralm.lm.api.backends.llamacpp import LlamaCpp
from ralm.lm.api.backends.ollama import Ollama, OllamaText
from ralm.lm.api.backends.openai import (
    Biased,
    Chat,
    Completions,
    Echo,
    NewChat,
    NewTextChat,
    TextChat,
    TextCompletions,
    Vllm,
)
from ralm.lm.api.backends.sglang import SgLang
from ralm.lm.api.backends.tgi import Tgi, TgiLikeliest
from ralm.lm.api.capabilities import Asking, Capabilities
from ralm.lm.api.client import Client
from ralm.lm.api.endpoint import endpoint_of
from ralm.lm.api.model import ApiModel, rehearsed
from ralm.lm.api.model_change import KnownText, Origin, Watch, origin_of
from ralm.lm.api.options import ApiOptions
from ralm.lm.api.predictions import Prediction, TokensByName
from ralm.lm.api.servers import Server, server_of
from ralm.lm.api.store import answer_key
from ralm.lm.api.tokenizers import ApiTokenizer, BareTokenizer, open_tokenizer
from ralm.lm.api.transport import Asked, JsonObject
from ralm.protocols import FullTokenizer
from ralm.records import IntArray

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


_TEXT: Final = (
    "The history of the city begins in the 12th century: its name, Caf\u00e9-Br\u00fccke, is older. It's 3.14 km "
    "long.\n\n"
    "def area(r):\n    return 3.14 * r ** 2\n\nThe history of the city begins in the"
)
GREEDY: Final = 16
"""Greedy tokens that tell one model from another."""
_READ_AGAIN: Final = 4
"""Of these, the first ones are read again in a prompt."""
_APART: Final = 0.05
"""How much two readings of one token may differ in nats: servers compute in 16 bits."""
_LISTED: Final = (100, 20, 5, 1)
"""Numbers of likeliest tokens to try, the largest first."""


class Trials:
    """Asks a server in any way, and remembers what it answered. `name` is that of its model.

    `said` is where the last answer says that it comes from.
    """

    def __init__(self, name: str, client: Client, tokenizer: ApiTokenizer) -> None:
        self.said: Origin | None = None
        self._name = name
        self._client = client
        self._tokenizer = tokenizer
        self._names = TokensByName(tokenizer.tokenizer, tokenizer.size)
        self._text = tokenizer.tokenizer.encode(_TEXT)
        self._answers: dict[bytes, JsonObject] = {}

    def settled(self, asking: Asking) -> Asking:
        """How to ask in this way: for how many likeliest tokens, with which BOS, and how few tokens are written.

        Raises ServerError if it does not work, or if its figures do not agree with each other.
        """
        if "text" in asking.way:
            self.written(asking)
            return asking
        asking = self._with_likeliest(asking)
        if "chat" not in asking.way:
            asking = self._with_beginning(asking)
        way, text, greedy = self.way(asking), self.prompt(asking), self.written(asking)
        self._check_text(way, text, greedy)
        if way.reads_prompts:
            self._check_read(way, text, greedy)
        if way.chooses:
            self._check_chosen(way, text, greedy[0])
        return asking

    def way(self, asking: Asking) -> Way:
        """The way that `asking` describes."""
        return way_of(asking, self._client.endpoint.model, self._tokenizer.tokenizer, self._names)

    def written(self, asking: Asking, most: int = GREEDY) -> list[Prediction]:
        """The predictions of what the server writes behind the known text, at least one."""
        way = self.way(asking)
        found = way.written(self._answer(way.writing(self.prompt(asking), most)), most)
        if not found:
            raise odd("the server writes nothing")
        return found

    def prompt(self, asking: Asking) -> IntArray:
        """The known text as it is asked for: with the BOS that the server puts before it."""
        return self._text if asking.begin is None else np.concatenate([[asking.begin], self._text])

    def _with_likeliest(self, asking: Asking) -> Asking:
        """With as many likeliest tokens as the server lists, or as the options ask for."""
        most = self._client.options.likeliest
        counts = (most, *(count for count in _LISTED if count < most)) if most else _LISTED
        for count in counts:
            try:
                listed = self.written(replace(asking, likeliest=count), 1)[0].tokens_C
            except ServerError as error:
                if count == counts[-1] or error.status == 200 or not (error.rejects_request or error.fails):
                    raise
                continue
            return replace(asking, likeliest=min(count, len(listed)))
        raise AssertionError("the last count returns or raises")

    def _with_beginning(self, asking: Asking) -> Asking:
        """With the token that the server puts before a text. Raises ServerError if it counts other tokens."""
        way = self.way(asking)
        counted = way.counted(self._answer(way.counting(self._text)))
        begin = self._tokenizer.tokenizer.special_tokens.begin
        more = 0 if counted is None else counted - len(self._text)
        if more == 1 and begin is not None and not asking.as_ids:
            return replace(asking, begin=begin)
        if more and asking.as_ids:
            raise odd(f"the server reads {counted:,} tokens of {len(self._text):,}")
        if more:
            raise ModelError(
                f"{self._name} reads {counted:,} tokens of a text for which the tokenizer {self._tokenizer.name} has "
                f"{len(self._text):,}: it is that of another model; name another `tokenizer`."
            )
        return asking

    def _check_text(self, way: Way, text: IntArray, greedy: Sequence[Prediction]) -> None:
        """Raise ModelError if the tokens that the server wrote are not its text: the tokenizer is another one."""
        answer = self._answer(way.writing(text, GREEDY))
        tokens = np.array([one.token for one in greedy if one.token != END], dtype=np.int64)
        own = self._tokenizer.tokenizer.decode(np.concatenate([text, tokens]))
        wrote = (way.text_of(answer) or "").strip()
        if wrote not in own:
            raise ModelError(
                f"the tokenizer {self._tokenizer.name} is not that of {self._name}: the server wrote {wrote[:40]!r}, "
                f"and it decodes {own[-len(wrote) :][:40]!r}; name another `tokenizer`."
            )

    def _check_read(self, way: Way, text: IntArray, greedy: Sequence[Prediction]) -> None:
        """Raise ServerError if the tokens of a prompt have other log-probabilities than when they were written."""
        tokens = [one.token for one in greedy[:_READ_AGAIN] if one.token != END]
        while len(tokens) > 1 and not way.keeps(np.append(text, tokens)):
            tokens.pop()
        prompt = np.concatenate([text, np.array(tokens, dtype=np.int64)])
        read = way.read(self._answer(way.reading(prompt)), prompt, len(text))
        scored = way.scored(self._answer(way.scoring(prompt)), prompt, np.arange(len(text), len(prompt)))
        for one, found, other in zip(read[: len(tokens)], scored, greedy[: len(tokens)], strict=True):
            _check_equal(one.log_prob, other.log_prob, "in a prompt")
            _check_equal(found, other.log_prob, "in a prompt that is scored")

    def _check_chosen(self, way: Way, text: IntArray, written: Prediction) -> None:
        """Raise ServerError if a chosen token has another log-probability than in the list of the likeliest."""
        for place in np.argsort(-written.log_probs_C)[:2]:
            token = int(written.tokens_C[place])
            [found] = way.chosen(self._answer(way.choosing(text, [token])), [token])
            _check_equal(found, float(written.log_probs_C[place]), "if it is chosen")

    def _answer(self, asked: Asked) -> JsonObject:
        """The answer to a request, which is not kept: the model may be another one the next time."""
        key = answer_key("", asked.path, asked.body)
        if key not in self._answers:
            identity, self._client.identity = self._client.identity, ""
            try:
                [self._answers[key]] = self._client.answers([replace(asked, retries=1)])
            finally:
                self._client.identity = identity
        self.said = origin_of(self._answers[key])
        return self._answers[key]


def _check_equal(one: float, other: float, where: str) -> None:
    if not abs(one - other) <= _APART + _APART * abs(other):
        raise odd(f"a token has a log-probability of {one:.3f} {where}, and of {other:.3f} where the server writes it")


_CHATS = (Chat, TextChat, NewChat, NewTextChat)
_SPOKEN = {kind.name: kind for kind in (Completions, Echo, Biased, Vllm, TextCompletions, *_CHATS, Ollama, OllamaText)}
_TGI = {kind.name: kind for kind in (Tgi, TgiLikeliest)}


def way_of(asking: Asking, model: str, tokenizer: FullTokenizer, names: TokensByName) -> Way:
    """The way that `asking` describes, for a server's `model`. Raises KeyError if there is none of this name."""
    if asking.way == SgLang.name:
        return SgLang(likeliest=asking.likeliest)
    if asking.way == LlamaCpp.name:
        return LlamaCpp(likeliest=asking.likeliest, tokenizer=tokenizer, size=names.size)
    form = PromptForm(tokenizer=tokenizer, as_ids=asking.as_ids, begin=asking.begin)
    if asking.way in _TGI:
        return _TGI[asking.way](likeliest=asking.likeliest, form=form)
    return _SPOKEN[asking.way](likeliest=asking.likeliest, model=model, form=form, names=names)
