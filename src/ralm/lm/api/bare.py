"""The tokenizer of a model whose server takes text and puts its own special tokens before it."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ralm.errors import ChatError
from ralm.lm.tokenizer import last_of_user
from ralm.protocols import FullTokenizer
from ralm.records import EncodedPiece, IntArray, Message, SpecialTokens

_NONE = np.zeros(0, dtype=np.int64)


class BareTokenizer:
    """A `FullTokenizer` that adds no special tokens. With `messages`, a chat is the message itself: the server puts it
    into the model's chat template."""

    def __init__(self, tokenizer: FullTokenizer, *, messages: bool) -> None:
        self._own = tokenizer
        self._messages = messages
        self.fingerprint = f"{getattr(tokenizer, 'fingerprint', '')} without special tokens"

    @property
    def special_tokens(self) -> SpecialTokens:
        """None: the server adds its own."""
        return SpecialTokens(before=_NONE, after=_NONE, begin=None)

    @property
    def end_token(self) -> int | None:
        """The tokenizer's own."""
        return self._own.end_token

    @property
    def unknown_token(self) -> int | None:
        """The tokenizer's own."""
        return self._own.unknown_token

    def token_of(self, text: str) -> int | None:
        """As the tokenizer."""
        return self._own.token_of(text)

    def encode(self, text: str) -> IntArray:
        """As the tokenizer."""
        return self._own.encode(text)

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        """As the tokenizer."""
        return self._own.encode_with_spans(text)

    def encode_pieces(self, chunks: Iterable[str]) -> Iterator[EncodedPiece]:
        """As the tokenizer."""
        return self._own.encode_pieces(chunks)

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        """Token ids (int64) of a document, cut to `max_tokens`."""
        return self._own.encode(text)[:max_tokens]

    def encode_chat(self, messages: Sequence[Message]) -> tuple[IntArray, IntArray] | None:
        """The ids and spans of a message, or of the chat that a server takes as text; ChatError if a server that takes
        a message is given several."""
        if not self._messages:
            return self._own.encode_chat(messages)
        if len(messages) > 1:
            raise ChatError(
                f"this model is asked with one message of the user, and the chat has {len(messages)}: leave out the "
                "others, or ask a server that takes a prompt as text."
            )
        return self._own.encode_with_spans(messages[last_of_user(messages)].content)

    def decode(self, tokens: IntArray) -> str:
        """As the tokenizer."""
        return self._own.decode(tokens)
