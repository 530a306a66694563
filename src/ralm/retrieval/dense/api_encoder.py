"""An encoder behind an API: `--encoder URL#MODEL` and `openai:MODEL`, by /v1/embeddings of OpenAI and other servers.

Texts go out in batches, several at once, with retries, within the budget; answers are kept in the file that also keeps
those of language models.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import ServerError, UsageError
from ralm.lm.api.client import Client
from ralm.lm.api.endpoint import ApiOptions, RequestOptions, endpoint_of
from ralm.lm.api.http import ApiRequest, JsonObject
from ralm.records import FloatArray, Passage
from ralm.retrieval.dense.options import EncoderOptions
from ralm.terminal import Advance
from ralm.validation import check_strings

_BATCH: Final = 64
_PROBE: Final = "The quick brown fox jumps over the lazy dog."
_OF_WEIGHTS: Final = ("query_encoder", "pooling", "query_length", "passage_length", "query_keeps", "dtype")
"""Options of encoders that run here."""


class ApiEncoder:
    """An encoder behind an API; see `EncoderOptions`. The server is first asked on use.

    The fingerprint is made of the model's name, the length of its vectors, and the place and sign of the largest
    component of a sentence's vector. Small differences between answers do not change it; another model under the same
    name nearly always does. Raises UsageError for options of encoders that run here, and as `endpoint_of` does.
    """

    def __init__(self, options: EncoderOptions, api: RequestOptions | None = None) -> None:
        usual = EncoderOptions(encoder=options.encoder)
        for name in _OF_WEIGHTS:
            if getattr(options, name) != getattr(usual, name):
                raise UsageError(f"`{name}` has no effect with an encoder behind an API, whose server decides it.")
        self._options = options
        self._api = ApiOptions(**asdict(api or RequestOptions()))
        self._endpoint = endpoint_of(options.encoder)
        self._dimension = 0
        self._fingerprint = ""

    @cached_property
    def _client(self) -> Client:
        client = Client(self._endpoint, self._api)
        [probe_D] = self._encode(client, [_PROBE], None)
        largest = int(np.abs(probe_D).argmax())
        self._fingerprint = _short_hash(f"{self._endpoint.model} {len(probe_D)} {largest} {probe_D[largest] > 0}")
        self._dimension = len(probe_D)
        # finer than the fingerprint: a difference only means that nothing kept is used
        client.identity = _short_hash(f"{self._endpoint.url} {self._fingerprint} {np.round(probe_D, 3).tolist()}")
        return client

    @property
    def dimension(self) -> int:
        """Return the length of a vector."""
        _ = self._client
        return self._dimension

    @property
    def query_fingerprint(self) -> str:
        """Return a short hash of the model's name and of its vector of a sentence."""
        _ = self._client
        return self._fingerprint

    @property
    def query_config(self) -> dict[str, JsonValue]:
        """Return the fingerprint, and how texts are read."""
        reading: dict[str, JsonValue] = {"api": "embeddings", "normalize": self._options.normalize}
        return {"fingerprint": self.query_fingerprint, "reading": reading, "model": self._endpoint.model}

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return the options and the fingerprint."""
        fingerprint = self.query_fingerprint
        return {**asdict(self._options), "passage_fingerprint": fingerprint, "query_fingerprint": fingerprint}

    def passage_text(self, passage: Passage) -> str:
        """Return the title, a line break and the text."""
        with_title = self._options.titles and passage.title
        return f"{passage.title}\n{passage.text}" if with_title else passage.text

    def encode_passages(self, passages: Sequence[Passage], advance: Advance | None = None) -> FloatArray:
        """Return the vectors (float32, P x D) of passages; raises ServerError, BudgetError or StorageError."""
        return self._vectors([self.passage_text(passage) for passage in passages], advance)

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Return the vectors (float32, Q x D) of queries; raises ServerError, BudgetError or StorageError."""
        check_strings("queries", queries)
        return self._vectors(queries)

    def _vectors(self, texts: Sequence[str], advance: Advance | None = None) -> FloatArray:
        vectors_TD = self._encode(self._client, texts, advance)
        if self._options.normalize:
            vectors_TD /= np.maximum(np.linalg.norm(vectors_TD, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return vectors_TD

    def _encode(self, client: Client, texts: Sequence[str], advance: Advance | None) -> FloatArray:
        batches = [list(texts[begin : begin + _BATCH]) for begin in range(0, len(texts), _BATCH)]
        vectors = []
        for vectors_TD in client.answers(self._requests(batches)):
            vectors.append(vectors_TD)
            if advance is not None:
                advance(len(vectors_TD))
        return np.concatenate(vectors) if vectors else np.zeros((0, self._dimension), np.float32)

    def _requests(self, batches: Sequence[list[str]]) -> Iterator[ApiRequest]:
        for batch in batches:
            body: dict[str, JsonValue] = {"model": self._endpoint.model, "input": [*batch], "encoding_format": "float"}
            tokens = sum(len(text.encode("utf-8", "replace")) for text in batch)
            yield ApiRequest("/embeddings", body, tokens, parse=partial(self._vectors_of, count=len(batch)))

    def _vectors_of(self, answer: JsonObject, count: int) -> FloatArray:
        """Return the vectors (T x D) of an answer in the order of the texts; ServerError if it has others."""
        data: Any = answer.get("data")
        try:
            vectors = {int(entry["index"]): entry["embedding"] for entry in data}
            vectors_TD = np.array([vectors[place] for place in range(count)], np.float32)
            dimension = self._dimension or vectors_TD.shape[1]
            if len(data) != count or vectors_TD.shape != (count, dimension) or not dimension:
                raise ValueError
            if not np.isfinite(vectors_TD).all():
                raise ValueError
        except (KeyError, TypeError, ValueError, IndexError):
            raise ServerError(
                f"{self._endpoint.url} gave no {count} vectors of one length for {count} texts; is "
                f"{self._endpoint.model} a model for embeddings?",
                200,
            ) from None
        return vectors_TD


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
