"""Answers of /v1/chat/completions: events in, JSON out, whole or piece by piece.

Knows events of a chat; knows nothing of HTTP. Runs in the thread of the request, since it decodes tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Final

from pydantic import JsonValue

from ralm.answering.citations import (
    AnswerSource,
    Citation,
    SourcedAnswer,
    citations,
    name_of,
    sources_text,
    web_address,
)
from ralm.reading.pieces import GeneratedToken
from ralm.records import Passage
from ralm.serving.answers import (
    Head,
    Json,
    PassageJson,
    Usage,
    finite,
    log_prob_json,
    passage_json,
    search_result_json,
    traced_gain_json,
)
from ralm.serving.chat import Attributed, ChatCompletion, ChatEvent
from ralm.serving.completion import Began, Ended, Wrote
from ralm.serving.indexes import ReadConfig
from ralm.serving.prompts import TokenNames

_WHOLE: Final = "chat.completion"
_PIECE: Final = "chat.completion.chunk"
_CONFIG: Final = ("index", "retriever", "reader", "documents", "rerank")
"""What of how a request reads there is in a chat."""


@dataclass
class _Choice:
    """What is known of a choice so far."""

    text: str = ""
    tokens: list[GeneratedToken] = field(default_factory=list)
    reason: str | None = None
    answer: SourcedAnswer | None = None
    cited: Sequence[Citation] = ()


class ChatAnswer:
    """Turns the events of one request into its answer; `address` is where this server shows a passage."""

    def __init__(
        self,
        asked: ChatCompletion,
        reads: ReadConfig,
        names: TokenNames,
        address: Callable[[Passage], str],
        *,
        model: str,
        logprobs: bool,
        sources_as_text: bool,
    ) -> None:
        self.usage = Usage()
        self._head = Head(model, _WHOLE, f"chatcmpl-{token_hex(12)}")
        self._reads = reads
        self._names = names
        self._address = address
        self._logprobs = logprobs
        self._as_text = sources_as_text
        self._choices = [_Choice() for _ in range(asked.times)]
        self._told = PassageJson(reads.passages, names)

    def whole(self, events: Iterator[ChatEvent]) -> Json:
        """The answer."""
        for event in events:
            self._take(event)
        choices: list[JsonValue] = [
            {
                "index": number,
                "message": {
                    "role": "assistant",
                    "content": choice.text + self._sources_text(choice),
                    "refusal": None,
                    "annotations": self._annotations(choice),
                },
                "logprobs": self._listed(choice.tokens),
                "finish_reason": choice.reason,
            }
            for number, choice in enumerate(self._choices)
        ]
        return {**self._head.as_json(), "choices": choices, "usage": self.usage.as_json(), **self._sources(whole=True)}

    def pieces(self, events: Iterator[ChatEvent], *, usage: bool) -> Iterator[Json]:
        """The pieces of the answer as they come, at the end the usage if it is wanted."""
        return replace(self._head, kind=_PIECE).stream(self._pieces(events), self.usage if usage else None)

    def _pieces(self, events: Iterator[ChatEvent]) -> Iterator[Json]:
        for event in events:
            yield from self._of_event(event)
        for number, choice in enumerate(self._choices):
            last = number == len(self._choices) - 1
            if text := self._sources_text(choice):
                yield self._delta(number, {"content": text})
            noted = self._annotations(choice)
            ended = self._delta(number, {"annotations": noted} if noted else {}, reason=choice.reason)
            yield {**ended, **(self._sources(whole=False) if last else {})}

    def _of_event(self, event: ChatEvent) -> Iterator[Json]:
        """The pieces that an event gives."""
        self._take(event)
        match event:
            case Began():
                for number in range(len(self._choices)):
                    yield self._delta(number, {"role": "assistant", "content": "", "refusal": None})
            case Wrote() if event.piece.text or event.piece.tokens:
                piece = self._delta(event.choice, {"content": event.piece.text}, event.piece.tokens)
                if self._reads.source is not None:
                    piece["ralm"] = self._told.piece(event.choice, event.piece.tokens)
                yield piece

    def _take(self, event: ChatEvent) -> None:
        """Note an event."""
        match event:
            case Began():
                self.usage.prompt = event.tokens
            case Wrote():
                self._choices[event.choice].text += event.piece.text
                self._choices[event.choice].tokens += event.piece.tokens
            case Ended():
                self.usage.written += event.tokens
                self._choices[event.choice].reason = event.reason
            case Attributed():
                self._choices[event.choice].answer = event.answer
                self._choices[event.choice].cited = citations(event.answer.text)

    def _delta(
        self, number: int, delta: Json, tokens: Sequence[GeneratedToken] = (), reason: str | None = None
    ) -> Json:
        listed = self._listed(tokens) if tokens else None
        return {"choices": [{"index": number, "delta": delta, "logprobs": listed, "finish_reason": reason}]}

    def _listed(self, tokens: Sequence[GeneratedToken]) -> JsonValue:
        """The `logprobs` of some tokens, if they are wanted."""
        if not self._logprobs:
            return None
        return {"content": [self._token(one) for one in tokens], "refusal": None}

    def _token(self, token: GeneratedToken) -> JsonValue:
        likeliest: list[JsonValue] = [self._named(*one) for one in token.top_logprobs]
        return {**self._named(token.token, token.log_prob), "top_logprobs": likeliest}

    def _named(self, token: int, log_prob: float) -> Json:
        name = self._names.of(token)
        told: list[JsonValue] = [*name.encode()]
        is_text = name != self._names.of(token, as_id=True)
        return {"token": name, "logprob": log_prob_json(log_prob), "bytes": told if is_text else None}

    def _annotations(self, choice: _Choice) -> list[JsonValue]:
        """The parts of a text that come from passages, in the order of the text."""
        found = sorted((span, one.passage) for one in choice.cited for span in one.spans)
        return [
            {
                "type": "url_citation",
                "url_citation": {
                    "start_index": begin,
                    "end_index": end,
                    "url": self._url(passage),
                    "title": name_of(passage),
                },
            }
            for (begin, end), passage in found
        ]

    def _sources_text(self, choice: _Choice) -> str:
        return sources_text(choice.cited, [self._url(one.passage) for one in choice.cited]) if self._as_text else ""

    def _url(self, passage: Passage) -> str:
        return web_address(passage) or self._address(passage)

    def _sources(self, *, whole: bool) -> Json:
        """Where the answers came from, if any passages were read.

        The tokens are told too if the answer is `whole`, or if its passages shared a prompt: then the pieces had only
        the first one of them.
        """
        if self._reads.source is None:
            return {}
        choices: list[JsonValue] = []
        for number, choice in enumerate(self._choices):
            self._told.note([one.passage.number for one in _sources_of(choice)])
            tokens: Json = {"tokens": self._told.tokens(_credited(choice))} if whole or _shares(choice) else {}
            choices.append({"index": number, **tokens, **self._gave(choice)})
        passages = self._told.known.values()
        ralm: Json = {
            **{name: value for name, value in self._reads.settings.config.items() if name in _CONFIG},
            "passages": [passage_json(one) for one in passages],
            "choices": choices,
        }
        return {"ralm": ralm, "search_results": [search_result_json(one, self._url(one)) for one in passages]}

    def _gave(self, choice: _Choice) -> Json:
        """What each passage gave to an answer."""
        if choice.answer is None:
            return {}
        cited: dict[int, JsonValue] = {one.passage.number: [[*span] for span in one.spans] for one in choice.cited}
        sources: list[JsonValue] = [
            {
                "passage": one.passage.number,
                "share": finite(one.share),
                "gain": finite(one.gain),
                "spans": cited.get(one.passage.number, []),
            }
            for one in _sources_of(choice)
        ]
        return {**traced_gain_json(choice.answer.text), "sources": sources, "cut": choice.answer.cut.documents}


def _shares(choice: _Choice) -> bool:
    """Whether passages of an answer shared a prompt, so that its tokens are credited once it is complete."""
    return bool(choice.tokens) and len(_sources_of(choice)) > len(choice.tokens[0].passages_K)


def _credited(choice: _Choice) -> Sequence[GeneratedToken]:
    """The tokens of an answer with the passages that they are credited to."""
    if choice.answer is None:
        return choice.tokens
    given = choice.answer.text.provenance
    rows = zip(choice.tokens, given.passages_TK, given.posteriors_TK, strict=True)
    return [replace(token, passages_K=numbers_K, posteriors_K=shares_K) for token, numbers_K, shares_K in rows]


def _sources_of(choice: _Choice) -> Sequence[AnswerSource]:
    return () if choice.answer is None else choice.answer.sources
