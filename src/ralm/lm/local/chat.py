"""Writes chats in the chat template of a tokenizer, and finds the span of each message in the text.

To find the messages, they are written a second time between marks: if the text without the marks is the same, each
message stands where its marks were.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from transformers import PreTrainedTokenizerBase

from ralm.errors import ChatError, ModelError, installed_version, short_message
from ralm.lm.tokenizer import Span
from ralm.records import Message

_KEY_BYTES: Final = 8
_ASSISTANT: Final = "assistant"
_FIRST, _LAST, _WITHIN = "0", "1", "2"
"""The kinds of marks."""
_AFTER_THOUGHTS: Final = re.compile(r"[>)}\]]\s*(?=\S)")
"""The possible end of thoughts: a bracket, such as that of </think>, and white space."""


@dataclass(frozen=True, slots=True)
class WrittenChat:
    """A chat as text, and the span of each message in it, without the white space around the message."""

    text: str
    spans: Sequence[Span]


def chat_with_spans(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], arguments: Mapping[str, Any]
) -> WrittenChat:
    """Write a chat up to the model's answer; ChatError if the template rejects, leaves out or changes a message."""

    def chat_text(chat: Sequence[Message]) -> str:
        failure = "the chat template of this model rejects these messages"
        return write_chat(
            tokenizer, [asdict(message) for message in chat], failure, add_generation_prompt=True, **arguments
        )

    marks = _Marks(messages)
    for _ in range(2):  # a template may write the date, which changes at midnight
        written = marks.remove_from(chat_text(marks.marked))
        if written.text == chat_text(messages):
            return written
    raise ChatError(
        "the chat template of this model treats these messages in a special way: word them differently, or choose "
        "another `prompt`."
    )


class _Marks:
    """Marks around messages, which no message contains, and in those of the assistant after possible thoughts."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        contents = "\0".join(message.content for message in messages)
        digest = blake2b(contents.encode("utf-8", "replace"), digest_size=_KEY_BYTES)
        self._key = int.from_bytes(digest.digest())

    @property
    def marked(self) -> list[Message]:
        return [replace(message, content=self._marked(place, message)) for place, message in enumerate(self._messages)]

    def _marked(self, place: int, message: Message) -> str:
        words = message.content.strip()
        if not words:
            return message.content
        first, last, within = (f"~{self._key}.{place}.{kind}~" for kind in (_FIRST, _LAST, _WITHIN))
        if message.role == _ASSISTANT:
            words = _AFTER_THOUGHTS.sub(lambda match: match[0] + within, words)
        return message.content.replace(message.content.strip(), f"{first}{words}{last}")

    def remove_from(self, text: str) -> WrittenChat:
        """Return the text without the marks, and the spans between them; ChatError if a message is not there."""
        parts = re.split(rf"~{self._key}\.(\d+)\.(\d)~", text)
        positions: dict[tuple[int, str], list[int]] = {}
        length = len(parts[0])
        for place, kind, following in zip(map(int, parts[1::3]), parts[2::3], parts[3::3], strict=True):
            positions.setdefault((place, kind), []).append(length)
            length += len(following)
        bare = "".join(parts[::3])
        return WrittenChat(bare, [self._span(place, bare, positions) for place in range(len(self._messages))])

    def _span(self, place: int, text: str, positions: Mapping[tuple[int, str], Sequence[int]]) -> Span:
        message = self._messages[place]
        words = message.content.strip()
        if not words:
            return 0, 0
        name = f"the message {message.content[:40]!r} (number {place + 1}, {message.role})"
        first, within, last = (positions.get((place, kind), []) for kind in (_FIRST, _WITHIN, _LAST))
        if not (first or within or last):
            remedy = "choose another `prompt`" if message.role == "user" else "put it into a message of the user"
            raise ChatError(f"the chat template of this model leaves out {name}: {remedy}.")
        begins = [*first, *within]
        if len(last) == 1 and begins and len(first) <= 1:
            begin, end = min(begins), last[0]
            if text[begin:end] == words or (message.role == _ASSISTANT and begin <= end):
                return begin, end
        raise ChatError(
            f"the chat template of this model changes {name}: word it differently, or choose another `prompt`."
        )


def write_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]], failure: str, **how: Any) -> str:
    """Write messages in the tokenizer's chat template; ChatError, which begins with `failure`, if it fails."""
    try:
        # Private: the keywords of transformers' chat templates; a test of its signature.
        written = tokenizer.apply_chat_template(messages, tokenize=False, **how)
    except Exception as error:  # a template is a program of its own, with any error
        raise ChatError(f"{failure}: {short_message(error)}.") from error
    if not isinstance(written, str):
        raise ModelError(
            f"{installed_version('transformers')} returned a chat as {type(written).__name__}, not as text: this is a "
            "fault of ralm, please report it."
        )
    return written
