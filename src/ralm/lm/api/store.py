"""Stores the answers of servers in one file, so that none is paid for twice.

The key of an answer is a hash of all that decides it: the identity of the model, the path and the body of the request.
Requests themselves, which hold passages and prompts, are not stored, and keys of APIs never get here.
"""

import json
import os
import zlib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from ralm.lm.api.transport import JsonObject, read_json, write_json
from ralm.storage.store import Store

CACHE: Final = "RALM_CACHE"
"""The environment variable with the folder for files that ralm keeps between runs."""


def default_answers(environment: Mapping[str, str] = os.environ) -> Path:
    """The default file of answers: `answers.sqlite` in $RALM_CACHE, or else in the user's cache."""
    if named := environment.get(CACHE):
        return Path(named) / "answers.sqlite"
    caches = environment.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "ralm" / "answers.sqlite"


def answer_key(identity: str, path: str, body: Mapping[str, JsonValue]) -> bytes:
    """The key of the answer of a model to a request (32 bytes); the order of the names in a body does not matter."""
    return sha256(json.dumps([identity, path, body], sort_keys=True, separators=(",", ":")).encode()).digest()


class AnswerStore:
    """Answers by their keys, compressed, in a `Store`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._store = Store(file, "file of answers")

    def get(self, key: bytes) -> JsonObject | None:
        """The answer with this key, or None if it is not known."""
        found = self._store.get([key])
        return read_json(zlib.decompress(found[key])) if found else None

    def put(self, key: bytes, answer: JsonObject) -> None:
        """Store an answer."""
        self._store.put([(key, zlib.compress(write_json(answer), 1))])

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._store.close()
