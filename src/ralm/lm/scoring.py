"""Scores requests with a language model, none of them twice."""

from collections.abc import Sequence
from hashlib import blake2b

from pydantic import JsonValue

from ralm.protocols import LanguageModel, Tokenizer
from ralm.records import FloatArray, Request


class Scorer:
    """A language model and everything that it has scored."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self._known: dict[bytes, FloatArray] = {}
        self.asked = 0
        self.scored = 0

    @property
    def name(self) -> str:
        """The model's own."""
        return self.model.name

    @property
    def config(self) -> dict[str, JsonValue]:
        """The model's own."""
        return self.model.config

    @property
    def max_length(self) -> int:
        """The model's own."""
        return self.model.max_length

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        return self.model.tokenizer

    @classmethod
    def of(cls, model: LanguageModel) -> "Scorer":
        """The same, where it is one already."""
        return model if isinstance(model, Scorer) else cls(model)

    def log_probs(self, requests: Sequence[Request]) -> list[FloatArray]:
        """For each request the natural log-probability (float32) of each of its targets, in order."""
        self.asked += len(requests)
        keys = [_key(request) for request in requests]
        new: dict[bytes, Request] = {}
        for key, request in zip(keys, requests, strict=True):
            known = self._known.get(key)
            if (known is None or len(known) < len(request.targets)) and (
                key not in new or len(new[key].targets) < len(request.targets)
            ):
                new[key] = request
        if new:
            self.scored += len(new)
            self._known.update(zip(new, self.model.log_probs(list(new.values())), strict=True))
        return [self._known[key][-len(request.targets) :] for key, request in zip(keys, requests, strict=True)]


def _key(request: Request) -> bytes:
    digest = blake2b(digest_size=16)
    for part in (request.document, request.context, request.targets):
        digest.update(part.tobytes())
    return digest.digest()
