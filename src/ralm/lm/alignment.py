"""The character spans of the tokens of a text, for tokenizers that do not give them: found by decoding the tokens.

Works on a text, token ids and a function that decodes them; knows no tokenizer.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from ralm.errors import ModelError

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
