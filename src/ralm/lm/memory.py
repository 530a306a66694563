"""A language model that scores nothing twice in one process, however many readings ask for it.

Knows requests and their log-probabilities; knows nothing of who asks. What it wraps may be any language model.
"""

from collections.abc import Sequence

from pydantic import JsonValue

from ralm.lm.journal import request_key
from ralm.protocols import Continuations, LanguageModel, Tokenizer
from ralm.records import FloatArray, Request


class RememberingModel:
    """Another language model, and all that it has scored so far: `asked` counts requests, `scored` those it had to."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._known: dict[bytes, FloatArray] = {}
        self.asked = 0

    @property
    def scored(self) -> int:
        """How many requests the model itself had to score."""
        return len(self._known)

    @property
    def name(self) -> str:
        """The model's own."""
        return self._model.name

    @property
    def config(self) -> dict[str, JsonValue]:
        """The model's own."""
        return self._model.config

    @property
    def max_length(self) -> int:
        """The model's own."""
        return self._model.max_length

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        return self._model.tokenizer

    @property
    def end_tokens(self) -> frozenset[int]:
        """The model's own."""
        return self._model.end_tokens

    def log_probs(self, requests: Sequence[Request]) -> list[FloatArray]:
        """For each request the natural log-probability (float32) of each of its targets, in order."""
        keys = [request_key(request) for request in requests]
        self.asked += len(keys)
        new = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._known}
        if new:
            self._known.update(zip(new, self._model.log_probs(list(new.values())), strict=True))
        return [self._known[key] for key in keys]

    def continuations(self) -> Continuations:
        """Those of the model; what they read is not remembered."""
        return self._model.continuations()
