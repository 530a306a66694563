"""What completions and chats share: the events of a request, and the JSON of the response that they become.

Runs in the thread of the request, since it decodes tokens.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from secrets import token_hex
from typing import Final, Literal, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.answering.answerer import SourcedAnswer
from ralm.reading.pieces import GeneratedText, GeneratedToken, texts_of_tokens
from ralm.reading.provenance import contributions, passage_as_json, token_as_json, total_gain
from ralm.records import NO_PASSAGE, DoubleArray, Passage, Provenance
from ralm.serving.audit import AuditEntry
from ralm.serving.indexes import ReadConfig
from ralm.serving.prompts import ScoredToken, TokenLabels
from ralm.serving.text_sources import web_address

_MIN_LOG_PROB: Final = -9999.0
"""The log-probability of an impossible token in OpenAI's API; JSON has no infinity."""
ResponseJson: TypeAlias = dict[str, JsonValue]
Token: TypeAlias = ScoredToken | GeneratedToken


@dataclass(frozen=True, slots=True)
class Began:
    """The prompts are read: the number of their tokens, and for each choice the number of characters before the first
    token that is listed; the passages of a chat, in the order of its prompts."""

    offsets: Sequence[int]
    tokens: int
    passages: Sequence[int] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Echoed:
    """A prompt and its tokens, for one choice."""

    choice: int
    text: str
    tokens: Sequence[ScoredToken]


@dataclass(frozen=True, slots=True, eq=False)
class Wrote:
    """A piece of generated text; `choice` numbers all texts of the request."""

    choice: int
    piece: GeneratedText


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """The end of a text of `tokens` tokens; with the gain of each in nats (`gain_T`, float64) if requested, or the
    contributions of passages to the `answer` of a chat."""

    choice: int
    reason: Literal["stop", "length"]
    tokens: int
    gain_T: DoubleArray | None = None
    answer: SourcedAnswer | None = None


Event: TypeAlias = Began | Echoed | Wrote | Ended


