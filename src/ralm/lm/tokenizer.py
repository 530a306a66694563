"""Defaults for the optional members of `FullTokenizer` that a tokenizer does not have.

Works on text and token ids; knows no particular tokenizer.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from ralm.errors import ChatError
from ralm.lm.alignment import align
from ralm.protocols import FullTokenizer, Tokenizer
from ralm.records import EncodedPiece, IntArray, Message, SpecialTokens

_NONE: Final = SpecialTokens(before=np.zeros(0, dtype=np.int64), after=np.zeros(0, dtype=np.int64), begin=None)


def full_tokenizer(tokenizer: Tokenizer) -> FullTokenizer:
    """The tokenizer with all members of `FullTokenizer`; missing ones get the defaults that their docstrings name."""
    return tokenizer if isinstance(tokenizer, FullTokenizer) else _Filled(tokenizer)


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer can write a chat."""
    return full_tokenizer(tokenizer).encode_chat([Message("user", "?")]) is not None


def last_of_user(messages: Sequence[Message]) -> int:
    """The place of the last message of the user; ChatError if there is none."""
    places = [place for place, one in enumerate(messages) if one.role == "user"]
    if not places:
        raise ChatError("the chat has no message of the user: it needs one with the role user.")
    return places[-1]


class _Filled:
    """A tokenizer that lacks some of the optional members, with their defaults."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._own = tokenizer

    def encode(self, text: str) -> IntArray:
        return self._own.encode(text)

    def decode(self, tokens: IntArray) -> str:
        return self._own.decode(tokens)

    @property
    def special_tokens(self) -> SpecialTokens:
        special: SpecialTokens = getattr(self._own, "special_tokens", _NONE)
        return special

    @property
    def end_token(self) -> int | None:
        return getattr(self._own, "end_token", None)

    @property
    def unknown_token(self) -> int | None:
        return getattr(self._own, "unknown_token", None)

    def token_of(self, text: str) -> int | None:
        own = getattr(self._own, "token_of", None)
        return None if own is None else own(text)

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        own = getattr(self._own, "encode_with_spans", None)
        if own is not None:
            found: tuple[IntArray, IntArray] = own(text)
            return found
        tokens = self.encode(text)
        spans = align(text, tokens.tolist(), self._decoded, unknown=self.unknown_token, mark="")
        return tokens, np.array(spans, dtype=np.int64).reshape(-1, 2)

    def encode_pieces(self, chunks: Iterable[str]) -> Iterator[EncodedPiece]:
        own = getattr(self._own, "encode_pieces", None)
        if own is not None:
            yield from own(chunks)
            return
        text = "".join(chunks)
        tokens, spans_N2 = self.encode_with_spans(text)
        yield EncodedPiece(text=text, tokens=tokens, spans_N2=spans_N2)

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        own = getattr(self._own, "encode_document", None)
        if own is not None:
            document: IntArray = own(text, max_tokens)
            return document
        special = self.special_tokens
        room = max(0, max_tokens - len(special.before) - len(special.after))
        return np.concatenate([special.before, self.encode(text)[:room], special.after])[:max_tokens]

    def encode_chat(self, messages: Sequence[Message]) -> tuple[IntArray, IntArray] | None:
        own = getattr(self._own, "encode_chat", None)
        return None if own is None else own(messages)

    def _decoded(self, ids: Sequence[int]) -> str:
        return self._own.decode(np.array(ids, dtype=np.int64))
