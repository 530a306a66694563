"""A language model that many threads use at the same time; what they ask for together is read together.

To each thread it is the model itself, so that all of the library works on it as on the model.
"""

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from ralm.errors import ModelError
from ralm.protocols import Tier, Tokenizer, WritingModel
from ralm.records import FloatArray, IntArray, NextTokens, Pass
from ralm.serving.batching.batcher import Batcher, Caller, Counts
from ralm.serving.batching.options import BatchOptions

_PASSES_AT_ONCE: Final = 8
"""Passes whose distributions over the vocabulary are held at once."""
_NEVER: Final = threading.Event()
_GONE: ContextVar[threading.Event] = ContextVar("gone", default=_NEVER)


@contextmanager
def ending_with(gone: threading.Event) -> Iterator[None]:
    """In this thread and within, waiting for the model ends with `Closed` once `gone` is set."""
    token = _GONE.set(gone)
    try:
        yield
    finally:
        _GONE.reset(token)


class BatchedModel:
    """A `WritingModel` that reads with `model`, from any number of threads; close it to end its own thread.

    The model must give the whole vocabulary (`tier` "all"), as local models do. What a thread gets does not depend on
    the others, but for the last digits of figures, as in any batch.
    """

    tier: Final[Tier] = "all"

    def __init__(self, model: WritingModel, options: BatchOptions | None = None) -> None:
        options = options or BatchOptions()
        assert model.tier == "all", "servers batch by themselves"
        self._model = model
        self._batcher = Batcher(model, options.chunk_tokens, options.cached_tokens)
        self.name = model.name
        self.max_length = model.max_length
        self.tokenizer: Tokenizer = model.tokenizer
        self.end_tokens = model.end_tokens
        self.vocabulary: int | None = getattr(model, "vocabulary", None)
        self.merges_prefixes: bool = getattr(model, "merges_prefixes", True)
        if hasattr(model, "distributions"):
            self.distributions = self._distributions

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's own."""
        return self._model.config

    @property
    def counts(self) -> Counts:
        """What was read so far."""
        return self._batcher.counts

    @property
    def failed(self) -> BaseException | None:
        """The error for which nothing can be read any more, if there is one."""
        return self._batcher.failed

    def score(self, passes: Sequence[Pass]) -> list[FloatArray]:
        """As the model's own."""
        return self._batcher.read(self._model.score, passes, _GONE.get())

    def continuations(self) -> "BatchedContinuations":
        """A new state for continuing texts."""
        return BatchedContinuations(self._batcher, self.name, self.max_length, self.vocabulary)

    def close(self) -> None:
        """End the thread after the step that it is reading; whoever waits gets `Closed`."""
        self._batcher.close()

    def _distributions(self, passes: Sequence[Pass]) -> Iterator[FloatArray]:
        """As the model's own; a few passes at a time, since they are large."""
        for first in range(0, len(passes), _PASSES_AT_ONCE):
            some = passes[first : first + _PASSES_AT_ONCE]
            yield from self._batcher.read(self._model.distributions, some, _GONE.get())  # type: ignore[attr-defined]


class BatchedContinuations:
    """The texts that one thread is continuing."""

    def __init__(self, batcher: Batcher, name: str, max_length: int, vocabulary: int | None) -> None:
        self._batcher = batcher
        self._name = name
        self._max_length = max_length
        self._vocabulary = vocabulary
        self._caller: Caller = batcher.enter(_GONE.get())
        weakref.finalize(self, batcher.leave, self._caller)

    def next_tokens(self, texts: Sequence[IntArray], wanted: IntArray | None = None) -> NextTokens:
        """As the model's own. Raises ModelError if a text is empty, too long, or has a token that the model does not
        know, and `Closed`."""
        for text in texts:
            self._check(text)
        given = self._batcher.next_tokens(self._caller, texts)
        if wanted is None:
            return given
        self._check(wanted)
        tiled = wanted[None].repeat(len(texts), axis=0)
        return NextTokens(given.log_probs_BC[:, wanted], tiled)

    def _check(self, tokens: IntArray) -> None:
        """Raise ModelError if tokens cannot be read: in a batch they would fail those of others."""
        if not 0 < len(tokens) <= self._max_length:
            raise ModelError(f"{self._name} reads 1 to {self._max_length:,} tokens at once, not {len(tokens):,}.")
        if tokens.min() < 0 or (self._vocabulary is not None and tokens.max() >= self._vocabulary):
            raise ModelError(f"token {tokens.max()} is not one of the {self._vocabulary} that {self._name} knows.")
