"""The key that clients must send; it never appears in a log, a message or an answer."""

import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Mapping
from typing import Final

from ralm.errors import UsageError

KEY: Final = "RALM_SERVE_KEY"
"""The environment variable with the key."""
_CHARACTERS: Final = re.compile("[!-~]+")
"""The characters that a header may hold."""


class ServerKey:
    """A key by its digest. Raises UsageError if no header can hold it."""

    def __init__(self, key: str) -> None:
        if not _CHARACTERS.fullmatch(key):
            raise UsageError(f"the key in {KEY} has a space, a line break or a letter that is not ASCII; set it again.")
        self._digest = _digest(key)

    def matches(self, sent: str) -> bool:
        """Return whether a client sent this key; every wrong one takes the same time."""
        return hmac.compare_digest(self._digest, _digest(sent))


def open_key(host: str, environment: Mapping[str, str] = os.environ) -> ServerKey | None:
    """Return the key of the environment; UsageError if there is none and other computers can reach the host."""
    if key := environment.get(KEY):
        return ServerKey(key)
    if not is_loopback(host):
        raise UsageError(
            f"other computers can reach `host` {host}: put a key for clients into the environment variable {KEY}, or "
            "listen on 127.0.0.1."
        )
    return None


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
