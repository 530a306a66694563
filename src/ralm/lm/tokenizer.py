"""Fills in the optional members that a tokenizer lacks, and finds the character spans of tokens by decoding them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Final

import numpy as np

from ralm.errors import ChatError, ModelError
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


_LONGEST: Final = 32
"""The most tokens that may together make up one character, or one piece that can be found in the text."""

Span = tuple[int, int]


def align(
    text: str, tokens: Sequence[int], decode: Callable[[Sequence[int]], str], *, unknown: int | None, mark: str
) -> list[Span]:
    """The first and one past the last character of each token.

    Tokens that are text only together, such as the bytes of a character, share a span. White space that no token
    decodes to lies between two spans. `mark` ends a token if its word continues. The `unknown` token covers the text
    between its neighbours.

    Raises ModelError if the tokens do not decode to the text; lower case for upper case is allowed.
    """
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
        """How many unknown tokens follow them."""
        self._pending: list[int] = []
        """The tokens after those, which are not text yet."""

    def add(self, token: int) -> None:
        """Find the text of the pending tokens and this one."""
        if token == self._unknown and self._gap:
            self._gap += 1
            return
        self._pending.append(token)
        for piece in self._pieces():
            if (span := self._found(piece)) is not None:
                self._close_gap(span[0])
                self._spans += [span] * len(self._pending)
                self._at, self._pending = span[1], []
                return
        if token == self._unknown and len(self._pending) == 1:
            self._gap, self._pending = self._gap + 1, []
        elif len(self._pending) > _LONGEST:
            raise self._refusal()

    def finish(self) -> list[Span]:
        """The spans of all tokens; ModelError if tokens are pending or text other than white space is left."""
        self._close_gap(len(self._text))
        if self._pending or self._text[self._at :].strip():
            raise self._refusal()
        return self._spans

    def _pieces(self) -> list[str]:
        """The texts that the pending tokens may stand for."""
        decoded = self._decoded(tuple(self._pending))
        goes_on = self._mark and decoded.endswith(self._mark)
        return [piece for piece in (decoded.removesuffix(self._mark) if goes_on else "", decoded) if piece]

    def _found(self, piece: str) -> Span | None:
        """The span of a piece: next, after white space, or after the unknown tokens, which have at least one character
        each."""
        if self._gap:
            begin = self._text.find(piece.strip() or piece, self._at + self._gap)
            return None if begin < 0 else (begin, begin + len(piece.strip() or piece))
        for begin, wanted in ((self._at, piece), (self._after_spaces(), piece.strip())):
            there = self._text[begin : begin + len(wanted)]
            if wanted and (there == wanted or there.lower() == wanted):
                return begin, begin + len(wanted)
        return None

    def _after_spaces(self) -> int:
        at = self._at
        while at < len(self._text) and self._text[at].isspace():
            at += 1
        return at

    def _close_gap(self, end: int) -> None:
        """Give the unknown tokens the text between their neighbours: one character each if that fits, else all of it
        together."""
        if self._gap:
            between = range(self._at, end)
            places = [at for at in between if not self._text[at].isspace()] or list(between)
            if not places:
                raise self._refusal()
            each = [(at, at + 1) for at in places]
            self._spans += each if len(each) == self._gap else [(places[0], places[-1] + 1)] * self._gap
            self._at, self._gap = end, 0

    def _refusal(self) -> ModelError:
        return ModelError(
            "the tokenizer gives no character spans, and its tokens do not decode to the text: "
            f"{self._text[self._at : self._at + 40]!r} was not found. Take a model with a fast tokenizer; your own "
            "tokenizer needs `encode_with_spans`."
        )
