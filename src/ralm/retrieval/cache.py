"""A cache of retrievals in one file, keyed by index, retriever, query and k."""

import hashlib
import json
import logging
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.protocols import Retriever
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray
from ralm.retrieval.filters import Passing, filter_retriever
from ralm.retrieval.random import RandomRetriever
from ralm.storage.store import Store
from ralm.validation import check_count, config_of, retrieve_checked, stable_hits

_LOG: Final = logging.getLogger(__name__)
_HIT_BYTES: Final = 12
"""8 bytes for the passage number, 4 for the score."""


class CachedRetriever:
    """A retriever that looks in a file first, and stores there what it had to ask another retriever for.

    `config` must describe the index and everything else that decides the hits; the default is the retriever's own.
    `asked` counts the queries so far, `found` those of them that were in `file`. Raises UsageError if the retriever
    does not say what decides its hits or draws them at random, InputError if the file is something else, StorageError
    if it cannot be written.
    """

    def __init__(self, retriever: Retriever, file: Path, config: JsonValue = None) -> None:
        if isinstance(retriever, RandomRetriever):
            raise UsageError("random passages are drawn faster than they are looked up; leave out the cache.")
        self._retriever = retriever
        self.file = file
        self._config = json.dumps(config_of(retriever, "retriever") if config is None else config, sort_keys=True)
        self.asked = 0
        self.found = 0
        self._store = Store(file, "retrieval cache", "choose another file, or go without one")

    def filtered(self, passing: Passing) -> Retriever:
        """The other retriever with only the passages that pass a filter, with the same file."""
        if self._config != json.dumps(self.config, sort_keys=True):
            raise UsageError("a cache whose `config` was given cannot be searched with a filter.")
        other = copy(self)
        other._retriever = filter_retriever(self._retriever, passing)
        other._config = json.dumps(other.config, sort_keys=True)
        return other

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything that decides the hits of the other retriever."""
        return config_of(self._retriever, "retriever")

    @property
    def stable(self) -> int:
        """The `stable` of the other retriever."""
        return stable_hits(self._retriever)

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """The k best passages for each query; a repeated query is retrieved once.

        Raises UsageError if k is below 1.
        """
        check_count("k", k)
        keys = [self._key(query, k) for query in queries]
        known = self._store.get(keys)
        self.asked += len(queries)
        self.found += sum(key in known for key in keys)
        missing = {key: query for key, query in zip(keys, queries, strict=True) if key not in known}
        if missing:
            hits = retrieve_checked(self._retriever, list(missing.values()), k)
            counts_Q = np.count_nonzero(hits.numbers_QK != NO_PASSAGE, axis=1)
            rows = zip(hits.numbers_QK, hits.scores_QK, counts_Q.tolist(), strict=True)
            values = (_packed(numbers_K[:count], scores_K[:count]) for numbers_K, scores_K, count in rows)
            fresh = dict(zip(missing, values, strict=True))
            self._store.put(fresh.items())
            known |= fresh
        return Hits.of_rows([_unpacked(known[key]) for key in keys])

    def log_hits(self) -> None:
        """Log, at INFO, how many of the queries so far were in the file."""
        _LOG.info("retrieval cache: %s of %s queries were in %s", f"{self.found:,}", f"{self.asked:,}", self.file)

    def _key(self, query: str, k: int) -> bytes:
        return hashlib.sha256(json.dumps([self._config, k, query]).encode()).digest()


def _packed(numbers_K: IntArray, scores_K: FloatArray) -> bytes:
    """The passage numbers and scores of a query's hits as bytes."""
    return numbers_K.astype("<i8").tobytes() + scores_K.astype("<f4").tobytes()


def _unpacked(value: bytes) -> tuple[IntArray, FloatArray]:
    count = len(value) // _HIT_BYTES
    numbers_K, scores_K = np.frombuffer(value, "<i8", count), np.frombuffer(value, "<f4", offset=8 * count)
    return numbers_K.astype(np.int64), scores_K.astype(np.float32)
