"""Prompts as token ids that fit into the model, and what was cut of them.

Works on texts and tokenizers; knows nothing of how passages are found or answers are drawn.
"""

from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.answering.conversation import Conversation
from ralm.answering.prompts import PromptText, QuestionPrompt
from ralm.errors import ChatError, LengthError
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import Tokenizer
from ralm.reading.tokens import first_tokens
from ralm.records import IntArray, Message

_SAMPLE: Final = (Message("user", "Who?"),)
_READ_BEHIND: Final = 8
"""How many tokens of a prompt are read with a text that goes on behind it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How many tokens of a prompt's parts were cut because it did not fit; the question itself is never cut."""

    demonstrations: int = 0
    documents: int = 0

    def __bool__(self) -> bool:
        return bool(self.demonstrations or self.documents)


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A prompt as token ids (int64), special tokens first, and what was cut of it."""

    tokens: IntArray
    cut: Cut


class PromptEncoder:
    """Encodes prompts into at most `room` tokens; what is too much is cut at the beginning of the text.

    With `keep_first` the special tokens that the text begins with stay. In-Context RALM's code cuts them as well. With
    `chat`, a prompt is the message of a user, and the tokens of the chat around it stay too.
    """

    def __init__(self, tokenizer: Tokenizer, room: int, *, keep_first: bool = True, chat: bool = False) -> None:
        self._tokenizer = full_tokenizer(tokenizer)
        self._first = first_tokens(tokenizer, "auto")
        self._room = room
        self._keep_first = keep_first
        self._chat = chat

    def encode(
        self,
        prompt: PromptText,
        demonstrations: str = "",
        name: str = "the question",
        conversation: Conversation | None = None,
    ) -> Encoded:
        """The tokens of a prompt behind its demonstrations; of a chat, as the message that is answered in a
        conversation, or else as the only one.

        Raises LengthError, naming the question, if the part of the prompt that asks it does not fit alone; ChatError
        if a prompt without a chat is given other messages, or a model has no chat template or refuses them.
        """
        before, documents = len(demonstrations), len(demonstrations) + len(prompt.documents)
        tokens, spans_N2 = self._encoded(demonstrations + str(prompt), conversation)
        first = int(np.searchsorted(spans_N2[:, 1], 0, side="right"))
        excess = len(tokens) - self._room
        if excess <= 0:
            return Encoded(tokens, Cut())
        dropped = excess if self._keep_first else max(0, excess - first)
        in_demonstrations = int(np.searchsorted(spans_N2[:, 1], before, side="right")) - first
        in_documents = int(np.searchsorted(spans_N2[:, 1], documents, side="right")) - first
        if dropped > in_documents:
            kept = first if self._keep_first else 0
            if conversation is not None and not conversation.is_one_message:
                name, first, kept = "the conversation", 0, 0
            raise LengthError(
                f"{name} has {len(tokens) - first - in_documents} tokens with its instructions, and only "
                f"{max(0, self._room - kept)} fit into the model beside the answer: shorten it."
            )
        cut = Cut(min(dropped, in_demonstrations), max(0, dropped - in_demonstrations))
        left = tokens[:first] if self._keep_first else tokens[min(excess, first) : first]
        return Encoded(np.concatenate([left, tokens[first + dropped :]]), cut)

    def _encoded(self, text: str, conversation: Conversation | None) -> tuple[IntArray, IntArray]:
        """The tokens of a prompt and their spans; those that it begins with have empty spans at 0."""
        if self._chat:
            chat = Conversation.of(text) if conversation is None else conversation.asking(text)
            return self._of_chat(chat)
        if conversation is not None and not conversation.is_one_message:
            raise ChatError(
                f"the conversation has {len(conversation.messages)} messages, and this prompt asks one question: give "
                "one message of the user, or choose a `prompt` with `chat = true`."
            )
        tokens, spans_N2 = self._tokenizer.encode_with_spans(text)
        spans_of_first = np.zeros((len(self._first), 2), dtype=np.int64)
        return np.concatenate([self._first, tokens]), np.concatenate([spans_of_first, spans_N2])

    def _of_chat(self, conversation: Conversation) -> tuple[IntArray, IntArray]:
        encoded = self._tokenizer.encode_chat(conversation.messages)
        if encoded is None:
            raise ChatError(
                "the tokenizer of this model has no chat template, which this prompt needs: choose another `prompt`."
            )
        return encoded


def prompt_config(prompt: QuestionPrompt, tokenizer: Tokenizer) -> dict[str, JsonValue]:
    """Everything about a prompt that decides its tokens; of a chat template, a hash of what it writes."""
    written = full_tokenizer(tokenizer).encode_chat(_SAMPLE) if prompt.chat else None
    template = None if written is None else blake2b(written[0].tobytes(), digest_size=8).hexdigest()
    return {**asdict(prompt), "chat_template": template}


def tokens_behind(prompt: IntArray, text: str, tokenizer: Tokenizer) -> IntArray:
    """The token ids (int64) of a text as it goes on behind a prompt (int64).

    A text alone may have others: SentencePiece begins it with a space of its own.
    """
    before = tokenizer.decode(prompt[-_READ_BEHIND:])
    begin, whole = tokenizer.encode(before), tokenizer.encode(before + text)
    goes_on = np.array_equal(whole[: len(begin)], begin)
    return whole[len(begin) :] if goes_on else tokenizer.encode(text)
