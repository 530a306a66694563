"""What completions and chats share: the texts that a request writes, and the JSON of the response and its sources.

Runs in the thread of the request, since it decodes tokens.
"""

import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import accumulate
from secrets import token_hex
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from pydantic import JsonValue

from ralm.answering.answerer import SourcedAnswer
from ralm.answering.citations import AnswerSource
from ralm.reading.pieces import GeneratedText, GeneratedToken, texts_of_tokens
from ralm.reading.provenance import contributions, passage_as_json, token_as_json, total_gain
from ralm.records import NO_PASSAGE, DoubleArray, Passage, Provenance
from ralm.serving import middleware, options, requests, state
from ralm.serving.model import SharedModel
from ralm.terminal import one_line

_MIN_LOG_PROB: Final = -9999.0
"""The log-probability of an impossible token in OpenAI's API; JSON has no infinity."""
_ADDRESSES: Final = ("url", "source", "link", "uri")
"""Metadata with the address of a document, in order of preference; then its id."""
_WEB: Final = re.compile(r"https?://[^\s\x00-\x1f]+", re.IGNORECASE)
ResponseJson: TypeAlias = dict[str, JsonValue]
_Body = TypeVar("_Body", bound=requests.TextRequest)


@dataclass(slots=True, eq=False)
class WrittenText:
    """A text so far, or what is added to one, and its tokens.

    `offsets` are the characters before each token, `end` those before the next one. `drawn` counts tokens, also those
    that a stop string cut off. At its end it may have the gain of each token in nats (`gain_T`, float64).
    """

    number: int
    end: int = 0
    text: str = ""
    tokens: list[GeneratedToken] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    drawn: int = 0
    reason: Literal["stop", "length"] | None = None
    gain_T: DoubleArray | None = None
    answer: SourcedAnswer | None = None

    def add(self, pieces: Sequence[GeneratedText]) -> "list[WrittenText]":
        """Add pieces of text; return them as a choice of their own, if there are any."""
        *offsets, self.end = accumulate(map(len, texts_of_tokens(pieces)[1]), initial=self.end)
        tokens = [token for piece in pieces for token in piece.tokens]
        added = WrittenText(self.number, self.end, "".join(piece.text for piece in pieces), tokens, offsets)
        self.text += added.text
        self.tokens += added.tokens
        self.offsets += added.offsets
        return [added] if pieces else []


