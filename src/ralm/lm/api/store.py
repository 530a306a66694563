"""Stores the answers of servers in one file, so that none is paid for twice, and only those of one model in a job.

The key of an answer is a hash of all that decides it: the identity of the model, the path and the body of the request.
Requests themselves, which hold passages and prompts, are not stored, and keys of APIs never get here.

`ModelChangeDetector` detects when a server switches models during a job. An answer may name the system and the model
that it comes from. For a new name the server continues a known text again: the same greedy tokens mean the same model,
and the name is accepted from then on, since hosted models often change their system. If answers name nothing, the known
text is continued from time to time.
"""

import asyncio
import json
import os
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

from pydantic import JsonValue

from ralm.errors import BudgetError, ServerError
from ralm.lm.api.transport import ApiRequest, JsonObject, read_json, write_json
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
    """Answers by their keys, in a file that is created if it is missing; a context manager.

    Raises InputError if the file is something else, StorageError if it cannot be opened, read or written.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._store = Store(file, "file of answers")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, key: bytes) -> JsonObject | None:
        """The answer with this key, or None if it is not known."""
        found = self._store.get([key])
        return read_json(zlib.decompress(found[key])) if found else None

    def put(self, key: bytes, answer: JsonObject) -> None:
        """Store an answer."""
        self._store.put([(key, zlib.compress(write_json(answer), 1))])

    def drop(self, keys: Iterable[bytes]) -> None:
        """Forget the answers with these keys."""
        self._store.delete(keys)

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._store.close()


_CHECK_EVERY: Final = 200
"""Answers without an origin between two checks. A check is one short request, at most half a percent more; at most so
many answers of another model go unnoticed."""
_TRIES: Final = 3
"""How often the known text is tried: computing in batches may swap two tokens that are about equally likely."""
_MAX_ORIGINS: Final = 20
"""Origins to accept; a server with more of them changes its name without meaning."""

Send: TypeAlias = Callable[[ApiRequest], Awaitable[JsonObject]]


class Origin(NamedTuple):
    """The system (`system_fingerprint`) and the model that an answer names, if any."""

    system: str | None
    model: str | None


def origin_of(answer: JsonObject) -> Origin:
    """The origin that an answer names."""
    system, model = (answer.get(name) for name in ("system_fingerprint", "model"))
    return Origin(system if isinstance(system, str) else None, model if isinstance(model, str) else None)


@dataclass(frozen=True, slots=True, eq=False)
class KnownText:
    """The request to continue a known text, and whether an answer to it is the expected model's."""

    request: ApiRequest
    is_same: Callable[[JsonObject], bool]


class ModelChangeDetector:
    """Stores the answers of one model and detects another one. All methods belong to one event loop.

    `origin` is the one that the model named before, if any. Without a known text, only the name of the model is
    compared.
    """

    def __init__(self, url: str, store: AnswerStore, known: KnownText | None, origin: Origin | None) -> None:
        self._url = url
        self._store = store
        self._known = known
        self._accepted = set[Origin]() if origin is None else {origin}
        self._unverified: list[bytes] = []
        self._turn = asyncio.Lock()
        self._error: ServerError | None = None

    async def keep(self, key: bytes, answer: JsonObject, send: Send) -> None:
        """Store an answer once it is known to come from the expected model; `send` sends a request.

        Raises ServerError if it may come from another one. Answers without an origin since the last check are then
        dropped.
        """
        origin = origin_of(answer)
        if origin.system is not None and origin in self._accepted:
            self._store.put(key, answer)
            return
        async with self._turn:  # one check at a time, so that the answers that wait for it share it
            if self._error is not None:
                raise self._error
            if origin not in self._accepted and len(self._accepted) < _MAX_ORIGINS:
                await self._check(origin, send)
                self._accepted.add(origin)
            self._store.put(key, answer)
            if origin.system is None or origin not in self._accepted:
                self._unverified.append(key)
            if len(self._unverified) >= _CHECK_EVERY:
                with suppress(BudgetError):
                    await self._check(origin, send)

    async def _check(self, origin: Origin, send: Send) -> None:
        if not await self._is_same(origin, send):
            self._store.drop(self._unverified)
            self._error = ServerError(
                f"{self._url} changed its model during the job: it continues a known text with other tokens than "
                "before, or the model has another name. The verified answers of the model before are kept; run this "
                "again to start over with the new one."
            )
            raise self._error
        self._unverified.clear()

    async def _is_same(self, origin: Origin, send: Send) -> bool:
        if self._known is None:
            return not self._accepted or origin.model in {one.model for one in self._accepted}
        for _ in range(_TRIES):
            if self._known.is_same(await send(self._known.request)):
                return True
        return False
