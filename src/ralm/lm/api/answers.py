"""What answers of servers say: a prediction of the next token of a text, the generated token and the most likely ones.

Servers name tokens as `token_id:17` or by their text; `ServerTokenNames` finds the ids. An answer that says something
else is a ServerError of one sentence. C listed tokens, B texts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Final, ParamSpec, TypeGuard, TypeVar

import numpy as np
from pydantic import JsonValue

from ralm.errors import ServerError
from ralm.protocols import Tokenizer
from ralm.records import NOT_LISTED, DoubleArray, FloatArray, IntArray, NextTokens, log_tail_mass

END: Final = -2
"""The token id that stands for the end of a text if a server does not name the token that ended it."""
_ABOVE_ZERO: Final = 0.01
"""How far rounding may lift a log-probability above 0."""
_ROUNDING: Final = 0.001
"""How far rounding may separate two log-probabilities of one token in one answer."""
_BY_ID: Final = re.compile(r"token_id:(\d+)")
_PART: Final = "\N{REPLACEMENT CHARACTER}"
"""The text that part of a character decodes to."""
_BEFORE: Final = "a"
"""Text before a token that is decoded: some tokenizers write the token's space only after other text."""
_LARGEST_COUNT: Final = 1 << 53
_COUNTS: Final = (
    ("usage", "prompt_tokens", "completion_tokens"),  # OpenAI's API
    ("usage", "input_tokens", "output_tokens"),  # its responses
    (None, "tokens_evaluated", "tokens_predicted"),  # llama.cpp's own
)
"""The object in an answer with its counts of tokens, and its fields for tokens in and out."""


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The next token of a text, and those that a server lists (`tokens_C` int64, `log_probs_C` float32).

    `log_prob` is NaN if the server returns none. Any token that is not listed has a log-probability of at most `rest`.
    """

    token: int
    log_prob: float
    tokens_C: IntArray
    log_probs_C: FloatArray
    rest: float

    def listed(self, token: int) -> float | None:
        """Return the log-probability of a token; None if it is not listed."""
        places = np.flatnonzero(self.tokens_C == token)
        return float(self.log_probs_C[places[0]]) if len(places) else None


def build_prediction(
    token: int, log_prob: float, listed: Sequence[tuple[int | None, float]], requested: int
) -> Prediction:
    """Return the prediction of a server that lists these tokens, in any order, when `requested` were requested.

    An id is None if the token's name stands for several tokens. Servers add the token itself if it is not among the
    top, and drop one of two tokens with the same name. So the lowest listed value bounds all others only if as many
    are listed as were requested; and if a name is ambiguous, only without the token itself.
    """
    by_id = {number: value for number, value in listed if number is not None}
    nameless = [value for number, value in listed if number is None]
    if abs(by_id.get(token, log_prob) - log_prob) > _ROUNDING:
        nameless.append(by_id.pop(token))  # of another token with the same name
    every = np.sort(np.array([*by_id.values(), *nameless], dtype=np.float32))[::-1]
    added = len(every) != requested or len(nameless) > 0
    top = every[:-1] if added and len(every) and every[-1] == np.float32(log_prob) else every
    rest = float(log_tail_mass(every[None, :])[0])
    if len(top) >= requested > 0:
        rest = min(rest, float(top[requested - 1]))
    rest = max([rest, *nameless])
    by_id.setdefault(token, log_prob)
    return Prediction(
        token=token,
        log_prob=log_prob,
        tokens_C=np.array([*by_id], dtype=np.int64),
        log_probs_C=np.array([*by_id.values()], dtype=np.float32),
        rest=rest,
    )


def lone_prediction(token: int, log_prob: float = np.nan, rest: float = np.nan) -> Prediction:
    """Return the prediction of a server that lists no other token; by default of one that returns only text."""
    alone = np.array([token], dtype=np.int64)
    return Prediction(token, log_prob, alone, np.full(1, log_prob, dtype=np.float32), rest)


END_PREDICTION: Final = lone_prediction(END, -np.inf, 0.0)
"""The prediction for a text that ended without a log-probability: nothing else is known."""


def merge_predictions(predictions: Sequence[Prediction]) -> NextTokens:
    """Return the predictions of several texts as one record."""
    longest = max(len(prediction.tokens_C) for prediction in predictions)
    tokens_BC = np.full((len(predictions), longest), NOT_LISTED, dtype=np.int64)
    log_probs_BC = np.full((len(predictions), longest), -np.inf, dtype=np.float32)
    for row, prediction in enumerate(predictions):
        tokens_BC[row, : len(prediction.tokens_C)] = prediction.tokens_C
        log_probs_BC[row, : len(prediction.log_probs_C)] = prediction.log_probs_C
    rest_B = np.array([prediction.rest for prediction in predictions], dtype=np.float32)
    return NextTokens(log_probs_BC, tokens_BC, rest_B)


def unexpected(message: str) -> ServerError:
    """Return the error of an answer with unexpected content."""
    return ServerError(f"{message.removesuffix('.')}.", 200)


_Arguments = ParamSpec("_Arguments")
_Parsed = TypeVar("_Parsed")


def parsing(parse: Callable[_Arguments, _Parsed]) -> Callable[_Arguments, _Parsed]:
    """Make a function that parses an answer raise ServerError if the answer has an unexpected format."""

    @wraps(parse)
    def parsed(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Parsed:
        try:
            return parse(*arguments, **options)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise unexpected(f"unexpected response format ({error}).") from error

    return parsed


def answer_field(answer: object, *path: str | int) -> Any:
    """Return the part of an answer at a path; ServerError if it is missing."""
    part: Any = answer
    for step in path:
        try:
            part = part[step]
        except (LookupError, TypeError):
            raise unexpected(f"the server's answer has no {'.'.join(map(str, path))}") from None
    return part


def expect_length(values: Sequence[object], expected: int, what: str) -> None:
    """Raise ServerError unless a server returns one log-probability for each token."""
    if len(values) != expected:
        raise unexpected(f"the server returns {len(values):,} log-probabilities for {expected:,} {what}")


def parse_log_prob(value: object, where: str) -> float:
    """Return a log-probability in an answer; ServerError if it is not one."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value <= _ABOVE_ZERO:
        return min(float(value), 0.0)
    raise ServerError(f"{where} gives {value!r} where a log-probability should be.", 200)


