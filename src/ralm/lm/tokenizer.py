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
        spans = align(text, tokens.tolist(), decode, unknown=self.unknown_token, mark="")
        return tokens, np.array(spans, dtype=np.int64).reshape(-1, 2)

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        """Return the ids of a document with `special_tokens`."""
        special = self.special_tokens
        room = max(0, max_tokens - len(special.before) - len(special.after))
        return np.concatenate([special.before, self.encode(text)[:room], special.after])[:max_tokens]

    def encode_chat(self, messages: Sequence[Message]) -> tuple[IntArray, IntArray] | None:  # noqa: ARG002
        """Return None, as without a chat template."""
        return None


def align(
    text: str,
    tokens: Sequence[int],
    decode: Callable[[Sequence[int]], str],
    *,
    unknown: int | None,
    mark: str,
) -> list[Span]:
    """Return the span of each token, one for tokens that are text only together; ModelError if there is none."""
    alignment = _Alignment(text, decode, unknown, mark)
    for token in tokens:
        alignment.add(token)
    return alignment.finish()


class _Alignment:
    """The tokens of a text that were added so far, and their spans."""

    def __init__(self, text: str, decode: Callable[[Sequence[int]], str], unknown: int | None, mark: str) -> None:
        self._text = text
        self._unknown = unknown
        self._mark = mark
        self._decoded = cache(lambda tokens: decode(list(tokens)))
        self._spans: list[Span] = []
        self._at = 0
        """The first character after the tokens that have a span."""
        self._gap = 0
        """The number of unknown tokens that follow them."""
        self._pending: list[int] = []
        """The tokens after those, whose text was not found yet."""

    def add(self, token: int) -> None:
        if token == self._unknown and self._gap:
            self._gap += 1
            return
        self._pending.append(token)
        decoded = self._decoded(tuple(self._pending))
        without_mark = [decoded.removesuffix(self._mark)] if self._mark and decoded.endswith(self._mark) else []
        for piece in filter(None, (*without_mark, decoded)):
            if (span := self._span_of(piece)) is not None:
                self._close_gap(span[0])
                self._spans += [span] * len(self._pending)
                self._at, self._pending = span[1], []
                return
        if token == self._unknown and len(self._pending) == 1:
            self._gap, self._pending = self._gap + 1, []
        elif len(self._pending) > _MAX_PENDING:
            raise self._error()

    def finish(self) -> list[Span]:
        """Return the spans of all tokens; ModelError if tokens are pending or text other than white space is left."""
        self._close_gap(len(self._text))
        if self._pending or self._text[self._at :].strip():
            raise self._error()
        return self._spans

    def _span_of(self, piece: str) -> Span | None:
        """Find a piece: next, after white space, or after the unknown tokens of at least one character each."""
        if self._gap:
            begin = self._text.find(piece.strip() or piece, self._at + self._gap)
            return None if begin < 0 else (begin, begin + len(piece.strip() or piece))
        after_spaces = self._at
        while after_spaces < len(self._text) and self._text[after_spaces].isspace():
            after_spaces += 1
        for begin, expected in ((self._at, piece), (after_spaces, piece.strip())):
            there = self._text[begin : begin + len(expected)]
            if expected and (there == expected or there.lower() == expected):
                return begin, begin + len(expected)
        return None

    def _close_gap(self, end: int) -> None:
        """Give the unknown tokens the text between their neighbours: a character each, or else all of it together."""
        if self._gap:
            between = range(self._at, end)
            characters = [at for at in between if not self._text[at].isspace()] or list(between)
            if not characters:
                raise self._error()
            each = [(at, at + 1) for at in characters]
            self._spans += each if len(each) == self._gap else [(characters[0], characters[-1] + 1)] * self._gap
            self._at, self._gap = end, 0

    def _error(self) -> ModelError:
        return ModelError(
            "the tokenizer returns no character spans, and its tokens do not decode to the text: "
            f"{self._text[self._at : self._at + 40]!r} was not found. Use a model with a fast tokenizer; your own "
            "tokenizer needs `encode_with_spans`."
        )
