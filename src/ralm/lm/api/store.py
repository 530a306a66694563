"""Answers of servers in one file, so that none is paid for twice.

The key of an answer is a hash of all that decides it: the identity of the model, the path and the body of the request.
Requests themselves, which hold passages and prompts, are not kept, and keys of APIs never get here. An answer is in the
file as soon as `put` returns: a process that is killed afterwards does not lose it. Several processes and threads may
use one file at once.
"""

import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.lm.api.transport import JsonObject, read_json, write_json
from ralm.storage.store import create_entries, delete_entries, entry_errors, open_entries, read_entries, write_entries

CACHE: Final = "RALM_CACHE"
"""The environment variable that names the folder for files that ralm keeps between runs."""


def default_answers(environment: Mapping[str, str] = os.environ) -> Path:
    """The file of answers unless another is named: `answers.sqlite` in $RALM_CACHE, or else in the user's cache."""
    if named := environment.get(CACHE):
        return Path(named) / "answers.sqlite"
    caches = environment.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "ralm" / "answers.sqlite"


def answer_key(identity: str, path: str, body: Mapping[str, JsonValue]) -> bytes:
    """The key of the answer of a model to a request (32 bytes); the order of the names in a body does not matter."""
    return sha256(json.dumps([identity, path, body], sort_keys=True, separators=(",", ":")).encode()).digest()


class AnswerStore:
    """Answers by their keys, in a file that is made if it is missing; a context manager.

    An altered entry counts as missing. Raises InputError if the file is something else, StorageError if it cannot be
    opened, read or written.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._closed = False
        with self._errors():
            self._database = open_entries(file, threads=True)
            try:
                # a commit is safe from a killed process without waiting for the disk
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = NORMAL")
                create_entries(self._database)
            except BaseException:
                self._database.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, key: bytes) -> JsonObject | None:
        """The answer with this key, or None if it is not known."""
        with self._lock, self._transaction() as database:
            found = dict(read_entries(database, [key]))
        return read_json(zlib.decompress(found[key])) if found else None

    def put(self, key: bytes, answer: JsonObject) -> None:
        """Keep an answer, for good."""
        entry = zlib.compress(write_json(answer), 1)
        with self._lock, self._transaction() as database:
            write_entries(database, [(key, entry)])

    def drop(self, keys: Iterable[bytes]) -> None:
        """Forget the answers with these keys."""
        with self._lock, self._transaction() as database:
            delete_entries(database, keys)

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        with self._lock:
            self._closed = True
            self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """The connection. Callers hold the lock: if a generator took it, an interrupt could leave it locked."""
        if self._closed:
            raise UsageError(f"the file of answers {self.file} is closed; open it again.")
        with self._errors(), self._database:
            yield self._database

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with entry_errors(self.file, "file of answers", "choose another file"):
            yield
