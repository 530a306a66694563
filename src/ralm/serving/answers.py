"""The JSON of responses: what completions and chats share, and completions.

Runs in the thread of the request, since it decodes tokens.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from secrets import token_hex
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.answering.citations import web_address
from ralm.reading.pieces import GeneratedToken, texts_of_tokens
from ralm.reading.provenance import contributions, passage_as_json, token_as_json, total_gain
from ralm.records import NO_PASSAGE, DoubleArray, Passage, Provenance
from ralm.serving.completion import Began, Completion, Echoed, Ended, Event, Wrote
from ralm.serving.indexes import ReadConfig
from ralm.serving.prompts import TokenLabels
from ralm.serving.scoring import ScoredToken

_MIN_LOG_PROB: Final = -9999.0
"""The log-probability of an impossible token in OpenAI's API; JSON has no infinity."""
ResponseJson: TypeAlias = dict[str, JsonValue]
Token: TypeAlias = ScoredToken | GeneratedToken


class ServedAnswer(ABC):
    """Makes the response to a request from its events; `prompt_tokens` and `written_tokens` are counted meanwhile."""

    kind: str
    piece_kind: str
    id_prefix: str

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

    @abstractmethod
    def whole(self) -> ResponseJson:
        """The response."""

    def pieces(self, *, usage: bool) -> Iterator[ResponseJson]:
        """The pieces of the response as they come, and the usage at the end if requested."""
        head = self._head(self.piece_kind)
        more: ResponseJson = {"usage": None} if usage else {}
        for piece in self._pieces():
            yield {**head, **piece, **more}
        if usage:
            yield {**head, "choices": [], "usage": self._usage()}

    @abstractmethod
    def _pieces(self) -> Iterator[ResponseJson]:
        """What is in each piece but not in all."""

    def _head(self, kind: str) -> ResponseJson:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _usage(self) -> ResponseJson:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.written_tokens,
            "total_tokens": self.prompt_tokens + self.written_tokens,
        }

    def _sources_json(self, config: ResponseJson, choices: list[JsonValue]) -> ResponseJson:
        """The passages of the response, with the JSON of each choice about them; empty without an index."""
        if self._reads.source is None:
            return {}
        passages = self._passages.values()
        return {
            "ralm": {**config, "passages": [passage_json(one) for one in passages], "choices": choices},
            "search_results": [self._search_result(one) for one in passages],
        }

    def _search_result(self, passage: Passage) -> ResponseJson:
        return {
            "title": passage.title or passage.document_id,
            "url": self._url(passage),
            "date": passage.metadata.get("date"),
            "snippet": passage.text,
            "passage": passage.number,
            "document_id": passage.document_id,
        }

    def _url(self, passage: Passage) -> str | None:
        return web_address(passage)

    def _new_sources_json(self, choice: int, tokens: Sequence[Token]) -> ResponseJson:
        """The field of a piece with some tokens of a choice, and the passages that no earlier piece has."""
        if self._reads.source is None:
            return {}
        before = len(self._passages)
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


@dataclass
class _Choice:
    """A choice so far; `at` is the number of characters before the next token that is listed."""

    at: int
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    written: list[GeneratedToken] = field(default_factory=list)
    reason: str | None = None
    gain_T: DoubleArray | None = None

    @property
    def gain(self) -> ResponseJson:
        """The gain of the generated tokens; empty if it was not requested."""
        if self.gain_T is None:
            return {}
        return gain_json(Provenance.of_rows([(one.passages_K, one.posteriors_K) for one in self.written]), self.gain_T)


class _Addition(NamedTuple):
    """What an event adds to a choice: text, and tokens with the text of each."""

    choice: int
    text: str
    tokens: Sequence[Token]
    texts: Sequence[str]


