"""The keys of clients: RALM_SERVE_KEY, and a file that gives each key a name and limits.

Keys never appear in a log, a message or an answer.
"""

import hashlib
import hmac
import ipaddress
import logging
import math
import os
import re
import time
import tomllib
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ralm.corpus.files import read_utf8
from ralm.errors import InputError, RalmError, UsageError
from ralm.serving.errors import RequestError

_LOG: Final = logging.getLogger("ralm.serving")
KEY: Final = "RALM_SERVE_KEY"
"""The environment variable with the key of the operator, who may also reload; its name in the audit log too."""
_CHARACTERS: Final = re.compile("[!-~]+")
"""The characters that a header may hold."""
_LIMITS: Final = ("requests_per_minute", "max_concurrency")
_FIELDS: Final = ("key", "key_env", *_LIMITS)
_MINUTE: Final = 60.0


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A key by its digest, with its name and limits; None is no limit."""

    name: str
    digest: bytes = field(repr=False)
    requests_per_minute: int | None = None
    max_concurrency: int | None = None


class _Usage:
    """The requests of a key that run, and the times of the last ones."""

    def __init__(self) -> None:
        self.running = 0
        self.times: deque[float] = deque()


class Keys:
    """The keys that clients may send: `own` and those of a file, of which there may be none; for one event loop.

    Raises UsageError and InputError if a key cannot be sent, or the file is not one of keys.
    """

    def __init__(
        self, own: str | None = None, file: Path | None = None, environment: Mapping[str, str] = os.environ
    ) -> None:
        if own is not None and not _CHARACTERS.fullmatch(own):
            raise UsageError(f"the key in {KEY} has a space, a line break or a letter that is not ASCII; set it again.")
        self._own = [] if own is None else [ClientKey(KEY, _digest(own))]
        self._file = file
        self._environment = environment
        self._usage: defaultdict[str, _Usage] = defaultdict(_Usage)
        self._keys = self._read()

    def __bool__(self) -> bool:
        """Whether clients must send a key."""
        return bool(self._keys)

    def find(self, sent: str) -> ClientKey | None:
        """The key that a client sent, None if it is none of these; takes the same time for every wrong one."""
        digest, found = _digest(sent), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    @contextmanager
    def use(self, key: ClientKey) -> Iterator[None]:
        """Count a request as long as the block runs; RequestError if it is beyond a limit of the key."""
        usage, now = self._usage[key.name], time.monotonic()
        while usage.times and now - usage.times[0] >= _MINUTE:
            usage.times.popleft()
        if key.max_concurrency is not None and usage.running >= key.max_concurrency:
            raise _too_many(f"this key may have {key.max_concurrency:,} requests at once", 1)
        if key.requests_per_minute is not None:
            if len(usage.times) >= key.requests_per_minute:
                seconds = math.ceil(_MINUTE - (now - usage.times[-key.requests_per_minute]))
                raise _too_many(f"this key may send {key.requests_per_minute:,} requests a minute", max(1, seconds))
            usage.times.append(now)
        usage.running += 1
        try:
            yield
        finally:
            usage.running -= 1

    def reload(self) -> None:
        """Read the file again, and log the outcome; the keys stay as they are if it cannot be used."""
        if self._file is None:
            return
        try:
            self._keys = self._read()
        except RalmError as error:
            _LOG.error("the keys stay as they were: %s", error)  # the sentence says it all
        else:
            _LOG.info("%d keys were read from %s", len(self._keys), self._file)

    def _read(self) -> list[ClientKey]:
        if self._file is None:
            return self._own
        try:
            tables = tomllib.loads(read_utf8(self._file, InputError))
        except ValueError as error:
            raise UsageError(f"{self._file} is not a file of keys: {error}.") from None
        keys = [*self._own]
        for name, table in tables.items():
            key = self._key(name, table)
            same = next((one.name for one in keys if hmac.compare_digest(one.digest, key.digest)), None)
            if same is not None:
                raise UsageError(f"{self._file}: [{name}] has the key of {same}: give each name its own.")
            keys.append(key)
        if not tables:
            raise UsageError(f"{self._file} has no key: add a table [NAME] with `key` or `key_env`.")
        return keys

    def _key(self, name: str, table: Any) -> ClientKey:
        where = f"{self._file}: [{name}]"
        if not isinstance(table, dict) or name == KEY:
            raise UsageError(f"{where} must be a table with the name of a client, other than {KEY}.")
        for one in table:
            if one not in _FIELDS:
                raise UsageError(f"{where} sets {one}; a key has {', '.join(_FIELDS)}.")
        if ("key" in table) == ("key_env" in table):
            raise UsageError(f"{where} needs either `key` or `key_env`, the name of an environment variable.")
        key = table["key"] if "key" in table else self._environment.get(str(table["key_env"]))
        if not isinstance(key, str) or not _CHARACTERS.fullmatch(key):
            raise UsageError(f"{where} has no key, or one with a space or a letter that is not ASCII: set it again.")
        for one in _LIMITS:
            value = table.get(one, 1)
            if type(value) is not int or value < 1:
                raise UsageError(f"{where}: `{one}` must be a whole number from 1 on.")
        return ClientKey(name, _digest(key), *(table.get(one) for one in _LIMITS))


def open_keys(host: str, file: Path | None = None, environment: Mapping[str, str] = os.environ) -> Keys:
    """The keys of the environment and of a file; UsageError if there is none and other computers can reach the host."""
    keys = Keys(environment.get(KEY) or None, file, environment)
    if not keys and not is_loopback(host):
        raise UsageError(
            f"other computers can reach `host` {host}: put a key for clients into the environment variable {KEY}, give "
            "a file of `keys`, or listen on 127.0.0.1."
        )
    return keys


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address, which no other computer can reach."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _too_many(message: str, seconds: int) -> RequestError:
    later = f"try again in {seconds} s"
    return RequestError(f"{message}: {later}.", code="rate_limit_exceeded", status=429, retry_after=seconds)