class ServedAnswer(ABC, Generic[_Body]):
    """Writes the texts of a request with a model, and makes the response; `address` returns the URL of a passage."""

    kind: str
    piece_kind: str
    id_prefix: str
    unused_config: tuple[str, ...] = ()

    def __init__(
        self,
        body: _Body,
        model: SharedModel,
        reads: state.ReadConfig,
        limits: options.Limits,
        address: Callable[[Passage], str | None],
    ) -> None:
        self.prompt_tokens = 0
        self._body = body
        self._model = model
        self._reads = reads
        self._limits = limits
        self._address = address
        self._id = f"{self.id_prefix}-{token_hex(12)}"
        self._created = int(time.time())
        self._passages: dict[int, Passage] = {}
        self._shared: Sequence[int] = ()
        """The passages of the prompts of a chat, best first."""
        self._choices: list[WrittenText] = []

    @property
    def written_tokens(self) -> int:
        """The number of tokens that were generated so far."""
        return sum(choice.drawn for choice in self._choices)

    def whole(self) -> ResponseJson:
        """Return the response."""
        deque(self._write(), maxlen=0)
        choices: list[JsonValue] = [self._choice_json(choice) for choice in self._choices]
        usage = self._usage()
        return {**self._head(self.kind), "choices": choices, "usage": usage, **self._sources_json(with_tokens=True)}

    def pieces(self) -> Iterator[ResponseJson]:
        """Yield the pieces of the response as they come, and the usage at the end if requested."""
        head, usage = self._head(self.piece_kind), self._body.stream_options.include_usage
        more: ResponseJson = {"usage": None} if usage else {}
        for added in self._write():
            yield {**head, "choices": [self._piece_json(added)], **self._new_sources_json(added), **more}
        for choice in self._choices:
            *texts, end = self._end_json(choice)
            for text in texts:
                yield {**head, "choices": [text], **more}
            sources = self._sources_json(with_tokens=False) if choice is self._choices[-1] else {}
            yield {**head, "choices": [end], **sources, **more}
        if usage:
            yield {**head, "choices": [], "usage": self._usage()}

    def fill(self, entry: middleware.AuditEntry) -> None:
        """Add tokens and passages to the audit log; also of an answer that was not written to its end."""
        entry.prompt_tokens, entry.completion_tokens = self.prompt_tokens, self.written_tokens
        ranks = {number: rank for rank, number in enumerate(self._shared, 1)} | self._reads.parts.ranks
        passages = ((rank, self._reads.passages[number]) for number, rank in ranks.items())
        entry.add_passages(self._reads.settings.index, passages)

    @abstractmethod
    def _write(self) -> Iterator[WrittenText]:
        """Write the choices; yield what is added to one."""

    @abstractmethod
    def _choice_json(self, choice: WrittenText) -> ResponseJson:
        """Return a whole choice."""

    @abstractmethod
    def _piece_json(self, added: WrittenText) -> ResponseJson:
        """Return a choice in a piece with some of its text."""

    @abstractmethod
    def _end_json(self, choice: WrittenText) -> Sequence[ResponseJson]:
        """Return a choice in the pieces after its text; the last one has the reason of the end."""

    @abstractmethod
    def _choice_sources(self, choice: WrittenText, *, with_tokens: bool) -> ResponseJson:
        """Return the sources of a choice."""

    def _head(self, kind: str) -> ResponseJson:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._body.model}

    def _usage(self) -> ResponseJson:
        read, written = self.prompt_tokens, self.written_tokens
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _sources_json(self, *, with_tokens: bool) -> ResponseJson:
        """Return the passages of the response, with the JSON of each choice about them; empty without an index."""
        if self._reads.source is None:
            return {}
        self._note([*self._reads.parts.ranks])  # tokens only name the best of a context
        choices: list[JsonValue] = [
            {"index": choice.number, **self._choice_sources(choice, with_tokens=with_tokens)}
            for choice in self._choices
        ]
        config = {name: value for name, value in self._reads.settings.config.items() if name not in self.unused_config}
        passages = self._passages.values()
        return {
            "ralm": {**config, "passages": [passage_json(passage) for passage in passages], "choices": choices},
            "search_results": [search_result(passage, self._address(passage)) for passage in passages],
        }

    def _new_sources_json(self, added: WrittenText) -> ResponseJson:
        """Return the field of a piece with some tokens of a choice, and the passages that no earlier piece has."""
        if self._reads.source is None or not (added.text or added.tokens):
            return {}
        before = len(self._passages)
        self._note([*self._reads.parts.ranks])
        tokens = self._tokens_json(added.tokens)
        new = [passage_json(passage) for passage in [*self._passages.values()][before:]]
        return {"ralm": {"choices": [{"index": added.number, "tokens": tokens}], "passages": [*new]}}

    def _tokens_json(self, tokens: Sequence[GeneratedToken]) -> list[JsonValue]:
        shown: list[JsonValue] = []
        for token in tokens:
            self._note(token.passages_K.tolist())
            name, log_prob = self._label(token.token), log_prob_json(token.log_prob)
            shown.append(token_as_json(token.token, name, log_prob, token.passages_K, token.posteriors_K))
        return shown

    def _note(self, numbers: Sequence[int]) -> None:
        """Add passages to those of the response, in the order of the text."""
        for number in numbers:
            if number != NO_PASSAGE and number not in self._passages:
                self._passages[number] = self._reads.passages[number]

    def _label(self, token: int) -> str:
        return self._model.label(token)