class CompletionAnswer(ServedAnswer):
    """Makes the response to a request for completions."""

    kind = piece_kind = "text_completion"
    id_prefix = "cmpl"

    def __init__(
        self, completion: Completion, events: Iterator[Event], reads: ReadConfig, names: TokenLabels, *, model: str
    ) -> None:
        super().__init__(events, reads, names, model=model, as_ids=completion.as_ids)
        self._completion = completion
        self._prompts: tuple[str, ...] = ()
        self._choices: list[_Choice] = []

    def whole(self) -> ResponseJson:
        """The response."""
        for event in self._events:
            self._take(event)
        choices: list[JsonValue] = [
            self._choice_json(_Addition(number, one.text, one.tokens, one.texts), one.reason)
            for number, one in enumerate(self._choices)
        ]
        usage = self._usage()
        return {**self._head(self.kind), "choices": choices, "usage": usage, **self._sources(with_tokens=True)}

    def _pieces(self) -> Iterator[ResponseJson]:
        for event in self._events:
            added = self._take(event)
            if added is not None and (added.text or added.tokens):
                yield {"choices": [self._choice_json(added)], **self._new_sources_json(added.choice, added.tokens)}
        for number, choice in enumerate(self._choices):
            last = number == len(self._choices) - 1
            ended: ResponseJson = {"index": number, "text": "", "logprobs": None, "finish_reason": choice.reason}
            yield {"choices": [ended], **(self._sources(with_tokens=False) if last else {})}

    def _take(self, event: Event) -> _Addition | None:
        """Process an event; returns its addition to a choice, if any."""
        match event:
            case Began():
                self.prompt_tokens, self._prompts = event.tokens, event.texts
                echo, times = self._completion.echo, self._completion.times
                self._choices = [_Choice(0 if echo else len(text)) for text in event.texts for _ in range(times)]
                return None
            case Ended():
                self.written_tokens += event.tokens
                self._choices[event.choice].reason = event.reason
                self._choices[event.choice].gain_T = event.gain_T
                return None
            case Echoed():
                text = self._prompts[event.choice // self._completion.times]
                added = _Addition(event.choice, text, event.tokens, [token.text for token in event.tokens])
            case Wrote():
                _, texts = texts_of_tokens([event.piece])
                added = _Addition(event.choice, event.piece.text, event.piece.tokens, texts)
                self._choices[event.choice].written += event.piece.tokens
        choice = self._choices[added.choice]
        choice.text += added.text
        choice.tokens += added.tokens
        choice.texts += added.texts
        return added

    def _choice_json(self, shown: _Addition, reason: str | None = None) -> ResponseJson:
        logprobs = None if self._completion.logprobs is None else self._logprobs_json(shown)
        return {"index": shown.choice, "text": shown.text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs_json(self, shown: _Addition) -> ResponseJson:
        choice = self._choices[shown.choice]
        offsets: list[JsonValue] = []
        for text in shown.texts:
            offsets.append(choice.at)
            choice.at += len(text)
        return {
            "tokens": [self._name(token.token) for token in shown.tokens],
            "token_logprobs": [log_prob_json(token.log_prob) for token in shown.tokens],
            "top_logprobs": [self._top(token) for token in shown.tokens],
            "text_offset": offsets,
        }

    def _top(self, token: Token) -> JsonValue:
        """The top log-probabilities and that of the token itself; null without a token before it."""
        if token.log_prob is None:
            return None
        named: dict[str, JsonValue] = {}
        for number, log_prob in token.top_logprobs[: self._completion.logprobs]:
            named.setdefault(self._name(number), log_prob_json(log_prob))
        named.setdefault(self._name(token.token), log_prob_json(token.log_prob))
        return named

    def _sources(self, *, with_tokens: bool) -> ResponseJson:
        choices: list[JsonValue] = []
        for number, choice in enumerate(self._choices):
            listed = with_tokens and bool(choice.text or choice.tokens)
            tokens: ResponseJson = {"tokens": self._tokens_json(choice.tokens)} if listed else {}
            choices.append({"index": number, **tokens, **choice.gain})
        return self._sources_json(self._reads.settings.config, choices)
