"""What every way of asking a server can do, and what some can.

A way turns tokens into the request of one kind of server, and its answer into predictions. It sends nothing itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, Final, ParamSpec, TypeVar

import numpy as np
from pydantic import JsonValue

from ralm.errors import ServerError
from ralm.lm.api.predictions import Prediction
from ralm.lm.api.transport import Asked, JsonObject
from ralm.protocols import FullTokenizer
from ralm.records import IntArray

_Given = ParamSpec("_Given")
_Parsed = TypeVar("_Parsed")
END: Final = -2
"""The token id that means the end of a text, for servers that do not say with which token a text ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way(ABC):
    """A way of asking a server. `likeliest` is how many of the likeliest tokens it is asked for.

    `reads_prompts`: it tells the log-probability of every token of a prompt, and if it `lists_prompts`, the likeliest
    tokens in each place. It tells the log-probabilities of at most `chooses` chosen next tokens in one request.
    `goes_on`: a text may end in what the model wrote before.
    """

    name: ClassVar[str]
    reads_prompts: ClassVar[bool] = False
    lists_prompts: ClassVar[bool] = True
    chooses: ClassVar[int] = 0
    goes_on: ClassVar[bool] = True
    likeliest: int

    @property
    def margin(self) -> int:
        """How many fewer tokens can be read than the server's length: those that it writes, or reads to be told."""
        return 1

    @property
    def takes_ids(self) -> bool:
        """Whether prompts are token ids, so that the server reads any tokens as they are."""
        return True

    @property
    def settings(self) -> dict[str, JsonValue]:
        """What decides the answers, besides the model."""
        return {"way": self.name, "likeliest": self.likeliest}

    @abstractmethod
    def writing(self, text: IntArray, most: int) -> Asked:
        """The request for at most `most` greedy tokens behind a text."""

    @abstractmethod
    def written(self, answer: JsonObject, most: int) -> list[Prediction]:
        """The predictions of the tokens that were written, the last one `ended()` if the text ended there."""

    def next_token(self, answer: JsonObject) -> Prediction:
        """The prediction of the first token that was written, also if it is not known which it is; `ended()` if there
        is none."""
        return next(iter(self.written(answer, 1)), ended())

    @abstractmethod
    def text_of(self, answer: JsonObject) -> str | None:
        """The text that was written, if it can be compared with the tokens."""

    @abstractmethod
    def counted(self, answer: JsonObject) -> int | None:
        """The tokens that the server read, if it tells."""

    def counting(self, text: IntArray) -> Asked:
        """The request to whose answer `counted` finds the tokens of a text."""
        return self.writing(text, 1)

    def keeps(self, text: IntArray) -> bool:  # noqa: ARG002
        """Whether the server reads these tokens and no others: it may be sent text, and split it in its own way."""
        return True

    def reading(self, tokens: IntArray) -> Asked:
        """The request for the log-probabilities of a prompt's tokens."""
        raise NotImplementedError(self.name)

    def read(self, answer: JsonObject, tokens: IntArray, begin: int = 1) -> list[Prediction]:
        """The predictions of the tokens of a prompt from `begin` on, and of the next token if the server tells it."""
        raise NotImplementedError(self.name)

    def scoring(self, tokens: IntArray) -> Asked:
        """The request for the log-probabilities of a prompt's own tokens, with as few others as possible."""
        return self.reading(tokens)

    def scored(self, answer: JsonObject, tokens: IntArray, places: IntArray) -> list[float]:
        """Those of the tokens at some places, in ascending order."""
        begin = int(places[0])
        predictions = self.read(answer, tokens, begin)
        return [predictions[place - begin].log_prob for place in places.tolist()]

    def choosing(self, text: IntArray, tokens: Sequence[int]) -> Asked:
        """The request for the log-probabilities of tokens behind a text, at most `chooses`."""
        raise NotImplementedError(self.name)

    def chosen(self, answer: JsonObject, tokens: Sequence[int]) -> list[float]:
        """Those log-probabilities; NaN where the server tells none."""
        raise NotImplementedError(self.name)


def ended() -> Prediction:
    """The prediction of a server that ends a text without a word on how likely that is: nothing is known."""
    return Prediction(END, -np.inf, np.array([END], dtype=np.int64), np.full(1, -np.inf, dtype=np.float32), 0.0)


def odd(message: str) -> ServerError:
    """The error of an answer that is not what it should be."""
    return ServerError(f"{message.removesuffix('.')}.", 200)


def parses(parse: Callable[_Given, _Parsed]) -> Callable[_Given, _Parsed]:
    """Make a function that reads an answer raise ServerError if the answer has another form than it expects."""

    @wraps(parse)
    def parsed(*arguments: _Given.args, **named: _Given.kwargs) -> _Parsed:
        try:
            return parse(*arguments, **named)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise odd(f"the server's answer has another form than its API says ({error}).") from error

    return parsed


def check_length(predictions: Sequence[object], expected: int, what: str) -> None:
    """Raise ServerError if a server does not tell one log-probability for each token."""
    if len(predictions) != expected:
        raise odd(
            f"the server gives {len(predictions):,} log-probabilities for {expected:,} {what}: figures would be wrong"
        )


def part_of(answer: object, *path: str | int) -> Any:
    """A part of an answer; ServerError if it is not there."""
    found: Any = answer
    for step in path:
        try:
            found = found[step]
        except (LookupError, TypeError):
            where = ".".join(map(str, path))
            raise odd(f"the server's answer has no {where}") from None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptForm:
    """How a prompt is sent: as token ids, or else as text, before which a server may put the token `begin` (a BOS)."""

    tokenizer: FullTokenizer
    as_ids: bool
    begin: int | None = None

    def sent(self, tokens: IntArray) -> JsonValue:
        """A prompt of these tokens.

        Raises ServerError if the server would put a BOS before a text that has none.
        """
        if self.as_ids:
            return tokens.tolist()
        return self.tokenizer.decode(self._behind_bos(tokens))

    def keeps(self, tokens: IntArray) -> bool:
        """Whether a server reads these tokens as they are: it may split a text into others, and wants one at all."""
        if self.as_ids:
            return True
        behind = self._behind_bos(tokens)
        return len(behind) > 0 and np.array_equal(self.tokenizer.encode(self.tokenizer.decode(behind)), behind)

    def _behind_bos(self, tokens: IntArray) -> IntArray:
        """The tokens without the BOS that the server puts before them."""
        if self.begin is None:
            return tokens
        if len(tokens) == 0 or tokens[0] != self.begin:
            raise ServerError(
                "the server takes text and puts a BOS before it, and this prompt has none: read with `bos` always."
            )
        return tokens[1:]
