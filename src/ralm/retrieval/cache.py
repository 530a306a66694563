"""A cache of retrievals in one file, keyed by index, retriever, query and k.

An entry's key is a hash of everything that decides the entry, so an entry is never wrong or outdated. The file is one
of `folders/entries.py`. An earlier version kept entries without checksums in a table `hits`; those are ignored.
"""

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.protocols import Retriever
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray
from ralm.retrieval.random import RandomRetriever
from ralm.storage.store import create_entries, entry_errors, open_entries, read_entries, write_entries
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
        with self._open() as database:
            create_entries(database)

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
        addresses = [self._address(query, k) for query in queries]
        with self._open() as database:
            read = read_entries(database, list(dict.fromkeys(addresses)))
            known = {address: entry for address, entry in read if _is_entry(len(entry), k)}
        self.asked += len(queries)
        self.found += sum(address in known for address in addresses)
        missing = {address: query for address, query in zip(addresses, queries, strict=True) if address not in known}
        if missing:
            hits = retrieve_checked(self._retriever, list(missing.values()), k)
            counts = np.count_nonzero(hits.numbers_QK != NO_PASSAGE, axis=1)
            fresh = {
                address: numbers[:count].astype("<i8").tobytes() + scores[:count].astype("<f4").tobytes()
                for address, numbers, scores, count in zip(
                    missing, hits.numbers_QK, hits.scores_QK, counts.tolist(), strict=True
                )
            }
            with self._open() as database:
                write_entries(database, fresh.items())
            known |= fresh
        return Hits.of_rows([_hits(known[address]) for address in addresses])

    def log_hits(self) -> None:
        """Log, at INFO, how many of the queries so far were in the file."""
        _LOG.info("retrieval cache: %s of %s queries were in %s", f"{self.found:,}", f"{self.asked:,}", self.file)

    def _address(self, query: str, k: int) -> bytes:
        return hashlib.sha256(json.dumps([self._config, k, query]).encode()).digest()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction, which is atomic; waits while another process writes."""
        with (
            entry_errors(self.file, "retrieval cache", "choose another file, or go without one"),
            closing(open_entries(self.file)) as database,
            database,
        ):
            yield database


def _is_entry(size: int, k: int) -> bool:
    return 0 <= size <= _HIT_BYTES * k and size % _HIT_BYTES == 0


def _hits(entry: bytes) -> tuple[IntArray, FloatArray]:
    """The passage numbers and scores of an entry."""
    count = len(entry) // _HIT_BYTES
    numbers_K, scores_K = np.frombuffer(entry, "<i8", count), np.frombuffer(entry, "<f4", offset=8 * count)
    return numbers_K.astype(np.int64), scores_K.astype(np.float32)
