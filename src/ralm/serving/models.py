"""One language model and its tokenizer for many threads, and a model that stops when its request does.

Knows the protocols of models; knows nothing of requests or HTTP.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import RLock
from typing import Any

from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import Continuations, Tier, Tokenizer, WritingModel
from ralm.records import EncodedPiece, FloatArray, IntArray, Message, NextTokens, Pass, SpecialTokens, TextsAhead
from ralm.serving.batching.model import BatchedModel
from ralm.serving.batching.options import BatchOptions


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

    def __init__(self, model: WritingModel, check: Callable[[], None], *, ends: bool = True) -> None:
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

    def score(self, passes: Sequence[Pass]) -> Iterator[FloatArray]:
        """The model's own; checks before every result."""
        return self._checked(self._model.score, passes)

    def continuations(self) -> Continuations:
        """The model's own; checks before every token."""
        return _WatchedContinuations(self._model.continuations(), self._check)

    @property
    def distributions(self) -> Callable[[Sequence[Pass]], Iterable[FloatArray]]:
        """The model's own; AttributeError if it has none."""
        own = self._model.distributions  # type: ignore[attr-defined]  # only some models have it
        return lambda passes: self._checked(own, passes)

    def _checked(
        self, read: Callable[[Sequence[Pass]], Iterable[FloatArray]], passes: Sequence[Pass]
    ) -> Iterator[FloatArray]:
        self._check()
        for found in read(passes):
            yield found
            self._check()


class _WatchedContinuations:
    def __init__(self, own: Continuations, check: Callable[[], None]) -> None:
        self._own = own
        self._check = check

    def next_tokens(self, texts: Sequence[IntArray], wanted: IntArray | None = None) -> NextTokens:
        self._check()
        return self._own.next_tokens(texts, wanted)

    def read_ahead(self, several: Sequence[TextsAhead]) -> None:
        ahead = getattr(self._own, "read_ahead", None)
        if ahead is not None:
            ahead(several)
