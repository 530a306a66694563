"""What a server reads and writes, before any dialect: rows of log-probabilities of a prompt and of new tokens, replies.

V vocabulary.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from ralm.records import FloatArray
from tests.api.backings import Backing

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """A status, headers and a body: bytes or a text as they are, anything else as JSON.

    It is sent after some seconds, and only `cut_after` bytes of its body; -1: not even the headers. `raw` makes what is
    sent instead of it from its body: bytes, and seconds to wait.
    """

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    cut_after: int | None = None
    raw: Callable[[bytes], Iterator[bytes | float]] | None = None

    @property
    def content(self) -> bytes:
        """The bytes of the body."""
        text = self.body if isinstance(self.body, str | bytes) else json.dumps(self.body)
        return text.encode() if isinstance(text, str) else text

    @property
    def kind(self) -> str:
        """The type of the body, if no header says another one."""
        return "text/plain; charset=utf-8" if isinstance(self.body, str) else "application/json"


class RefusedError(Exception):
    """A request that a provider would refuse, with the body that it would send."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.reply = Reply(body, status)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A token, and what was expected in its place; nothing is known of the first token of a text."""

    token: int
    log_prob: float | None
    log_probs_V: FloatArray | None

    def likeliest(self, count: int) -> list[tuple[int, float]]:
        """The likeliest tokens, likeliest first; the lower id first where two are as likely."""
        assert self.log_probs_V is not None
        return self.of(np.argsort(-self.log_probs_V, kind="stable")[:count].tolist()) if count else []

    def of(self, tokens: Sequence[int]) -> list[tuple[int, float]]:
        """The log-probabilities of some tokens."""
        assert self.log_probs_V is not None
        return [(token, float(self.log_probs_V[token])) for token in tokens]


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt that is continued greedily. `bias` is added to the logits of some tokens before; it changes no
    log-probability in the answer."""

    prompt: Sequence[int]
    most_new: int
    bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """The rows of the prompt and of the new tokens, the new text, and why it ended."""

    prompt: list[Row]
    new: list[Row]
    text: str
    ended_by: Literal["length", "end"]

    @property
    def finish(self) -> Literal["length", "stop"]:
        """The reason as OpenAI calls it."""
        return "length" if self.ended_by == "length" else "stop"


def rows_of(backing: Backing, tokens: Sequence[int]) -> list[Row]:
    """The row of each token of a text."""
    if not tokens:
        return []
    first = Row(tokens[0], None, None)
    if len(tokens) == 1:
        return [first]
    before_NV = backing.log_probs(tokens[:-1])
    return [first, *(_row(tokens[place], row_V) for place, row_V in enumerate(before_NV, start=1))]


def write(backing: Backing, task: Task) -> Written:
    """Read the prompt and continue it until the end or `most_new` tokens."""
    tokens, new = list(task.prompt), list[Row]()
    prompt = rows_of(backing, tokens)
    text = ""
    while len(new) < task.most_new:
        row_V = backing.log_probs(tokens)[-1]
        token = _chosen(row_V, task)
        tokens.append(token)
        new.append(_row(token, row_V))
        if token in backing.end_tokens:
            return Written(prompt, new, text, "end")
        text = backing.tokenizer.decode(np.array(tokens[len(task.prompt) :]))
    return Written(prompt, new, text, "length")


def _row(token: int, log_probs_V: FloatArray) -> Row:
    """The row of a token."""
    return Row(token, float(log_probs_V[token]), log_probs_V)


def unfinished(text: bytes) -> bytes:
    """The beginning of a character at the end of some bytes, or nothing."""
    for length in range(1, min(4, len(text) + 1)):
        byte = text[-length]
        if byte >= 0xC0:  # the first byte of a character of 2, 3 or 4 bytes
            return text[-length:] if length < 2 + (byte >= 0xE0) + (byte >= 0xF0) else b""
    return b""


def _chosen(log_probs_V: FloatArray, task: Task) -> int:
    """The most likely token after the bias."""
    biased_V = log_probs_V.copy()
    for token, bias in task.bias.items():
        biased_V[token] += bias
    return int(biased_V.argmax())