@dataclass
class ResponseChoice:
    """A choice so far, or what an event adds to one: text, and tokens with the text of each. `listed` is the number of
    characters before the next token that is listed, `end` the last event."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    listed: int = 0
    end: Ended | None = None

    @property
    def reason(self) -> str | None:
        """Why the text ended."""
        return None if self.end is None else self.end.reason


class ServedAnswer(ABC):
    """Makes the response to a request from its events; `prompt_tokens` and `written_tokens` are counted meanwhile."""

    kind: str
    piece_kind: str
    id_prefix: str
    unused_config: tuple[str, ...] = ()

    def __init__(
        self, events: Iterator[Event], reads: ReadConfig, names: TokenLabels, *, model: str, as_ids: bool = False
    ) -> None:
        self.prompt_tokens = 0
        self.written_tokens = 0
        self._events = events
        self._reads = reads
        self._names = names
        self._as_ids = as_ids
        self._id = f"{self.id_prefix}-{token_hex(12)}"
        self._created = int(time.time())
        self._model = model
        self._passages: dict[int, Passage] = {}
        self._shared: Sequence[int] = ()
        self._choices: list[ResponseChoice] = []

    def whole(self) -> ResponseJson:
        """The response."""
        for event in self._events:
            self._take(event)
        choices: list[JsonValue] = [self._choice_json(number, one) for number, one in enumerate(self._choices)]
        usage = self._usage()
        return {**self._head(self.kind), "choices": choices, "usage": usage, **self._sources_json(with_tokens=True)}

    def pieces(self, *, usage: bool) -> Iterator[ResponseJson]:
        """The pieces of the response as they come, and the usage at the end if requested."""
        head = self._head(self.piece_kind)
        more: ResponseJson = {"usage": None} if usage else {}
        for choice, sources in self._pieces():
            yield {**head, "choices": [choice], **sources, **more}
        if usage:
            yield {**head, "choices": [], "usage": self._usage()}

    def _pieces(self) -> Iterator[tuple[ResponseJson, ResponseJson]]:
        """What each piece has of a choice, and the sources in it."""
        for event in self._events:
            added = self._take(event)
            match event:
                case Began():
                    for number in range(len(self._choices)):
                        yield from ((begin, {}) for begin in self._begin_json(number))
                case Echoed(number) | Wrote(number) if added.text or added.tokens:
                    yield self._piece_json(number, added), self._new_sources_json(number, added.tokens)
        for number, choice in enumerate(self._choices):
            *others, end = self._end_json(number, choice)
            yield from ((other, {}) for other in others)
            is_last = number == len(self._choices) - 1
            yield end, self._sources_json(with_tokens=False) if is_last else {}

    def fill(self, entry: AuditEntry) -> None:
        """Add tokens, passages and texts to the audit log; also of an answer that was not written to its end."""
        written = [[one for one in choice.tokens if isinstance(one, GeneratedToken)] for choice in self._choices]
        ends = [choice.end for choice in self._choices]
        entry.prompt_tokens = self.prompt_tokens
        entry.completion_tokens = sum(
            len(some) if end is None else end.tokens for some, end in zip(written, ends, strict=True)
        )
        ranks = {number: rank for rank, number in enumerate(self._shared, 1)}
        ranks |= self._reads.parts.ranks
        index = self._reads.settings.index
        entry.passages = [(index, self._reads.passages[number], rank) for number, rank in ranks.items()]
        for number, choice in enumerate(self._choices):
            entry.wrote(number, choice.text)

    @abstractmethod
    def _choice_json(self, number: int, choice: ResponseChoice) -> ResponseJson:
        """A whole choice."""

    def _begin_json(self, number: int) -> Sequence[ResponseJson]:  # noqa: ARG002  # only chats have any
        """A choice in the pieces before its text."""
        return ()

    @abstractmethod
    def _piece_json(self, number: int, added: ResponseChoice) -> ResponseJson:
        """A choice in a piece of its text."""

    @abstractmethod
    def _end_json(self, number: int, choice: ResponseChoice) -> Sequence[ResponseJson]:
        """A choice in the pieces after its text; the last one has the reason of the end."""

    @abstractmethod
    def _choice_sources(self, choice: ResponseChoice, *, with_tokens: bool) -> ResponseJson:
        """The sources of a choice."""

    def _take(self, event: Event) -> ResponseChoice:
        """Process an event; returns what it adds to a choice."""
        match event:
            case Began():
                self.prompt_tokens, self._shared = event.tokens, event.passages
                self._choices = [ResponseChoice(listed=one) for one in event.offsets]
                return ResponseChoice()
            case Ended():
                self.written_tokens += event.tokens
                self._choices[event.choice].end = event
                return ResponseChoice()
            case Echoed():
                added = ResponseChoice(event.text, [*event.tokens], [token.text for token in event.tokens])
            case Wrote(piece=piece):
                added = ResponseChoice(piece.text, [*piece.tokens], texts_of_tokens([piece])[1])
        choice = self._choices[event.choice]
        choice.text += added.text
        choice.tokens += added.tokens
        choice.texts += added.texts
        return added

    def _head(self, kind: str) -> ResponseJson:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _usage(self) -> ResponseJson:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.written_tokens,
            "total_tokens": self.prompt_tokens + self.written_tokens,
        }

    def _sources_json(self, *, with_tokens: bool) -> ResponseJson:
        """The passages of the response, with the JSON of each choice about them; empty without an index."""
        if self._reads.source is None:
            return {}
        self._note([*self._reads.parts.ranks])  # tokens only name the best of a context
        choices: list[JsonValue] = [
            {"index": number, **self._choice_sources(one, with_tokens=with_tokens)}
            for number, one in enumerate(self._choices)
        ]
        config = {name: one for name, one in self._reads.settings.config.items() if name not in self.unused_config}
        passages = self._passages.values()
        return {
            "ralm": {**config, "passages": [passage_json(one) for one in passages], "choices": choices},
            "search_results": [search_result(one, self._url(one)) for one in passages],
        }

    def _url(self, passage: Passage) -> str | None:
        return web_address(passage)

    def _new_sources_json(self, choice: int, tokens: Sequence[Token]) -> ResponseJson:
        """The field of a piece with some tokens of a choice, and the passages that no earlier piece has."""
        if self._reads.source is None:
            return {}
        before = len(self._passages)
        self._note([*self._reads.parts.ranks])
        with_passages = self._tokens_json(tokens)
        new = [passage_json(one) for one in [*self._passages.values()][before:]]
        return {"ralm": {"choices": [{"index": choice, "tokens": with_passages}], "passages": [*new]}}

    def _tokens_json(self, tokens: Sequence[Token]) -> list[JsonValue]:
        """Tokens, each with its passages."""
        return [self._token_json(one) for one in tokens]

    def _token_json(self, token: Token) -> ResponseJson:
        self._note(token.passages_K.tolist())
        name, log_prob = self._name(token.token), log_prob_json(token.log_prob)
        found = token_as_json(token.token, name, log_prob, token.passages_K, token.posteriors_K)
        if isinstance(token, ScoredToken) and token.gain is not None:
            found["gain"] = finite(token.gain)
        if isinstance(token, GeneratedToken) and not token.certified:
            found |= {"certified": False, "unlisted": finite(token.bound_width)}
        return found

    def _note(self, numbers: Sequence[int]) -> None:
        """Add passages to those of the response, in the order of the text."""
        for number in numbers:
            if number != NO_PASSAGE and number not in self._passages:
                self._passages[number] = self._reads.passages[number]

    def _name(self, token: int) -> str:
        return self._names.of(token, as_id=self._as_ids)


def search_result(passage: Passage, url: str | None) -> ResponseJson:
    """A passage as an entry of `search_results`."""
    return {
        "title": passage.title or passage.document_id,
        "url": url,
        "date": passage.metadata.get("date"),
        "snippet": passage.text,
        "passage": passage.number,
        "document_id": passage.document_id,
    }


def passage_json(passage: Passage) -> ResponseJson:
    """A passage with its text and metadata."""
    return {**passage_as_json(passage), "text": passage.text}


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


def log_prob_json(log_prob: float | None) -> float | None:
    """A log-probability for JSON; None if the model does not return it."""
    if log_prob is None or np.isnan(log_prob):
        return None
    return max(log_prob, _MIN_LOG_PROB)


def finite(value: float | None) -> float | None:
    """The number; None if it is infinite or NaN, which JSON does not have."""
    return value if value is not None and np.isfinite(value) else None
