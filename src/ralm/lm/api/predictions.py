"""What a server tells of the next token of a text: the token that it writes, and the likeliest ones.

Works on token ids; knows nothing of how a server writes them. Letters of shapes: C tokens that are listed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from ralm.errors import ServerError
from ralm.protocols import Tokenizer
from ralm.records import NOT_LISTED, DoubleArray, FloatArray, IntArray, NextTokens, log_tail_mass

_ABOVE_ZERO: Final = 0.01
"""How far rounding may lift a log-probability above 0."""
_ROUNDING: Final = 0.001
"""How far rounding may set two log-probabilities of one token in one answer apart."""


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The next token of a text.

    `token` is the one that the server wrote, or that stands there in a prompt, and `log_prob` its natural
    log-probability; NaN if the server does not tell it. If its name has several tokens, `token` is `NOT_LISTED`.
    `tokens_C` (int64) and `log_probs_C` (float32) are the tokens that it lists. Any other token has a log-probability
    of at most `rest`.
    """

    token: int
    log_prob: float
    tokens_C: IntArray
    log_probs_C: FloatArray
    rest: float

    def listed(self, token: int) -> float | None:
        """The log-probability of a token; None if it is not listed."""
        places = np.flatnonzero(self.tokens_C == token)
        return float(self.log_probs_C[places[0]]) if len(places) else None

    def of_other_tokens(self) -> "Prediction":
        """The same of a server that split the text into other tokens: it bounds nothing that it does not list."""
        return replace(self, rest=0.0)


Named = tuple[int | None, float]
"""A token that a server lists: its id, or None if the name that it goes by has several, and its log-probability."""


def prediction_of(token: int | None, log_prob: float, listed: Sequence[Named], asked: int) -> Prediction:
    """The prediction of a server that was asked for the `asked` likeliest tokens and lists these, in any order; `token`
    is None if the name that it goes by has several.

    Servers add the token itself if it is not among the likeliest, and lose one of two with the same name. So the lowest
    one listed bounds all others only if there are as many as were asked for; and if a name has several tokens, only
    without the token itself.
    """
    named = {number: value for number, value in listed if number is not None}
    nameless = [value for number, value in listed if number is None]
    if token is None:
        if not any(abs(value - log_prob) <= _ROUNDING for value in nameless):
            nameless.append(log_prob)
    elif abs(named.get(token, log_prob) - log_prob) > _ROUNDING:
        nameless.append(named.pop(token))  # of another token with the same name
    every = np.sort(np.array([*named.values(), *nameless], dtype=np.float32))[::-1]
    added = len(every) != asked or len(nameless) > 0
    counted = every[:-1] if added and len(every) and every[-1] == np.float32(log_prob) else every
    rest = float(log_tail_mass(every[None, :])[0])
    if len(counted) >= asked > 0:
        rest = min(rest, float(counted[asked - 1]))
    rest = max([rest, *nameless])
    if token is not None:
        named.setdefault(token, log_prob)
    return Prediction(
        token=NOT_LISTED if token is None else token,
        log_prob=log_prob,
        tokens_C=np.array([*named], dtype=np.int64),
        log_probs_C=np.array([*named.values()], dtype=np.float32),
        rest=rest,
    )


def text_alone(token: int) -> Prediction:
    """The prediction of a server that gives text alone."""
    return Prediction(token, np.nan, np.array([token], dtype=np.int64), np.full(1, np.nan, dtype=np.float32), np.nan)


def next_tokens_of(predictions: Sequence[Prediction]) -> NextTokens:
    """The predictions of several texts as one record."""
    longest = max(len(one.tokens_C) for one in predictions)
    tokens_BC = np.full((len(predictions), longest), NOT_LISTED, dtype=np.int64)
    log_probs_BC = np.full((len(predictions), longest), -np.inf, dtype=np.float32)
    for row, one in enumerate(predictions):
        tokens_BC[row, : len(one.tokens_C)] = one.tokens_C
        log_probs_BC[row, : len(one.log_probs_C)] = one.log_probs_C
    return NextTokens(log_probs_BC, tokens_BC, np.array([one.rest for one in predictions], dtype=np.float32))


def log_prob_of(value: object, where: str) -> float:
    """A log-probability as a server gives it; ServerError if it is not one."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value <= _ABOVE_ZERO:
        return min(float(value), 0.0)
    raise ServerError(f"{where} gives {value!r} where a log-probability should be.", 200)


def log_probs_of(values: Sequence[object], where: str) -> DoubleArray:
    """The same of many, and faster (float64)."""
    if {*map(type, values)} <= {float, int}:
        found = np.array(values, dtype=np.float64)
        if (found <= _ABOVE_ZERO).all():
            return np.minimum(found, 0)
    return np.array([log_prob_of(value, where) for value in values], dtype=np.float64)


_BY_ID: Final = re.compile(r"token_id:(\d+)")
_PART: Final = "\N{REPLACEMENT CHARACTER}"
"""What a part of a character is decoded as."""
_BEFORE: Final = "a"
"""What stands before a token when it is decoded in a text: some tokenizers write its space only there."""


class TokensByName:
    """The tokens of a vocabulary of `size` ids by name."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        self.size = size

    def id_of(self, name: str) -> int | None:
        """The id of the token that goes by a name; None if several do, or none."""
        by_id = _BY_ID.fullmatch(name)
        return int(by_id[1]) if by_id else self._by_text.get(name)

    def id_of_whole(self, name: str) -> int | None:
        """The same of a server that may leave the parts of characters out of names: None also if the name could be that
        of a token that has such a part."""
        return None if name in self._texts_beside_parts else self.id_of(name)

    @cached_property
    def _texts_beside_parts(self) -> frozenset[str]:
        """What is left of the texts of tokens that have parts of characters."""
        alone = (self._tokenizer.decode(np.array([token], dtype=np.int64)) for token in range(self.size))
        return frozenset(text.replace(_PART, "") for text in alone if _PART in text)

    @cached_property
    def _by_text(self) -> dict[str, int]:
        before = self._tokenizer.encode(_BEFORE)
        indent = len(self._tokenizer.decode(before))
        found: dict[str, int] = {}
        twice = {"", _PART}
        for token in range(self.size):
            alone = np.array([token], dtype=np.int64)
            texts = {self._tokenizer.decode(alone), self._tokenizer.decode(np.concatenate([before, alone]))[indent:]}
            twice |= {text for text in texts if text in found}
            found |= dict.fromkeys(texts, token)
        return {text: token for text, token in found.items() if text not in twice}