def parse_log_probs(values: Sequence[object], where: str) -> DoubleArray:
    """Return log-probabilities (float64) in an answer, parsed at once; ServerError if one is invalid."""
    if {*map(type, values)} <= {float, int}:
        log_probs = np.array(values, dtype=np.float64)
        if (log_probs <= _ABOVE_ZERO).all():
            return np.minimum(log_probs, 0)
    return np.array([parse_log_prob(value, where) for value in values], dtype=np.float64)


def tokens_in_answer(answer: Mapping[str, JsonValue]) -> tuple[int, int] | None:
    """Return the tokens in (of the prompt) and out (generated) as the server counted them, or None."""
    for inside, into, out in _COUNTS:
        counts = answer if inside is None else answer.get(inside)
        if isinstance(counts, Mapping) and _is_count(read := counts.get(into)):
            written = counts.get(out)
            return read, written if _is_count(written) else 0
    return None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT


class ServerTokenNames:
    """The ids of a vocabulary of `size` tokens by name."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self.tokenizer = tokenizer
        self.size = size

    def id_of(self, name: str) -> int | None:
        """Return the id of the token with this name; None if no token or several have it."""
        by_id = _BY_ID.fullmatch(name)
        return int(by_id[1]) if by_id else self._by_text.get(name)

    def unambiguous_id(self, name: str) -> int | None:
        """Return `id_of`; None if a server that leaves parts of characters out may mean a token with such a part."""
        return None if name in self._texts_without_parts else self.id_of(name)

    @cached_property
    def _texts_without_parts(self) -> frozenset[str]:
        """Return the texts of tokens with parts of characters, without these parts."""
        alone = (self.tokenizer.decode(np.array([token], dtype=np.int64)) for token in range(self.size))
        return frozenset(text.replace(_PART, "") for text in alone if _PART in text)

    @cached_property
    def _by_text(self) -> dict[str, int]:
        before = self.tokenizer.encode(_BEFORE)
        indent = len(self.tokenizer.decode(before))
        ids: dict[str, int] = {}
        twice = {"", _PART}
        for token in range(self.size):
            alone = np.array([token], dtype=np.int64)
            texts = {self.tokenizer.decode(alone), self.tokenizer.decode(np.concatenate([before, alone]))[indent:]}
            twice |= {text for text in texts if text in ids}
            ids |= dict.fromkeys(texts, token)
        return {text: token for text, token in ids.items() if text not in twice}
