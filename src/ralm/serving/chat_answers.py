"""The JSON of chats: the answer, whole or in pieces, with its sources."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
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
from ralm.serving import answers, completion, indexes, prompts
from ralm.serving.chat import ChatCompletion

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

    @property
    def sources(self) -> Sequence[AnswerSource]:
        """The passages in the prompts of the answer."""
        return () if self.answer is None else self.answer.sources

    @property
    def is_credited_late(self) -> bool:
        """Whether passages shared a prompt: tokens are then credited once the answer is complete."""
        return bool(self.tokens) and len(self.sources) > len(self.tokens[0].passages_K)

    @property
    def credited(self) -> Sequence[GeneratedToken]:
        """The tokens, credited to passages."""
        if self.answer is None:
            return self.tokens
        given = self.answer.text.provenance
        rows = zip(self.tokens, given.passages_TK, given.posteriors_TK, strict=True)
        return [replace(token, passages_K=numbers_K, posteriors_K=shares_K) for token, numbers_K, shares_K in rows]


class ChatAnswer(answers.ServedAnswer):
    """Makes the response to a request for a chat; `address` returns the URL of a passage on this server."""

    kind = "chat.completion"
    piece_kind = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(
        self,
        chat: ChatCompletion,
        events: Iterator[completion.Event],
        reads: indexes.ReadConfig,
        names: prompts.TokenLabels,
        address: Callable[[Passage], str],
        *,
        model: str,
    ) -> None:
        super().__init__(events, reads, names, model=model)
        self._chat = chat
        self._address = address
        self._choices = [_Choice() for _ in range(chat.times)]

    def whole(self) -> answers.ResponseJson:
        """The response."""
        for event in self._events:
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
        usage = self._usage()
        return {**self._head(self.kind), "choices": choices, "usage": usage, **self._sources(with_tokens=True)}

    def _pieces(self) -> Iterator[answers.ResponseJson]:
        for event in self._events:
            self._take(event)
            match event:
                case completion.Began():
                    for number in range(len(self._choices)):
                        yield self._delta(number, {"role": "assistant", "content": "", "refusal": None})
                case completion.Wrote(choice=number, piece=piece) if piece.text or piece.tokens:
                    delta = self._delta(number, {"content": piece.text}, piece.tokens)
                    yield {**delta, **self._new_sources_json(number, piece.tokens)}
        for number, choice in enumerate(self._choices):
            last = number == len(self._choices) - 1
            if text := self._sources_text(choice):
                yield self._delta(number, {"content": text})
            noted = self._annotations(choice)
            ended = self._delta(number, {"annotations": noted} if noted else {}, reason=choice.reason)
            yield {**ended, **(self._sources(with_tokens=False) if last else {})}

    def _take(self, event: completion.Event) -> None:
        """Process an event."""
        match event:
            case completion.Began():
                self.prompt_tokens = event.tokens
            case completion.Wrote():
                self._choices[event.choice].text += event.piece.text
                self._choices[event.choice].tokens += event.piece.tokens
            case completion.Ended():
                choice = self._choices[event.choice]
                self.written_tokens += event.tokens
                choice.reason, choice.answer = event.reason, event.answer
                choice.cited = () if event.answer is None else citations(event.answer.text)

    def _delta(
        self, number: int, delta: answers.ResponseJson, tokens: Sequence[GeneratedToken] = (), reason: str | None = None
    ) -> answers.ResponseJson:
        listed = self._logprobs_json(tokens) if tokens else None
        return {"choices": [{"index": number, "delta": delta, "logprobs": listed, "finish_reason": reason}]}

    def _logprobs_json(self, tokens: Sequence[GeneratedToken]) -> JsonValue:
        """The `logprobs` of some tokens, if requested."""
        if not self._chat.logprobs:
            return None
        content: list[JsonValue] = [
            {
                **self._with_name(token.token, token.log_prob),
                "top_logprobs": [self._with_name(*one) for one in token.top_logprobs],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _with_name(self, token: int, log_prob: float) -> answers.ResponseJson:
        name = self._names.of(token)
        encoded: list[JsonValue] = [*name.encode()]
        is_text = name != self._names.of(token, as_id=True)
        return {"token": name, "logprob": answers.log_prob_json(log_prob), "bytes": encoded if is_text else None}

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
        if not self._chat.sources_as_text:
            return ""
        return sources_text(choice.cited, [self._url(one.passage) for one in choice.cited])

    def _url(self, passage: Passage) -> str:
        return web_address(passage) or self._address(passage)

    def _sources(self, *, with_tokens: bool) -> answers.ResponseJson:
        """The sources of the answers; with all tokens if wanted, or if no piece could have their passages."""
        if self._reads.source is None:
            return {}
        choices: list[JsonValue] = []
        for number, choice in enumerate(self._choices):
            self._note([one.passage.number for one in choice.sources])
            listed = with_tokens or choice.is_credited_late
            tokens: answers.ResponseJson = {"tokens": self._tokens_json(choice.credited)} if listed else {}
            choices.append({"index": number, **tokens, **_contributions(choice)})
        config = self._reads.settings.config
        return self._sources_json({name: config[name] for name in _CONFIG}, choices)


def _contributions(choice: _Choice) -> answers.ResponseJson:
    """The contribution of each passage to an answer."""
    if choice.answer is None:
        return {}
    text = choice.answer.text
    gain: answers.ResponseJson = {} if np.isnan(text.gain_T).all() else answers.gain_json(text.provenance, text.gain_T)
    cited: dict[int, JsonValue] = {one.passage.number: [[*span] for span in one.spans] for one in choice.cited}
    sources: list[JsonValue] = [
        {
            "passage": one.passage.number,
            "share": answers.finite(one.share),
            "gain": answers.finite(one.gain),
            "spans": cited.get(one.passage.number, []),
        }
        for one in choice.sources
    ]
    return {**gain, "sources": sources, "cut": choice.answer.cut.documents}
