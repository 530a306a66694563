"""The sources of an answer that another server wrote, by its text alone: the numbers that it cites, its quotes."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from ralm.answering import citations
from ralm.answering.prompts import QuestionPrompt
from ralm.records import Passage

_Value = dict[str, JsonValue]


class TextSources:
    """Adds sources to the choices of an answer, whole or event by event. Quotes are looked for in a thread: a long text
    has many, and other requests do not wait for them.

    `asked` are the texts of a request, each with its passages and `times` choices; a chat has one text, around which a
    `prompt` puts the passages. `fields` returns those of the whole answer. With `as_text` the sources also stand behind
    the text.
    """

    def __init__(
        self,
        asked: Sequence[tuple[Sequence[Passage], str]],
        fields: Callable[[], Mapping[str, Any]],
        address: Callable[[Passage], str],
        *,
        prompt: QuestionPrompt | None,
        times: int = 1,
        as_text: bool = False,
    ) -> None:
        self._asked = asked
        self._fields = fields
        self._address = address
        self._prompt = prompt
        self._times = max(1, times)
        self._as_text = as_text
        self._written: defaultdict[int, str] = defaultdict(str)

    async def whole(self, value: _Value) -> _Value:
        """An answer with its sources."""
        return await asyncio.to_thread(self._with_sources, value, "message")

    async def event(self, value: _Value) -> _Value | None:
        """An event of a stream with the sources of the choices that it ends; None if it ends none."""
        for number, written in choice_texts(value):
            self._written[number] += written
        ends = any(choice.get("finish_reason") for choice in choices_of(value))
        return await asyncio.to_thread(self._with_sources, value, "delta") if ends else None

    def _with_sources(self, value: _Value, part: str) -> _Value:
        listed, choices = list[JsonValue](), list[JsonValue]()
        for choice in choices_of(value):
            number, message = _index(choice), choice.get(part)
            if part == "delta" and not choice.get("finish_reason"):
                choices.append(choice)
                continue
            whole = message.get("content") if isinstance(message, dict) else choice.get("text")
            text = self._written[number] if part == "delta" else whole
            sources = self._sources(number, text) if isinstance(text, str) and text else []
            in_json: list[JsonValue] = [{"passage": one.passage.number, **one.as_json()} for one in sources]
            listed.append({"index": number, "sources": in_json})
            choices.append({**choice, part: self._annotated(message, sources)} if isinstance(message, dict) else choice)
        fields, self._fields = self._fields(), dict  # in a stream, the first event that ends a choice has them
        return {**fields, "ralm": {**fields.get("ralm", {}), "choices": listed}, **value, "choices": choices}

    def _sources(self, number: int, text: str) -> list[citations.AnswerSource]:
        """The sources of a choice."""
        if not self._asked:
            return []
        passages, own = self._asked[min(number // self._times, len(self._asked) - 1)]
        if self._prompt is not None:
            own = str(self._prompt.same_words(several=len(passages) > 1).text(own, ()))
        numbered = self._prompt is not None and self._prompt.numbers_passages
        return citations.AnswerSource.of_text(text, passages, own, numbered=numbered)

    def _annotated(self, message: dict[str, Any], sources: Sequence[citations.AnswerSource]) -> _Value:
        """A message, or the last part of one, with annotations and perhaps the sources behind its text."""
        annotated = {**message}
        if found := citations.annotations(sources, self._address):
            annotated["annotations"] = [*(message.get("annotations") or ()), *found]
        if self._as_text and (behind := citations.sources_text(sources, self._address)):
            annotated["content"] = (message.get("content") or "") + behind
        return annotated


def choices_of(value: Mapping[str, JsonValue]) -> list[dict[str, Any]]:
    """The choices of an answer or an event."""
    choices = value.get("choices")
    return [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []


def choice_texts(value: Mapping[str, JsonValue]) -> Iterator[tuple[int, str]]:
    """The texts in an answer or an event, with the numbers of their choices."""
    for choice in choices_of(value):
        part = next((choice[name] for name in ("message", "delta") if name in choice), choice)
        text = part.get("text" if part is choice else "content") if isinstance(part, dict) else None
        if isinstance(text, str):
            yield _index(choice), text


def _index(choice: dict[str, Any]) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0
