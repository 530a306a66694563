"""What can go wrong with one request to a scripted server, each a fault that a test puts in its script."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ralm.records import FloatArray
from tests.api.backings import Backing
from tests.api.writing import Reply, Row


class Fault:
    """Nothing goes wrong; each fault overrides what it changes."""

    seconds: float = 0
    """How long the server waits before it answers."""
    ignores_echo: ClassVar[bool] = False
    """Whether the prompt is left out of the answer, whatever was asked."""
    adds_begin: ClassVar[bool] = False
    """Whether a BOS is put in front of every prompt, token ids included."""

    def instead(self, failure: Callable[[int], Any]) -> Reply | None:
        """What is sent without an answer being computed; `failure` gives the provider's body of a status."""
        return None

    def sent(self, reply: Reply) -> Reply:
        """What is sent of an answer."""
        return reply

    def backing(self, backing: Backing) -> Backing:
        """The model that answers."""
        return backing

    def prompt_rows(self, rows: list[Row]) -> list[Row]:
        """What is told of the tokens of the prompt."""
        return rows


@dataclass(frozen=True)
class Status(Fault):
    """An error with the provider's own body, or with `body`; `retry_after` is seconds."""

    status: int
    retry_after: float | None = None
    body: Any = None

    def instead(self, failure: Callable[[int], Any]) -> Reply | None:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return Reply(failure(self.status) if self.body is None else self.body, self.status, headers)


@dataclass(frozen=True)
class Slow(Fault):
    """The answer comes after some seconds: a time-out, if the client is less patient."""

    seconds: float = 60


@dataclass(frozen=True)
class Cut(Fault):
    """The connection is cut after so many bytes of the answer's body; None: before its headers."""

    after: int | None = None

    def sent(self, reply: Reply) -> Reply:
        return replace(reply, cut_after=-1 if self.after is None else self.after)


@dataclass(frozen=True)
class Raw(Fault):
    """What is sent is made from the body of the answer: bytes, and seconds to wait."""

    play: Callable[[bytes], Iterator[bytes | float]]

    def sent(self, reply: Reply) -> Reply:
        return replace(reply, raw=self.play)


@dataclass(frozen=True)
class HtmlPage(Fault):
    """A proxy's page in place of an answer."""

    status: int = 502

    def instead(self, failure: Callable[[int], Any]) -> Reply | None:
        page = f"<html><head><title>{self.status}</title></head><body><h1>Bad Gateway</h1></body></html>"
        return Reply(page.encode(), self.status, {"Content-Type": "text/html"})


class EchoIgnored(Fault):
    """The prompt is left out of the answer without a word."""

    ignores_echo = True


class BeginAdded(Fault):
    """A BOS (the model's, else token 0) is put in front of every prompt without a word."""

    adds_begin = True


class OneShort(Fault):
    """The last token of the prompt is missing from the log-probabilities."""

    def prompt_rows(self, rows: list[Row]) -> list[Row]:
        return rows[:-1]


class OneLong(Fault):
    """The last token of the prompt is told twice."""

    def prompt_rows(self, rows: list[Row]) -> list[Row]:
        return [*rows, *rows[-1:]]


class NoFirstNull(Fault):
    """The log-probabilities begin with those of the second token, where null should stand for the first."""

    def prompt_rows(self, rows: list[Row]) -> list[Row]:
        return rows[1:]


@dataclass(frozen=True)
class InTheMiddle(Fault):
    """The log-probability of the token in the middle of the prompt is this: NaN, null or more than 0."""

    log_prob: float | None

    def prompt_rows(self, rows: list[Row]) -> list[Row]:
        middle = len(rows) // 2
        return [*rows[:middle], replace(rows[middle], log_prob=self.log_prob), *rows[middle + 1 :]]


@dataclass(frozen=True)
class SameText(Fault):
    """The token `second` is spelled as `first`, so that a dictionary of texts loses one of them."""

    first: int
    second: int

    def backing(self, backing: Backing) -> Backing:
        return _Changed(backing, named={self.second: self.first})


class Warmer(Fault):
    """Figures that moved, as those of a prompt cache do."""

    def backing(self, backing: Backing) -> Backing:
        return _Changed(backing, factor=1.01)


NO_FAULT = Fault()


class _Changed:
    """A model whose log-probabilities or names of tokens were changed."""

    def __init__(
        self,
        backing: Backing,
        named: dict[int, int] | None = None,
        factor: float = 1.0,
    ) -> None:
        self._backing = backing
        self._named = named or {}
        self._factor = factor
        self.tokenizer = backing.tokenizer
        self.max_length = backing.max_length
        self.vocabulary = backing.vocabulary
        self.end_tokens = backing.end_tokens

    def log_probs(self, tokens: Sequence[int]) -> FloatArray:
        return self._backing.log_probs(tokens) * np.float32(self._factor)

    def piece(self, token: int) -> bytes:
        return self._backing.piece(self._named.get(token, token))
