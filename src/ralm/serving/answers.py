"""The JSON of completions, and the JSON of passages and tokens, which chats use too.

Runs in the thread of the request, since it decodes tokens.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from secrets import token_hex
from typing import Final, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.answering.citations import web_address
from ralm.reading.pieces import GeneratedText, GeneratedToken, texts_of_tokens
from ralm.reading.provenance import TracedText, contributions, passage_as_json, token_as_json, total_gain
from ralm.records import NO_PASSAGE, DoubleArray, Passage, Passages, Provenance
from ralm.serving.completion import Began, Completion, CompletionEvent, Echoed, Ended, Gained, Wrote
from ralm.serving.indexes import ReadConfig
from ralm.serving.prompts import TokenLabels
from ralm.serving.scoring import ScoredToken

_MIN_LOG_PROB: Final = -9999.0
"""The log-probability of an impossible token in OpenAI's API; JSON has no infinity."""
ResponseJson: TypeAlias = dict[str, JsonValue]
Token: TypeAlias = ScoredToken | GeneratedToken


class PassageJson:
    """Makes the JSON of tokens with their passages; `known` holds these passages in the order of the text."""

    def __init__(self, passages: Passages, names: TokenLabels, *, as_ids: bool = False) -> None:
        self.known: dict[int, Passage] = {}
        self._passages = passages
        self._names = names
        self._as_ids = as_ids

    def tokens(self, tokens: Sequence[Token]) -> list[JsonValue]:
        """Tokens, each with its passages."""
        return [self._token(one) for one in tokens]

    def _token(self, token: Token) -> ResponseJson:
        self.note(token.passages_K.tolist())
        name, log_prob = self._names.of(token.token, as_id=self._as_ids), log_prob_json(token.log_prob)
        found = token_as_json(token.token, name, log_prob, token.passages_K, token.posteriors_K)
        if isinstance(token, ScoredToken) and token.gain is not None:
            found["gain"] = finite(token.gain)
        if isinstance(token, GeneratedToken) and not token.certified:
            found |= {"certified": False, "unlisted": finite(token.bound_width)}
        return found

    def note(self, numbers: Sequence[int]) -> None:
        """Add passages to the known ones."""
        for number in numbers:
            if number != NO_PASSAGE and number not in self.known:
                self.known[number] = self._passages[number]

    def piece(self, choice: int, tokens: Sequence[Token]) -> ResponseJson:
        """Some tokens of a choice, and the passages that no earlier piece has."""
        before = len(self.known)
        with_passages = self.tokens(tokens)
        new = [passage_json(one) for one in [*self.known.values()][before:]]
        return {"choices": [{"index": choice, "tokens": with_passages}], "passages": [*new]}


def passage_json(passage: Passage) -> ResponseJson:
    """A passage with its text and metadata."""
    return {**passage_as_json(passage), "text": passage.text}


def search_result_json(passage: Passage, url: JsonValue) -> ResponseJson:
    """A passage as a search result."""
    return {
        "title": passage.title or passage.document_id,
        "url": url,
        "date": passage.metadata.get("date"),
        "snippet": passage.text,
        "passage": passage.number,
        "document_id": passage.document_id,
    }


def gain_json(provenance: Provenance, gain_T: DoubleArray) -> ResponseJson:
    """The gain of each token, the total, and the contribution of each passage, in nats; null for unknown or infinite
    gains."""
    bounded_T = np.nan_to_num(gain_T, nan=0.0, posinf=-_MIN_LOG_PROB, neginf=_MIN_LOG_PROB)
    total = total_gain(provenance, bounded_T).as_dict()
    return {
        "gains": [*map(finite, gain_T.tolist())],
        "gain": {name: finite(one) if isinstance(one, float) else one for name, one in total.items()},
        "contributions": [asdict(one) for one in contributions(provenance, bounded_T)],
    }


def traced_gain_json(text: TracedText) -> ResponseJson:
    """The gain of a text with its passages; empty if it is unknown."""
    return {} if np.isnan(text.gain_T).all() else gain_json(text.provenance, text.gain_T)


def log_prob_json(log_prob: float | None) -> float | None:
    """A log-probability for JSON; None if the model does not return it."""
    if log_prob is None or np.isnan(log_prob):
        return None
    return max(log_prob, _MIN_LOG_PROB)


def finite(value: float | None) -> float | None:
    """The number; None if it is infinite or NaN, which JSON does not have."""
    return value if value is not None and np.isfinite(value) else None


