"""The sources of an answer in its text and annotations; of an answer that another server wrote, by its text alone."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from pydantic import JsonValue

from ralm.answering.citations import AnswerSource
from ralm.answering.prompts import QuestionPrompt
from ralm.records import Passage
from ralm.terminal import one_line

_Value = dict[str, JsonValue]
_ADDRESSES: Final = ("url", "source", "link", "uri")
"""Metadata with the address of a document, in order of preference; then its id."""
_RESPONSE_ENDS: Final = ("response.completed", "response.incomplete")
_WEB: Final = re.compile(r"https?://[^\s\x00-\x1f]+", re.IGNORECASE)


@dataclass(slots=True, eq=False)
class TextSources:
    """Adds sources to the answer to the texts `asked`, each with its passages and `times` choices.

    The texts of the choices are in `answers`; with `as_text` the sources stand also behind them.
    """

    asked: Sequence[tuple[Sequence[Passage], str]]
    fields: Callable[[], Mapping[str, Any]]
    address: Callable[[Passage], str]
    prompt: QuestionPrompt | None
    answers: Mapping[int, Sequence[str]]
    times: int
    as_text: bool

    def ends(self, event: _Value) -> bool:
        """Return whether an event of a stream ends a choice, and so gets sources."""
        return any(choice.get("finish_reason") for choice in choices_of(event))

    def added(self, value: _Value, *, whole: bool) -> _Value:
        """Return a whole answer, or an event of a stream, with the sources of the choices that it ends."""
        part = "message" if whole else "delta"
        listed, choices = list[JsonValue](), list[JsonValue]()
        for choice in choices_of(value):
            if whole or choice.get("finish_reason"):
                number = _index(choice)
                sources = self._sources(number, "".join(self.answers.get(number, ())))
                listed.append({"index": number, "sources": [source.as_json() for source in sources]})
                if isinstance(choice.get(part), dict):
                    choice = {**choice, part: self._annotated(choice[part], sources)}
            choices.append(choice)
        fields, self.fields = self.fields(), dict  # in a stream, the first event that ends a choice has them
        return {**fields, "ralm": {**fields.get("ralm", {}), "choices": listed}, **value, "choices": choices}

    def _sources(self, number: int, text: str) -> list[AnswerSource]:
        """Return the sources of a choice."""
        if not (self.asked and text):
            return []
        passages, asked = self.asked[min(number // max(1, self.times), len(self.asked) - 1)]
        if self.prompt is not None:
            asked = str(self.prompt.same_words(several=len(passages) > 1).text(asked, ()))
        numbered = self.prompt is not None and self.prompt.numbers_passages
        return AnswerSource.of_text(text, passages, asked, numbered=numbered)

    def _annotated(self, message: dict[str, Any], sources: Sequence[AnswerSource]) -> _Value:
        """Return a message, or the last part of one, with annotations and perhaps the sources behind its text."""
        annotated = {**message}
        if cited := annotations(sources, self.address):
            annotated["annotations"] = [*objects(message.get("annotations")), *cited]
        content = message.get("content") or ""
        if self.as_text and isinstance(content, str) and (behind := sources_text(sources, self.address)):
            annotated["content"] = content + behind
        return annotated


class ResponseSources(TextSources):
    """The same for responses: sources are annotations of the parts of text in messages."""

    def ends(self, event: _Value) -> bool:
        """Return whether an event ends a stream: that one has the whole response."""
        return event.get("type") in _RESPONSE_ENDS and isinstance(event.get("response"), dict)

    def added(self, value: _Value, *, whole: bool) -> _Value:
        """Return a response, or the event that ends its stream, with its sources."""
        if not whole:
            response: Any = value["response"]
            return {**value, "response": self.added(response, whole=True)}
        listed, output = list[JsonValue](), list[JsonValue]()
        items: Any = value.get("output")
        for item in items if isinstance(items, list) else ():
            parts = item.get("content") if isinstance(item, dict) else None
            if isinstance(parts, list):
                output.append({**item, "content": [self._part_with_sources(part, listed) for part in parts]})
            else:
                output.append(item)
        fields = self.fields()
        changed = {"output": output} if isinstance(items, list) else {}
        return {**fields, "ralm": {**fields["ralm"], "choices": [{"index": 0, "sources": listed}]}, **value, **changed}

    def _part_with_sources(self, part: Any, listed: list[JsonValue]) -> Any:
        """Return a part of a message, annotated if it is text; its sources are added to those that are `listed`."""
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            return part
        sources = self._sources(0, part["text"])
        listed += [source.as_json() for source in sources]
        cited: list[Any] = annotations(sources, self.address)
        flat = [{"type": citation["type"], **citation["url_citation"]} for citation in cited]
        return {**part, "annotations": [*objects(part.get("annotations")), *flat]} if flat else part


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


def sources_text(sources: Sequence[AnswerSource], address: Callable[[Passage], str]) -> str:
    """Return the sources that an answer is known to come from, as text to stand behind it; empty without any."""
    cited = [source for source in sources if source.answer_spans]
    cited.sort(key=lambda source: (source.number or 0, -(source.gain or 0)))
    lines = [
        f"\n[{source.number or place}] {name_of(source.passage)}: {address(source.passage)}"
        + "".join(f' "{one_line(words)}"' for words in source.quoted_words)
        for place, source in enumerate(cited, 1)
    ]
    return "\n\nSources:" + "".join(lines) if lines else ""


def annotations(sources: Sequence[AnswerSource], address: Callable[[Passage], str]) -> list[JsonValue]:
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


def choices_of(value: Mapping[str, JsonValue]) -> list[dict[str, Any]]:
    """Return the choices of an answer or an event."""
    return objects(value.get("choices"))


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; none if it is no list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def choice_texts(value: Mapping[str, JsonValue]) -> Iterator[tuple[int, str]]:
    """Yield the texts in an answer or an event, with the numbers of their choices."""
    for choice in choices_of(value):
        part = next((choice[name] for name in ("message", "delta") if name in choice), choice)
        text = part.get("text" if part is choice else "content") if isinstance(part, dict) else None
        if isinstance(text, str):
            yield _index(choice), text


def _index(choice: dict[str, Any]) -> int:
    index = choice.get("index")
    return max(0, index) if isinstance(index, int) else 0
