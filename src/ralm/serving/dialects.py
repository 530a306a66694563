"""Where the bodies of OpenAI's API have their texts: chats, completions and responses.

A dialect finds the texts that passages are searched for, puts the passages before them, and reads the texts and counts
of answers. All else of a body stays as it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from pydantic import JsonValue

from ralm.answering.prompts import QuestionPrompt
from ralm.records import Passage
from ralm.serving.text_sources import ResponseSources, TextSources, choice_texts, objects

RequestBody: TypeAlias = dict[str, Any]
_QUESTION: Final = "\0"
"""Stands for the message in a prompt, which may have parts that are no text."""


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
        return choice_texts(value)


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
        for item in objects(value.get("output")):
            yield from ((0, part["text"]) for part in objects(item.get("content")) if isinstance(part.get("text"), str))


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
