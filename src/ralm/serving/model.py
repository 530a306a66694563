"""A language model that many threads use at the same time; what they ask for together is read together.

To each thread it is the model itself, so that all of the library works on it as on the model.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock
from typing import Any, Final, TypeAlias

from ralm.errors import ModelError
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import Continuations, Tier, Tokenizer, WritingModel
from ralm.records import (
    EncodedPiece,
    FloatArray,
    IntArray,
    Message,
    NextTokens,
    ScoringSequence,
    SpecialTokens,
    TextsAhead,
)
from ralm.serving.batcher import Batcher, Caller, Counts
from ralm.serving.options import BatchOptions

Check: TypeAlias = Callable[[], None]
"""Raises an error once a request is to end."""
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

    def score(self, passes: Sequence[ScoringSequence]) -> list[FloatArray]:
        """As the model's own."""
        return self._batcher.read(self._model.score, passes, _GONE.get())

    def continuations(self) -> "BatchedContinuations":
        """A new state for continuing texts."""
        return BatchedContinuations(self._batcher, self.name, self.max_length, self.vocabulary)

    def close(self) -> None:
        """End the thread after the step that it is reading; whoever waits gets `Closed`."""
        self._batcher.close()

    def _distributions(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
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


def shared_model(model: WritingModel, options: BatchOptions) -> WritingModel:
    """A model for many threads: a local one reads what they ask for together, a server is asked by all at once."""
    safe = WithLockedTokenizer(model)
    return BatchedModel(safe, options) if model.tier == "all" else safe


class WithLockedTokenizer:
    """A model whose tokenizer many threads may use."""

    def __init__(self, model: WritingModel) -> None:
        self._model: Any = model
        self.tokenizer = LockedTokenizer(model.tokenizer)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._model, name)


class LockedTokenizer:
    """A tokenizer that many threads share. The fast ones of transformers fail if two threads use one at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._own: Any = tokenizer
        self._full = full_tokenizer(tokenizer)
        self._lock = RLock()

    def __getattr__(self, name: str) -> Any:  # the members that only some tokenizers have
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._own, name)
        return self._locked(found) if callable(found) else found

    @property
    def special_tokens(self) -> SpecialTokens:
        """The tokenizer's own."""
        with self._lock:
            return self._full.special_tokens

    @property
    def end_token(self) -> int | None:
        """The tokenizer's own."""
        return self._full.end_token

    @property
    def unknown_token(self) -> int | None:
        """The tokenizer's own."""
        return self._full.unknown_token

    @property
    def longest_token(self) -> int | None:
        """The tokenizer's own, if it has one."""
        with self._lock:
            return getattr(self._own, "longest_token", None)

    def token_of(self, text: str) -> int | None:
        """The tokenizer's own."""
        with self._lock:
            return self._full.token_of(text)

    def encode(self, text: str) -> IntArray:
        """The tokenizer's own."""
        with self._lock:
            return self._full.encode(text)

    def decode(self, tokens: IntArray) -> str:
        """The tokenizer's own."""
        with self._lock:
            return self._full.decode(tokens)

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        """The tokenizer's own."""
        with self._lock:
            return self._full.encode_with_spans(text)

    def encode_pieces(self, chunks: Iterable[str]) -> Iterator[EncodedPiece]:
        """The tokenizer's own, all pieces at once."""
        with self._lock:
            found = list(self._full.encode_pieces(chunks))
        yield from found

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        """The tokenizer's own."""
        with self._lock:
            return self._full.encode_document(text, max_tokens)

    def encode_chat(self, messages: Sequence[Message]) -> tuple[IntArray, IntArray] | None:
        """The tokenizer's own."""
        with self._lock:
            return self._full.encode_chat(messages)

    def _locked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def locked(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                return call(*arguments, **named)

        return locked


class Watched:
    """The model of one request: `check` is called before every call, and raises to end the request.

    With `ends` False no token ends a text.
    """

    def __init__(self, model: WritingModel, check: Check, *, ends: bool = True) -> None:
        self._model = model
        self._check = check
        self.name = model.name
        self.config = model.config
        self.max_length = model.max_length
        self.tier: Tier = model.tier
        self.tokenizer = model.tokenizer
        self.end_tokens: frozenset[int] = model.end_tokens if ends else frozenset()

    def __getattr__(self, name: str) -> Any:  # the optional members of a model
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._model, name)

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """The model's own; checks before every result."""
        return self._checked(self._model.score, passes)

    def continuations(self) -> Continuations:
        """The model's own; checks before every token."""
        return _WatchedContinuations(self._model.continuations(), self._check)

    @property
    def distributions(self) -> Callable[[Sequence[ScoringSequence]], Iterable[FloatArray]]:
        """The model's own; AttributeError if it has none."""
        own = self._model.distributions  # type: ignore[attr-defined]  # only some models have it
        return lambda passes: self._checked(own, passes)

    def _checked(
        self, read: Callable[[Sequence[ScoringSequence]], Iterable[FloatArray]], passes: Sequence[ScoringSequence]
    ) -> Iterator[FloatArray]:
        self._check()
        for found in read(passes):
            yield found
            self._check()


class _WatchedContinuations:
    def __init__(self, own: Continuations, check: Check) -> None:
        self._own = own
        self._check = check

    def next_tokens(self, texts: Sequence[IntArray], wanted: IntArray | None = None) -> NextTokens:
        self._check()
        return self._own.next_tokens(texts, wanted)

    def read_ahead(self, several: Sequence[TextsAhead]) -> None:
        ahead = getattr(self._own, "read_ahead", None)
        if ahead is not None:
            ahead(several)
