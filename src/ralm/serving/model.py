"""One language model for the threads of all requests.

To the library it is a `WritingModel` like any other. Threads ask it together (`Batcher`). Every call first checks
whether the request of the thread goes on.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

import numpy as np

from ralm.errors import ModelError, UsageError
from ralm.protocols import Continuations, Tokenizer, WritingModel, traits_of
from ralm.records import Draw, Drawn, FloatArray, IntArray, NextTokens, ScoringSequence
from ralm.serving.batcher import Batcher
from ralm.serving.errors import RequestError, StoppedError

_SEQUENCES_AT_ONCE: Final = 8
"""Sequences that a request reads at once: others need not wait for long, and few distributions are in memory."""
_CHUNK_TOKENS: Final = 512
"""Tokens of new prompts read between two tokens of others: with more these wait longer, but all are read faster."""


@dataclass(frozen=True, slots=True)
class RequestScope:
    """When a request ends: once `gone` is set, or at `deadline` (seconds of `time.monotonic`)."""

    gone: threading.Event = field(default_factory=threading.Event)
    deadline: float = math.inf

    def check(self) -> None:
        """Raise StoppedError, or another RequestError, if the request must end."""
        if self.gone.is_set():
            raise StoppedError
        if time.monotonic() > self.deadline:
            raise timed_out("timed out: ask for fewer tokens")


def timed_out(what: str) -> RequestError:
    """Return the error of a request that took too long."""
    return RequestError(f"the request {what}.", code="time_up", status=503)


_BEFORE: Final = "a"
"""Text that is decoded before a token: some tokenizers write the space of a token only after other text."""
_scope: ContextVar[RequestScope] = ContextVar("scope", default=RequestScope())  # noqa: B039  # nobody ends this one


@contextmanager
def in_scope(scope: RequestScope) -> Iterator[None]:
    """End calls of models in this thread with the scope, inside the block."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


class SharedModel:
    """A `WritingModel` that any number of threads may use; close it to end the thread that reads for them.

    A thread gets the same as alone, except for the last digits of figures, as in any batch. `vocabulary` is None if
    the model does not tell it; `distributions` raises AttributeError if it has none. UsageError if the model does not
    return the log-probabilities of all next tokens.
    """

    tier: Final = "all"

    def __init__(
        self, model: WritingModel, *, chunk_tokens: int = _CHUNK_TOKENS, cached_tokens: int | None = None
    ) -> None:
        self._model: Any = model
        if model.tier != "all":
            raise UsageError(
                f"{model.name} does not return the log-probabilities of all next tokens, which a server needs: serve "
                "it with another server, and name that as URL#MODEL."
            )
        traits = traits_of(model)
        self.batcher = Batcher(model, chunk_tokens, cached_tokens or traits.tokens_at_once)
        self.name = model.name
        self.max_length = model.max_length
        self.end_tokens = model.end_tokens
        # the fast tokenizers of transformers fail if two threads use one at once
        self.tokenizer = cast("Tokenizer", Locked(model.tokenizer, threading.RLock()))
        self._labels: dict[int, str] = {}
        self.vocabulary = traits.vocabulary
        self.merges_prefixes = traits.merges_prefixes
        self.tokens_at_once = traits.tokens_at_once

    @property
    def config(self) -> Any:
        """As `LanguageModel.config`; it may take long to compute."""
        return self._model.config

    def score(self, sequences: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """As `WritingModel.score`."""
        return self._read(self._model.score, sequences)

    @property
    def distributions(self) -> Callable[[Sequence[ScoringSequence]], Iterator[FloatArray]]:
        """As `LanguageModel.distributions`."""
        return partial(self._read, self._model.distributions)

    def continuations(self) -> Continuations:
        """As `WritingModel.continuations`."""
        return _BatchedContinuations(self, self.batcher, self.batcher.enter())

    def label(self, token: int) -> str:
        """Return the name of a token in responses: its text, or `token_id:17` if that does not identify it."""
        if token not in self._labels:
            before = self.tokenizer.encode(_BEFORE)
            text = self.tokenizer.decode(np.append(before, token))[len(self.tokenizer.decode(before)) :]
            unclear = not text or "\N{REPLACEMENT CHARACTER}" in text
            self._labels[token] = label_by_id(token) if unclear else text
        return self._labels[token]

    def close(self) -> None:
        """End the batcher after its current step; threads that wait get StoppedError."""
        self.batcher.close()

    def _read(
        self, read: Callable[[Sequence[ScoringSequence]], Iterable[FloatArray]], sequences: Sequence[ScoringSequence]
    ) -> Iterator[FloatArray]:
        check = _scope.get().check
        for first in range(0, len(sequences), _SEQUENCES_AT_ONCE):
            check()
            yield from self.batcher.read(read, sequences[first : first + _SEQUENCES_AT_ONCE], check)


def label_by_id(token: int) -> str:
    """Return the name of a token that stands for no text."""
    return f"token_id:{token}"


class _BatchedContinuations:
    """Texts that the batcher continues for a request, by the number of the request."""

    def __init__(self, model: SharedModel, batcher: Batcher, number: int) -> None:
        self._model = model
        self._batcher = batcher
        self._number = number

    def __del__(self) -> None:
        self._batcher.leave(self._number)

    def next_tokens(self, texts: Sequence[IntArray]) -> NextTokens:
        """As `Continuations.next_tokens`; raises what `draw` raises."""
        kept: dict[int, FloatArray] = {}

        def keep(row: int, log_probs_1V: FloatArray) -> FloatArray:
            kept[row] = log_probs_1V[0]
            return kept[row]

        rows = range(len(texts))
        self.draw(texts, [Draw([row], np.zeros(1), distribution=partial(keep, row)) for row in rows])
        return NextTokens(np.stack([kept[row] for row in rows]))

    def draw(self, texts: Sequence[IntArray], draws: Sequence[Draw]) -> list[Drawn]:
        """As `Continuations.draw`; raises ModelError for tokens that the model cannot read, and StoppedError."""
        for text in texts:
            self._check(text)
        return self._batcher.draw(self._number, texts, draws, _scope.get().check)

    def _check(self, tokens: IntArray) -> None:
        """Raise ModelError if tokens cannot be read: in a batch they would fail those of others."""
        name, most, size = self._model.name, self._model.max_length, self._model.vocabulary
        if not 0 < len(tokens) <= most:
            raise ModelError(f"{name} reads 1 to {most:,} tokens at once, not {len(tokens):,}.")
        if tokens.min() < 0 or (size is not None and tokens.max() >= size):
            raise ModelError(f"token {tokens.max()} is not one of the {size} that {name} knows.")


class Locked:
    """An object whose methods are called by one thread at a time, which holds the `lock`."""

    def __init__(self, target: object, lock: AbstractContextManager[object]) -> None:
        self._target = target
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        attribute = getattr(self._target, name)
        if not callable(attribute):
            return attribute

        def locked(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                return attribute(*arguments, **named)

        return locked