def search_result(passage: Passage, url: str | None) -> ResponseJson:
    """Return a passage as an entry of `search_results`."""
    return {
        "title": passage.title or passage.document_id,
        "url": url,
        "date": passage.metadata.get("date"),
        "snippet": passage.text,
        "passage": passage.number,
        "document_id": passage.document_id,
    }


def passage_json(passage: Passage) -> ResponseJson:
    """Return a passage with its text and metadata."""
    return {**passage_as_json(passage), "text": passage.text}


def gain_json(provenance: Provenance, gain_T: DoubleArray) -> ResponseJson:
    """Return the gain of each token, the total, and each passage's contribution, in nats; null for unknown gains."""
    bounded_T = np.nan_to_num(gain_T, nan=0.0, posinf=-_MIN_LOG_PROB, neginf=_MIN_LOG_PROB)
    total = total_gain(provenance, bounded_T).as_dict()
    return {
        "gains": [*map(finite, gain_T.tolist())],
        "gain": {name: finite(value) if isinstance(value, float) else value for name, value in total.items()},
        "contributions": [asdict(contribution) for contribution in contributions(provenance, bounded_T)],
    }


def log_prob_json(log_prob: float) -> float | None:
    """Return a log-probability for JSON; None if the model does not return it."""
    return None if np.isnan(log_prob) else max(log_prob, _MIN_LOG_PROB)


def finite(value: float) -> float | None:
    """Return the number; None if it is infinite or NaN, which JSON does not have."""
    return value if np.isfinite(value) else None


def web_address(passage: Passage) -> str | None:
    """Return the web address of the document of a passage, at its page; None if it has none."""
    texts = [*(passage.metadata.get(name) for name in _ADDRESSES), passage.document_id]
    address = next((text for text in texts if isinstance(text, str) and _WEB.fullmatch(text)), None)
    page = page_of(passage)
    return address if address is None or page is None or "#" in address else f"{address}#page={page}"


def page_of(passage: Passage) -> int | None:
    """Return the page of its document that a passage is from, counted from 1; None if the format has none."""
    page = passage.metadata.get("page")
    return page if isinstance(page, int) and page > 0 else None


def name_of(passage: Passage) -> str:
    """Return the title of a passage, or else the id of its document, and its page, as one line."""
    page = page_of(passage)
    name = " ".join(passage.title.split()) or passage.document_id
    return one_line(name if page is None else f"{name}, page {page}")


def text_key(passage: Passage) -> str:
    """Return a hash of the text of a passage, which names it in its document as long as it has this text."""
    return blake2b(passage.text.encode(), digest_size=6).hexdigest()


def sources_text(sources: Sequence[AnswerSource], address: Callable[[Passage], str | None]) -> str:
    """Return the sources that an answer is known to come from, as text to stand behind it; empty without any."""
    cited = [source for source in sources if source.answer_spans]
    cited.sort(key=lambda source: (source.number or 0, -(source.gain or 0)))
    lines = [
        f"\n[{source.number or place}] {name_of(source.passage)}: {address(source.passage)}"
        + "".join(f' "{one_line(words)}"' for words in source.quoted_words)
        for place, source in enumerate(cited, 1)
    ]
    return "\n\nSources:" + "".join(lines) if lines else ""


def annotations(sources: Sequence[AnswerSource], address: Callable[[Passage], str | None]) -> list[JsonValue]:
    """Return the parts of an answer that are known to come from passages, in its order, as OpenAI's API names them."""
    spans = sorted(((span, source) for source in sources for span in source.answer_spans), key=lambda pair: pair[0])
    return [
        {
            "type": "url_citation",
            "url_citation": {
                "start_index": begin,
                "end_index": end,
                "url": address(source.passage),
                "title": name_of(source.passage),
                "document_id": source.passage.document_id,
                "place": source.passage.place,
                "page": page_of(source.passage),
                "quotes": [*source.quoted_words],
            },
        }
        for (begin, end), source in spans
    ]
