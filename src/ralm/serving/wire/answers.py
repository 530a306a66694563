"""Answers of /v1/completions: events in, JSON out, whole or piece by piece.

Knows events of a completion; knows nothing of HTTP. Runs in the thread of the request, since it decodes tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.evaluation.traces import identified, token_as_json, total_as_json
from ralm.reading.pieces import GeneratedText, GeneratedToken, texts_of_tokens
from ralm.reading.provenance import total_gain
from ralm.records import NO_PASSAGE, DoubleArray, Passage, Provenance
from ralm.serving.completion import Began, Completion, Echoed, Event, Gained, Reads
from ralm.serving.names import TokenNames
from ralm.serving.scoring import Likeliest, ScoredToken
from ralm.serving.wire.completions import Head, Usage
from ralm.serving.writing import Ended, Wrote

LEAST: Final = -9999.0
"""What OpenAI's API gives for the log-probability of an impossible token; JSON has no infinity."""
Json: TypeAlias = dict[str, JsonValue]
_Token: TypeAlias = ScoredToken | GeneratedToken


@dataclass
class _Part:
    """What an event adds to a choice: text, and tokens with the text that each adds."""

    choice: int
    text: str
    tokens: Sequence[_Token] = ()
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
        self, head: Head, asked: Completion, reads: Reads, names: TokenNames, *, logprobs: bool, as_ids: bool
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
        self._passages: dict[int, Passage] = {}

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
        more: Json = {"usage": None} if usage else {}
        for event in events:
            part = self._take(event)
            if part is not None and (part.text or part.tokens):
                yield {**self._head.as_json(), **self._piece(part), **more}
        for number, choice in enumerate(self._choices):
            last = number == len(self._choices) - 1
            ended = self._choice(number, "", None, choice.reason)
            yield {**self._head.as_json(), "choices": [ended], **(self._sources() if last else {}), **more}
        if usage:
            yield {**self._head.as_json(), "choices": [], "usage": self.usage.as_json()}

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
                self._choices[event.choice].gain = self._gain(event)
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
            known = set(self._passages)
            tokens = self._sourced(part)
            new = [_passage(one) for number, one in self._passages.items() if number not in known]
            piece["ralm"] = {"choices": [{"index": part.choice, "tokens": tokens}], "passages": [*new]}
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
            "token_logprobs": [_log_prob(token.log_prob) for token in part.tokens],
            "top_logprobs": [self._top(token) for token in part.tokens],
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        return self._names.of(token, as_id=self._as_ids)

    def _top(self, token: _Token) -> JsonValue:
        """The likeliest tokens and the token itself; null where nothing stands before it."""
        if token.log_prob is None:
            return None
        listed: Likeliest = getattr(token, "likeliest", ())
        named: dict[str, JsonValue] = {}
        for number, log_prob in listed[: self._asked.likeliest]:
            named.setdefault(self._name(number), _log_prob(log_prob))
        named.setdefault(self._name(token.token), _log_prob(token.log_prob))
        return named

    def _sources(self) -> Json:
        """Where the text came from, if anything was put in front of it."""
        if self._reads.source is None:
            return {}
        choices: list[JsonValue] = []
        for number, choice in enumerate(self._choices):
            tokens = [token for part in choice.parts for token in self._sourced(part)]
            told: Json = {"index": number, **({"tokens": [*tokens]} if choice.parts else {})}
            choices.append({**told, **(choice.gain or {})})
        passages: list[JsonValue] = [_passage(one) for one in self._passages.values()]
        ralm: Json = {**self._reads.settings.config, "passages": passages, "choices": choices}
        return {"ralm": ralm, "search_results": [_result(one) for one in self._passages.values()]}

    def _sourced(self, part: _Part) -> list[JsonValue]:
        """Tokens with their passages, which are noted."""
        told: list[JsonValue] = []
        for token in part.tokens:
            for number in token.passages_K.tolist():
                if number != NO_PASSAGE and number not in self._passages:
                    self._passages[number] = self._reads.passages[number]
            shown = token_as_json(
                token.token,
                self._name(token.token),
                _log_prob(token.log_prob),
                token.passages_K,
                token.posteriors_K,
            )
            if isinstance(token, ScoredToken) and token.gain is not None:
                shown["gain"] = _finite(token.gain)
            if isinstance(token, GeneratedToken) and not token.certified:
                shown |= {"certified": False, "unlisted": _finite(token.unlisted)}
            told.append(shown)
        return told

    def _gain(self, event: Gained) -> Json:
        provenance = Provenance.of_rows([(one.passages_K, one.posteriors_K) for one in event.tokens])
        gains: list[JsonValue] = [*map(_finite, event.gain_T.tolist())]
        return {"gains": gains, "gain": _finite_values(total_as_json(total_gain(provenance, _bounded(event.gain_T))))}


def _texts(piece: GeneratedText) -> list[str]:
    _, texts = texts_of_tokens([piece])
    return texts


def _log_prob(log_prob: float | None) -> float | None:
    """A log-probability as JSON can hold it; None where the model does not tell it."""
    if log_prob is None or np.isnan(log_prob):
        return None
    return max(log_prob, LEAST)


def _finite(gain: float) -> float | None:
    return float(gain) if np.isfinite(gain) else None


def _bounded(gain_T: DoubleArray) -> DoubleArray:
    return np.nan_to_num(gain_T, nan=0.0, posinf=-LEAST, neginf=LEAST)


def _finite_values(value: Json) -> Json:
    return {name: None if isinstance(one, float) and not np.isfinite(one) else one for name, one in value.items()}


def _passage(passage: Passage) -> Json:
    return {**identified(passage), "text": passage.text}


def _result(passage: Passage) -> Json:
    """A passage as answers of search engines have it."""
    metadata = passage.metadata
    return {
        "title": passage.title or passage.document_id,
        "url": metadata.get("url"),
        "date": metadata.get("date"),
        "snippet": passage.text,
        "passage": passage.number,
        "document_id": passage.document_id,
    }
