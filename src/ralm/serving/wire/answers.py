"""Answers of /v1/completions: events in, JSON out, whole or piece by piece.

Knows events of a completion; knows nothing of HTTP. Runs in the thread of the request, since it decodes tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from ralm.answering.citations import web_address
from ralm.reading.pieces import GeneratedText, texts_of_tokens
from ralm.records import Provenance
from ralm.serving.completion import Began, Completion, Echoed, Event, Gained, Reads
from ralm.serving.names import NamesByToken
from ralm.serving.wire.completions import Head, Usage
from ralm.serving.wire.sources import (
    Json,
    PassagesTold,
    Token,
    gain_told,
    log_prob_told,
    passage_told,
    result_told,
)
from ralm.serving.writing import Ended, Wrote


@dataclass
class _Part:
    """What an event adds to a choice: text, and tokens with the text that each adds."""

    choice: int
    text: str
    tokens: Sequence[Token] = ()
    texts: Sequence[str] = ()


@dataclass
class _Choice:
    """What is known of a choice so far; `at` is how many characters of its text are told."""

    at: int
    reason: str | None = None
    parts: list[_Part] = field(default_factory=list)
    gain: Json | None = None


class CompletionAnswer:
    """Turns the events of one request into its answer."""

    def __init__(
        self, head: Head, asked: Completion, reads: Reads, names: NamesByToken, *, logprobs: bool, as_ids: bool
    ) -> None:
        self.usage = Usage()
        self._head = head
        self._asked = asked
        self._reads = reads
        self._names = names
        self._logprobs = logprobs
        self._as_ids = as_ids
        self._texts: tuple[str, ...] = ()
        self._choices: list[_Choice] = []
        self._told = PassagesTold(reads.passages, names, as_ids=as_ids)

    def whole(self, events: Iterator[Event]) -> Json:
        """The answer."""
        for event in events:
            part = self._take(event)
            if part is not None:
                self._choices[part.choice].parts.append(part)
        choices: list[JsonValue] = [self._whole(number, one) for number, one in enumerate(self._choices)]
        return {**self._head.as_json(), "choices": choices, "usage": self.usage.as_json(), **self._sources()}

    def pieces(self, events: Iterator[Event], *, usage: bool) -> Iterator[Json]:
        """The pieces of the answer as they come, at the end the usage if it is wanted."""
        return self._head.stream(self._pieces(events), self.usage if usage else None)

    def _pieces(self, events: Iterator[Event]) -> Iterator[Json]:
        for event in events:
            part = self._take(event)
            if part is not None and (part.text or part.tokens):
                yield self._piece(part)
        for number, choice in enumerate(self._choices):
            last = number == len(self._choices) - 1
            yield {"choices": [self._choice(number, "", None, choice.reason)], **(self._sources() if last else {})}

    def _take(self, event: Event) -> _Part | None:
        """Note an event; what it adds to a choice, if anything."""
        match event:
            case Began():
                self.usage.prompt, self._texts = event.tokens, event.texts
                echo, times = self._asked.echo, self._asked.times
                self._choices = [_Choice(0 if echo else len(text)) for text in event.texts for _ in range(times)]
            case Echoed():
                text = self._texts[event.choice // self._asked.times]
                return _Part(event.choice, text, event.tokens, [token.text for token in event.tokens])
            case Wrote():
                return _Part(event.choice, event.piece.text, event.piece.tokens, _texts(event.piece))
            case Ended():
                self.usage.written += event.tokens
                self._choices[event.choice].reason = event.reason
            case Gained():
                self._choices[event.choice].gain = _gain(event)
        return None

    def _whole(self, number: int, choice: _Choice) -> Json:
        text = "".join(part.text for part in choice.parts)
        joined = _Part(
            number,
            text,
            [token for part in choice.parts for token in part.tokens],
            [text for part in choice.parts for text in part.texts],
        )
        return self._choice(number, text, joined, choice.reason)

    def _piece(self, part: _Part) -> Json:
        piece: Json = {"choices": [self._choice(part.choice, part.text, part, None)]}
        if self._reads.source is not None:
            piece["ralm"] = self._told.piece(part.choice, part.tokens)
        return piece

    def _choice(self, number: int, text: str, part: _Part | None, reason: str | None) -> Json:
        logprobs = self._listed(self._choices[number], part) if part is not None and self._logprobs else None
        return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _listed(self, choice: _Choice, part: _Part) -> Json:
        """The `logprobs` of some tokens."""
        offsets: list[JsonValue] = []
        for text in part.texts:
            offsets.append(choice.at)
            choice.at += len(text)
        return {
            "tokens": [self._name(token.token) for token in part.tokens],
            "token_logprobs": [log_prob_told(token.log_prob) for token in part.tokens],
            "top_logprobs": [self._top(token) for token in part.tokens],
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        return self._names.of(token, as_id=self._as_ids)

    def _top(self, token: Token) -> JsonValue:
        """The likeliest tokens and the token itself; null where nothing stands before it."""
        if token.log_prob is None:
            return None
        named: dict[str, JsonValue] = {}
        for number, log_prob in token.likeliest[: self._asked.likeliest]:
            named.setdefault(self._name(number), log_prob_told(log_prob))
        named.setdefault(self._name(token.token), log_prob_told(token.log_prob))
        return named

    def _sources(self) -> Json:
        """Where the text came from, if anything was put in front of it."""
        if self._reads.source is None:
            return {}
        choices: list[JsonValue] = []
        for number, choice in enumerate(self._choices):
            told: Json = {"index": number, **({"tokens": self._tokens(choice)} if choice.parts else {})}
            choices.append({**told, **(choice.gain or {})})
        passages = self._told.known.values()
        ralm: Json = {
            **self._reads.settings.config,
            "passages": [passage_told(one) for one in passages],
            "choices": choices,
        }
        return {"ralm": ralm, "search_results": [result_told(one, web_address(one)) for one in passages]}

    def _tokens(self, choice: _Choice) -> list[JsonValue]:
        return [token for part in choice.parts for token in self._told.tokens(part.tokens)]


def _gain(event: Gained) -> Json:
    return gain_told(Provenance.of_rows([(one.passages_K, one.posteriors_K) for one in event.tokens]), event.gain_T)


def _texts(piece: GeneratedText) -> list[str]:
    _, texts = texts_of_tokens([piece])
    return texts
