"""Where the bodies of OpenAI's API have their texts and sources: chats, completions and responses.

A dialect finds the texts that passages are searched for, puts the passages before them, reads the texts of answers, and
adds their sources, which are known by their text alone. All else of a body stays as it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from pydantic import JsonValue

from ralm.answering.citations import AnswerSource
from ralm.answering.prompts import QuestionPrompt
from ralm.records import Passage
from ralm.serving.answers import annotations, passage_json, search_result, sources_text
from ralm.serving.options import Settings

RequestBody: TypeAlias = dict[str, Any]
_RESPONSE_ENDS: Final = ("response.completed", "response.incomplete")
_QUESTION: Final = "\0"
"""Stands for the message in a prompt, which may have parts that are no text."""


@dataclass(slots=True, eq=False)
class TextSources:
    """Adds sources to the answer to the texts `asked`, each with its passages and `times` choices.

    The texts of the choices are in `answers`; with `as_text` the sources stand also behind them.
    """

    asked: Sequence[tuple[Sequence[Passage], str]]
    settings: Settings
    address: Callable[[Passage], str]
    prompt: QuestionPrompt | None
    answers: Mapping[int, Sequence[str]]
    times: int
    as_text: bool
    is_told: bool = False
    """Whether an event had the passages: in a stream the first that ends a choice has them."""

    def ends(self, event: RequestBody) -> bool:
        """Return whether an event of a stream ends a choice, and so gets sources."""
        return any(choice.get("finish_reason") for choice in _choices_of(event))

    def added(self, value: RequestBody) -> RequestBody:
        """Return a whole answer with the sources of its choices."""
        return self._added(value, "message")

    def added_to_event(self, value: RequestBody) -> RequestBody:
        """Return an event of a stream with the sources of the choices that it ends."""
        return self._added(value, "delta")

    def _added(self, value: RequestBody, part: str) -> RequestBody:
        listed, choices = list[JsonValue](), list[JsonValue]()
        for choice in _choices_of(value):
            if part == "message" or choice.get("finish_reason"):
                number = _index(choice)
                sources = self._sources(number, "".join(self.answers.get(number, ())))
                listed.append({"index": number, "sources": [source.as_json() for source in sources]})
                if isinstance(choice.get(part), dict):
                    choice = {**choice, part: self._annotated(choice[part], sources)}
            choices.append(choice)
        return {**self._fields(listed), **value, "choices": choices}

    def _fields(self, choices: list[JsonValue]) -> RequestBody:
        """Return the fields of an answer about its passages and the sources of its choices."""
        if self.is_told:
            return {"ralm": {"choices": choices}}
        self.is_told = True
        passages = [passage for passages, _ in self.asked for passage in passages]
        config = {"index": self.settings.index, "retriever": self.settings.retrieval.retriever}
        return {
            "ralm": {**config, "passages": [passage_json(passage) for passage in passages], "choices": choices},
            "search_results": [search_result(passage, self.address(passage)) for passage in passages],
        }

    def _sources(self, number: int, text: str) -> list[AnswerSource]:
        if not (self.asked and text):
            return []
        passages, asked = self.asked[min(number // max(1, self.times), len(self.asked) - 1)]
        if self.prompt is not None:
            asked = str(self.prompt.same_words(several=len(passages) > 1).text(asked, ()))
        numbered = self.prompt is not None and self.prompt.numbers_passages
        return AnswerSource.of_text(text, passages, asked, numbered=numbered)

    def _annotated(self, message: dict[str, Any], sources: Sequence[AnswerSource]) -> RequestBody:
        """Return a message, or the last part of one, with annotations and perhaps the sources behind its text."""
        annotated = {**message}
        if cited := annotations(sources, self.address):
            annotated["annotations"] = [*_objects(message.get("annotations")), *cited]
        content = message.get("content") or ""
        if self.as_text and isinstance(content, str) and (behind := sources_text(sources, self.address)):
            annotated["content"] = content + behind
        return annotated


class ResponseSources(TextSources):
    """The same for responses: sources are annotations of the parts of text in messages."""

    def ends(self, event: RequestBody) -> bool:
        """Return whether an event ends a stream: that one has the whole response."""
        return event.get("type") in _RESPONSE_ENDS and isinstance(event.get("response"), dict)

    def added_to_event(self, value: RequestBody) -> RequestBody:
        """Return the event that ends a stream, whose response has sources."""
        return {**value, "response": self.added(value["response"])}

    def added(self, value: RequestBody) -> RequestBody:
        """Return a response with its sources."""
        listed, output = list[JsonValue](), list[JsonValue]()
        items = value.get("output")
        for item in items if isinstance(items, list) else ():
            parts = item.get("content") if isinstance(item, dict) else None
            if isinstance(parts, list):
                item = {**item, "content": [self._part_with_sources(part, listed) for part in parts]}
            output.append(item)
        changed = {"output": output} if isinstance(items, list) else {}
        return {**self._fields([{"index": 0, "sources": listed}]), **value, **changed}

    def _part_with_sources(self, part: Any, listed: list[JsonValue]) -> Any:
        """Return a part of a message, annotated if it is text; its sources are added to those that are `listed`."""
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            return part
        sources = self._sources(0, part["text"])
        listed += [source.as_json() for source in sources]
        cited: list[Any] = annotations(sources, self.address)
        flat = [{"type": citation["type"], **citation["url_citation"]} for citation in cited]
        return {**part, "annotations": [*_objects(part.get("annotations")), *flat]} if flat else part


class CompletionDialect:
    """/completions: passages stand before a prompt, as in In-Context RALM."""

    has_messages: ClassVar[bool] = False
    """Whether texts are messages, which are put into a prompt."""
    sources: ClassVar[type[TextSources]] = TextSources

    def texts(self, body: RequestBody) -> list[str]:
        """Return the texts that passages are searched for; "" for one that is no text."""
        return [prompt if isinstance(prompt, str) else "" for prompt in _prompts(body)]

    def with_passages(
        self,
        body: RequestBody,
        retrieved: Sequence[Sequence[Passage]],
        prompt: QuestionPrompt,  # noqa: ARG002
    ) -> RequestBody:
        """Return a body with the passages that were found for each of its texts."""
        texts = [
            "\n\n".join([*(passage.contents for passage in passages), text]) if passages else text
            for passages, text in zip(retrieved, _prompts(body), strict=True)
        ]
        return {**body, "prompt": texts if isinstance(body["prompt"], list) else texts[0]}

    def answer_texts(self, value: Mapping[str, JsonValue]) -> Iterator[tuple[int, str]]:
        """Yield the texts in an answer or an event of a stream, with the numbers of their choices."""
        return _choice_texts(value)


class ChatDialect(CompletionDialect):
    """/chat/completions: passages stand around the last message of the user."""

    has_messages = True
    messages: ClassVar[str] = "messages"
    part: ClassVar[str] = "text"
    """The type of a part of a message that is text."""

    def texts(self, body: RequestBody) -> list[str]:
        """As `CompletionDialect.texts`."""
        place = self._place_of_question(body)
        return [] if place is None else [message_text(body[self.messages][place].get("content"))]

    def with_passages(
        self, body: RequestBody, retrieved: Sequence[Sequence[Passage]], prompt: QuestionPrompt
    ) -> RequestBody:
        """As `CompletionDialect.with_passages`."""
        place = self._place_of_question(body)
        messages = [*body[self.messages]]
        before, _, after = _around(retrieved[0], prompt)
        content = messages[place].get("content")
        if isinstance(content, list):
            parts = [{"type": self.part, "text": text} for text in (before, after)]
            content = [parts[0], *content, *(parts[1:] if after else ())]
        else:
            content = f"{before}{content or ''}{after}"
        messages[place] = {**messages[place], "content": content}
        return {**body, self.messages: messages}

    def _place_of_question(self, body: RequestBody) -> Any:
        """Return the place of the last message of the user; None if there is none."""
        messages = body.get(self.messages)
        places = enumerate(messages) if isinstance(messages, list) else ()
        return max(
            (place for place, turn in places if isinstance(turn, dict) and turn.get("role") == "user"), default=None
        )


class ResponseDialect(ChatDialect):
    """/responses: the input is a text, or items with messages among them. The last event of a stream has the whole."""

    sources = ResponseSources
    messages = "input"
    part = "input_text"

    def texts(self, body: RequestBody) -> list[str]:
        """As `CompletionDialect.texts`."""
        text = body.get("input")
        return [text] if isinstance(text, str) else super().texts(body)

    def with_passages(
        self, body: RequestBody, retrieved: Sequence[Sequence[Passage]], prompt: QuestionPrompt
    ) -> RequestBody:
        """As `CompletionDialect.with_passages`."""
        if isinstance(body["input"], str):
            return {**body, "input": body["input"].join(_around(retrieved[0], prompt)[::2])}
        return super().with_passages(body, retrieved, prompt)

    def answer_texts(self, value: Mapping[str, JsonValue]) -> Iterator[tuple[int, str]]:
        """As `CompletionDialect.answer_texts`."""
        delta = value.get("delta")
        if value.get("type") == "response.output_text.delta" and isinstance(delta, str):
            yield 0, delta
        for item in _objects(value.get("output")):
            yield from (
                (0, part["text"]) for part in _objects(item.get("content")) if isinstance(part.get("text"), str)
            )


DIALECTS: Final[Mapping[str, CompletionDialect]] = {
    "/chat/completions": ChatDialect(),
    "/completions": CompletionDialect(),
    "/responses": ResponseDialect(),
}
"""The dialect of each route whose requests get passages."""


def message_text(content: Any) -> str:
    """Return the text of a message, without other parts."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _prompts(body: RequestBody) -> list[Any]:
    """Return the prompts of a completion; token ids, alone or in a list, are one prompt that is no text."""
    prompt = body.get("prompt")
    return prompt if isinstance(prompt, list) and all(isinstance(text, str) for text in prompt) else [prompt]


def _around(passages: Sequence[Passage], prompt: QuestionPrompt) -> tuple[str, str, str]:
    """Return what a prompt with passages has before and after the message, which stands between."""
    return str(prompt.text(_QUESTION, passages)).partition(_QUESTION)


def _choices_of(value: Mapping[str, JsonValue]) -> list[dict[str, Any]]:
    return _objects(value.get("choices"))


def _objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; none if it is no list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _choice_texts(value: Mapping[str, JsonValue]) -> Iterator[tuple[int, str]]:
    """Yield the texts in an answer or an event, with the numbers of their choices."""
    for choice in _choices_of(value):
        part = next((choice[name] for name in ("message", "delta") if name in choice), choice)
        text = part.get("text" if part is choice else "content") if isinstance(part, dict) else None
        if isinstance(text, str):
            yield _index(choice), text


def _index(choice: dict[str, Any]) -> int:
    index = choice.get("index")
    return max(0, index) if isinstance(index, int) else 0
