"""Fills in the optional members that a tokenizer lacks, and finds the character spans of tokens by decoding them."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import numpy as np

from ralm.errors import ChatError, ModelError
from ralm.protocols import FullTokenizer, Tokenizer
from ralm.records import IntArray, Message, SpecialTokens

_OPTIONAL_MEMBERS: Final = (
    "special_tokens",
    "end_token",
    "unknown_token",
    "token_of",
    "encode_with_spans",
    "encode_document",
    "encode_chat",
)
_MAX_PENDING: Final = 32
"""The maximum number of tokens that make up one character, or one piece that is found in the text."""

Span = tuple[int, int]


def full_tokenizer(tokenizer: Tokenizer) -> FullTokenizer:
    """Return the tokenizer with all members of `FullTokenizer`; missing ones get their defaults."""
    return tokenizer if isinstance(tokenizer, FullTokenizer) else WithDefaults(tokenizer)


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Return whether the tokenizer can write a chat."""
    return full_tokenizer(tokenizer).encode_chat([Message("user", "?")]) is not None


def last_of_user(messages: Sequence[Message]) -> int:
    """Return the index of the last message of the user; ChatError if there is none."""
    places = [place for place, message in enumerate(messages) if message.role == "user"]
    if not places:
        raise ChatError("the chat has no message of the user: it needs one with the role user.")
    return places[-1]


class WithDefaults:
    """A tokenizer with the optional members of these `names` that it has, and the defaults of all others."""

    special_tokens = SpecialTokens(before=np.zeros(0, dtype=np.int64), after=np.zeros(0, dtype=np.int64), begin=None)
    end_token: int | None = None
    unknown_token: int | None = None

    def __init__(self, tokenizer: Tokenizer, names: Sequence[str] = _OPTIONAL_MEMBERS) -> None:
        self.encode = tokenizer.encode
        self.decode = tokenizer.decode
        # members of the instance take precedence over the defaults of the class
        self.__dict__.update({name: getattr(tokenizer, name) for name in names if hasattr(tokenizer, name)})

    def token_of(self, _: str) -> int | None:
        """Return None, as for a text that is no token."""
        return None

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        """Return the ids of a text, and their spans, found by decoding the tokens."""

        def decode(ids: Sequence[int]) -> str:
            return self.decode(np.array(ids, dtype=np.int64))

        tokens = self.encode(text)
        spans = align(text, tokens.tolist(), decode)
        return tokens, np.array(spans, dtype=np.int64).reshape(-1, 2)

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        """Return the ids of a document with `special_tokens`."""
        special = self.special_tokens
        room = max(0, max_tokens - len(special.before) - len(special.after))
        return np.concatenate([special.before, self.encode(text)[:room], special.after])[:max_tokens]

    def encode_chat(self, messages: Sequence[Message]) -> tuple[IntArray, IntArray] | None:  # noqa: ARG002
        """Return None, as without a chat template."""
        return None


def align(text: str, tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[Span]:
    """Return the span of each token, one for tokens that are text only together; ModelError if there is none."""
    decoded = cache(lambda ids: decode(list(ids)))
    spans: list[Span] = []
    pending: list[int] = []
    at = 0
    for token in tokens:
        pending.append(token)
        if (span := _span_of(decoded(tuple(pending)), text, at)) is not None:
            spans += [span] * len(pending)
            at, pending = span[1], []
        elif len(pending) > _MAX_PENDING:
            break
    if pending or text[at:].strip():
        raise ModelError(
            "the tokenizer returns no character spans, and its tokens do not decode to the text: "
            f"{text[at : at + 40]!r} was not found. Use a model with a fast tokenizer; your own "
            "tokenizer needs `encode_with_spans`."
        )
    return spans


def _span_of(piece: str, text: str, at: int) -> Span | None:
    """Find a piece in a text at a place or after the white space that follows there."""
    after_spaces = at
    while after_spaces < len(text) and text[after_spaces].isspace():
        after_spaces += 1
    for begin, expected in ((at, piece), (after_spaces, piece.strip())):
        there = text[begin : begin + len(expected)]
        if expected and (there == expected or there.lower() == expected):
            return begin, begin + len(expected)
    return None