@dataclass
class TokenUsage:
    """The number of prompt tokens and of generated tokens."""

    prompt: int = 0
    written: int = 0

    def as_json(self) -> dict[str, JsonValue]:
        """The `usage` of OpenAI's API."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.written,
            "total_tokens": self.prompt + self.written,
        }


@dataclass
class Head:
    """The first fields of every answer and of every piece of a stream."""

    model: str
    kind: str = "text_completion"
    id: str = field(default_factory=lambda: f"cmpl-{token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def as_json(self) -> dict[str, JsonValue]:
        """Its fields."""
        return {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}

    def stream(
        self, pieces: Iterator[dict[str, JsonValue]], usage: TokenUsage | None
    ) -> Iterator[dict[str, JsonValue]]:
        """The pieces, each after these fields, and the usage at the end if it is given."""
        more: dict[str, JsonValue] = {} if usage is None else {"usage": None}
        for piece in pieces:
            yield {**self.as_json(), **piece, **more}
        if usage is not None:
            yield {**self.as_json(), "choices": [], "usage": usage.as_json()}


def server_sent(value: JsonValue) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


DONE: Final = b"data: [DONE]\n\n"


@dataclass
class _Part:
    """The text and tokens that an event adds to a choice, and the text of each token."""

    choice: int
    text: str
    tokens: Sequence[Token] = ()
    texts: Sequence[str] = ()


@dataclass
class _Choice:
    """A choice so far; `at` is the number of characters before its next token."""

    at: int
    reason: str | None = None
    parts: list[_Part] = field(default_factory=list)
    gain: ResponseJson | None = None


class CompletionAnswer:
    """Makes the answer of a request from its events."""

    def __init__(
        self, head: Head, completion: Completion, reads: ReadConfig, names: TokenLabels, *, logprobs: bool, as_ids: bool
    ) -> None:
        self.usage = TokenUsage()
        self._head = head
        self._completion = completion
        self._reads = reads
        self._names = names
        self._with_logprobs = logprobs
        self._as_ids = as_ids
        self._texts: tuple[str, ...] = ()
        self._choices: list[_Choice] = []
        self._passages_json = PassageJson(reads.passages, names, as_ids=as_ids)

    def whole(self, events: Iterator[CompletionEvent]) -> ResponseJson:
        """The answer."""
        for event in events:
            part = self._take(event)
            if part is not None:
                self._choices[part.choice].parts.append(part)
        choices: list[JsonValue] = [self._whole(number, one) for number, one in enumerate(self._choices)]
        return {**self._head.as_json(), "choices": choices, "usage": self.usage.as_json(), **self._sources()}

    def pieces(self, events: Iterator[CompletionEvent], *, usage: bool) -> Iterator[ResponseJson]:
        """The pieces of the answer as they come, and the usage at the end if requested."""
        return self._head.stream(self._pieces(events), self.usage if usage else None)

    def _pieces(self, events: Iterator[CompletionEvent]) -> Iterator[ResponseJson]:
        for event in events:
            part = self._take(event)
            if part is not None and (part.text or part.tokens):
                yield self._piece(part)
        for number, choice in enumerate(self._choices):
            last = number == len(self._choices) - 1
            yield {"choices": [self._choice(number, "", None, choice.reason)], **(self._sources() if last else {})}

    def _take(self, event: CompletionEvent) -> _Part | None:
        """Process an event; returns its addition to a choice, if any."""
        match event:
            case Began():
                self.usage.prompt, self._texts = event.tokens, event.texts
                echo, times = self._completion.echo, self._completion.times
                self._choices = [_Choice(0 if echo else len(text)) for text in event.texts for _ in range(times)]
            case Echoed():
                text = self._texts[event.choice // self._completion.times]
                return _Part(event.choice, text, event.tokens, [token.text for token in event.tokens])
            case Wrote():
                return _Part(event.choice, event.piece.text, event.piece.tokens, _texts(event.piece))
            case Ended():
                self.usage.written += event.tokens
                self._choices[event.choice].reason = event.reason
            case Gained():
                self._choices[event.choice].gain = _gain(event)
        return None

    def _whole(self, number: int, choice: _Choice) -> ResponseJson:
        text = "".join(part.text for part in choice.parts)
        joined = _Part(
            number,
            text,
            [token for part in choice.parts for token in part.tokens],
            [text for part in choice.parts for text in part.texts],
        )
        return self._choice(number, text, joined, choice.reason)

    def _piece(self, part: _Part) -> ResponseJson:
        piece: ResponseJson = {"choices": [self._choice(part.choice, part.text, part, None)]}
        if self._reads.source is not None:
            piece["ralm"] = self._passages_json.piece(part.choice, part.tokens)
        return piece

    def _choice(self, number: int, text: str, part: _Part | None, reason: str | None) -> ResponseJson:
        logprobs = (
            self._logprobs_json(self._choices[number], part) if part is not None and self._with_logprobs else None
        )
        return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs_json(self, choice: _Choice, part: _Part) -> ResponseJson:
        """The `logprobs` of some tokens."""
        offsets: list[JsonValue] = []
        for text in part.texts:
            offsets.append(choice.at)
            choice.at += len(text)
        return {
            "tokens": [self._name(token.token) for token in part.tokens],
            "token_logprobs": [log_prob_json(token.log_prob) for token in part.tokens],
            "top_logprobs": [self._top(token) for token in part.tokens],
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        return self._names.of(token, as_id=self._as_ids)

    def _top(self, token: Token) -> JsonValue:
        """The top log-probabilities and that of the token itself; null without a token before it."""
        if token.log_prob is None:
            return None
        named: dict[str, JsonValue] = {}
        for number, log_prob in token.top_logprobs[: self._completion.top_logprobs]:
            named.setdefault(self._name(number), log_prob_json(log_prob))
        named.setdefault(self._name(token.token), log_prob_json(token.log_prob))
        return named

    def _sources(self) -> ResponseJson:
        """The sources of the text; empty without an index."""
        if self._reads.source is None:
            return {}
        choices: list[JsonValue] = []
        for number, choice in enumerate(self._choices):
            tokens: ResponseJson = {"tokens": self._tokens(choice)} if choice.parts else {}
            choices.append({"index": number, **tokens, **(choice.gain or {})})
        passages = self._passages_json.known.values()
        ralm: ResponseJson = {
            **self._reads.settings.config,
            "passages": [passage_json(one) for one in passages],
            "choices": choices,
        }
        return {"ralm": ralm, "search_results": [search_result_json(one, web_address(one)) for one in passages]}

    def _tokens(self, choice: _Choice) -> list[JsonValue]:
        return [token for part in choice.parts for token in self._passages_json.tokens(part.tokens)]


def _gain(event: Gained) -> ResponseJson:
    return gain_json(Provenance.of_rows([(one.passages_K, one.posteriors_K) for one in event.tokens]), event.gain_T)


def _texts(piece: GeneratedText) -> list[str]:
    _, texts = texts_of_tokens([piece])
    return texts
