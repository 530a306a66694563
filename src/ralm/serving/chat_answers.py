"""The JSON of chats: the answer, whole or in pieces, with its sources."""

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
    PassageJson,
    ResponseJson,
    TokenUsage,
    finite,
    log_prob_json,
    passage_json,
    search_result_json,
    traced_gain_json,
)
from ralm.serving.chat import Attributed, ChatCompletion, ChatEvent
from ralm.serving.completion import Began, Ended, Wrote
from ralm.serving.indexes import ReadConfig
from ralm.serving.prompts import TokenLabels

_WHOLE: Final = "chat.completion"
_PIECE: Final = "chat.completion.chunk"
_CONFIG: Final = ("index", "retriever", "reader", "documents", "rerank")
"""The options of a request that apply to a chat."""


@dataclass
class _Choice:
    """A choice so far."""

    text: str = ""
    tokens: list[GeneratedToken] = field(default_factory=list)
    reason: str | None = None
    answer: SourcedAnswer | None = None
    cited: Sequence[Citation] = ()


class ChatAnswer:
    """Makes the answer of a request from its events; `address` returns the URL of a passage on this server."""

    def __init__(
        self,
        chat: ChatCompletion,
        reads: ReadConfig,
        names: TokenLabels,
        address: Callable[[Passage], str],
        *,
        model: str,
        logprobs: bool,
        sources_as_text: bool,
    ) -> None:
        self.usage = TokenUsage()
        self._head = Head(model, _WHOLE, f"chatcmpl-{token_hex(12)}")
        self._reads = reads
        self._names = names
        self._address = address
        self._with_logprobs = logprobs
        self._as_text = sources_as_text
        self._choices = [_Choice() for _ in range(chat.times)]
        self._passages_json = PassageJson(reads.passages, names)

    def whole(self, events: Iterator[ChatEvent]) -> ResponseJson:
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
                "logprobs": self._logprobs_json(choice.tokens),
                "finish_reason": choice.reason,
            }
            for number, choice in enumerate(self._choices)
        ]
        return {**self._head.as_json(), "choices": choices, "usage": self.usage.as_json(), **self._sources(whole=True)}

    def pieces(self, events: Iterator[ChatEvent], *, usage: bool) -> Iterator[ResponseJson]:
        """The pieces of the answer as they come, and the usage at the end if requested."""
        return replace(self._head, kind=_PIECE).stream(self._pieces(events), self.usage if usage else None)

    def _pieces(self, events: Iterator[ChatEvent]) -> Iterator[ResponseJson]:
        for event in events:
            yield from self._of_event(event)
        for number, choice in enumerate(self._choices):
            last = number == len(self._choices) - 1
            if text := self._sources_text(choice):
                yield self._delta(number, {"content": text})
            noted = self._annotations(choice)
            ended = self._delta(number, {"annotations": noted} if noted else {}, reason=choice.reason)
            yield {**ended, **(self._sources(whole=False) if last else {})}

    def _of_event(self, event: ChatEvent) -> Iterator[ResponseJson]:
        """The pieces of an event."""
        self._take(event)
        match event:
            case Began():
                for number in range(len(self._choices)):
                    yield self._delta(number, {"role": "assistant", "content": "", "refusal": None})
            case Wrote() if event.piece.text or event.piece.tokens:
                piece = self._delta(event.choice, {"content": event.piece.text}, event.piece.tokens)
                if self._reads.source is not None:
                    piece["ralm"] = self._passages_json.piece(event.choice, event.piece.tokens)
                yield piece

    def _take(self, event: ChatEvent) -> None:
        """Process an event."""
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
        self, number: int, delta: ResponseJson, tokens: Sequence[GeneratedToken] = (), reason: str | None = None
    ) -> ResponseJson:
        listed = self._logprobs_json(tokens) if tokens else None
        return {"choices": [{"index": number, "delta": delta, "logprobs": listed, "finish_reason": reason}]}

    def _logprobs_json(self, tokens: Sequence[GeneratedToken]) -> JsonValue:
        """The `logprobs` of some tokens, if requested."""
        if not self._with_logprobs:
            return None
        return {"content": [self._token(one) for one in tokens], "refusal": None}

    def _token(self, token: GeneratedToken) -> JsonValue:
        top: list[JsonValue] = [self._with_name(*one) for one in token.top_logprobs]
        return {**self._with_name(token.token, token.log_prob), "top_logprobs": top}

    def _with_name(self, token: int, log_prob: float) -> ResponseJson:
        name = self._names.of(token)
        encoded: list[JsonValue] = [*name.encode()]
        is_text = name != self._names.of(token, as_id=True)
        return {"token": name, "logprob": log_prob_json(log_prob), "bytes": encoded if is_text else None}

    def _annotations(self, choice: _Choice) -> list[JsonValue]:
        """The parts of a text that come from passages, in their order."""
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

    def _sources(self, *, whole: bool) -> ResponseJson:
        """The sources of the answers; empty without an index.

        With the tokens if the answer is `whole`, or if passages shared a prompt: pieces have only the first of these.
        """
        if self._reads.source is None:
            return {}
        choices: list[JsonValue] = []
        for number, choice in enumerate(self._choices):
            self._passages_json.note([one.passage.number for one in _sources_of(choice)])
            tokens: ResponseJson = (
                {"tokens": self._passages_json.tokens(_credited(choice))} if whole or _shares(choice) else {}
            )
            choices.append({"index": number, **tokens, **self._contributions(choice)})
        passages = self._passages_json.known.values()
        ralm: ResponseJson = {
            **{name: value for name, value in self._reads.settings.config.items() if name in _CONFIG},
            "passages": [passage_json(one) for one in passages],
            "choices": choices,
        }
        return {"ralm": ralm, "search_results": [search_result_json(one, self._url(one)) for one in passages]}

    def _contributions(self, choice: _Choice) -> ResponseJson:
        """The contribution of each passage to an answer."""
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
    """Whether passages of an answer shared a prompt: tokens are then credited once the answer is complete."""
    return bool(choice.tokens) and len(_sources_of(choice)) > len(choice.tokens[0].passages_K)


def _credited(choice: _Choice) -> Sequence[GeneratedToken]:
    """The tokens of an answer, credited to passages."""
    if choice.answer is None:
        return choice.tokens
    given = choice.answer.text.provenance
    rows = zip(choice.tokens, given.passages_TK, given.posteriors_TK, strict=True)
    return [replace(token, passages_K=numbers_K, posteriors_K=shares_K) for token, numbers_K, shares_K in rows]


def _sources_of(choice: _Choice) -> Sequence[AnswerSource]:
    return () if choice.answer is None else choice.answer.sources
