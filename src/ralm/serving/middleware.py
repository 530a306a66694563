"""Who may ask, and how much at once: checked before a request reaches any route.

The key never appears in a log or an answer. Without a key a server listens on this computer's own addresses, and only
answers requests that name one of them as their host, so that a page in a browser cannot reach it under a name of its
own.
"""

import hmac
import ipaddress
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ralm.errors import UsageError
from ralm.serving.errors import error_body

KEY: Final = "RALM_SERVE_KEY"
"""The environment variable with the key that clients must send."""
OPEN: Final = ("/health", "/")
"""Paths that need no key: they tell nothing of the model or its passages."""
_KEY_CHARACTERS: Final = re.compile("[!-~]+")
_PORT: Final = re.compile(r":\d*$")


def key_of(host: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key that clients must send, if any.

    Raises UsageError if there is none and the host is not this computer's own, or if no header could hold it.
    """
    key = environment.get(KEY) or None
    if key is None and not is_own(host):
        raise UsageError(
            f"`host` {host} lets other computers ask: put a key into the environment variable {KEY}, which clients "
            "then send, or listen on 127.0.0.1."
        )
    if key is not None and not _KEY_CHARACTERS.fullmatch(key):
        raise UsageError(f"the key in {KEY} has a space, a line break or a letter that is not ASCII; set it again.")
    return key


def is_own(host: str) -> bool:
    """Whether an address is one of this computer that no other can reach."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Lets a request through to `app` if it has the key (or, without one, an own host) and a body of `body_bytes` at
    most."""

    def __init__(self, app: ASGIApp, key: str | None, body_bytes: int) -> None:
        self._app = app
        self._key = None if key is None else key.encode()
        self._most = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        fault = self._fault(scope["path"], headers)
        if fault is not None:
            await fault(scope, receive, send)
            return
        await self._app(scope, _Counted(receive, self._most), send)

    def _fault(self, path: str, headers: Headers) -> JSONResponse | None:
        if self._key is None and not is_own(_PORT.sub("", headers.get("host", "localhost"))):
            said = "this server answers requests to localhost and 127.0.0.1 alone."
            return _refusal(403, said, "forbidden_host")
        if self._key is not None and path not in OPEN and not self._has_key(headers):
            said = "the key is missing or wrong: send the header Authorization: Bearer KEY."
            return _refusal(401, said, "invalid_api_key", {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self._most:
            return _refusal(413, too_large(self._most), "request_too_large")
        if (length != "0" or "transfer-encoding" in headers) and not _is_json(headers.get("content-type", "")):
            return _refusal(400, "the body must be JSON: send it with the header Content-Type: application/json.")
        return None

    def _has_key(self, headers: Headers) -> bool:
        assert self._key is not None
        kind, _, sent = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(sent.strip().encode("utf-8", "replace"), self._key)
        return same and kind.lower() == "bearer"


def _is_json(kind: str) -> bool:
    """Whether a body is JSON; what browsers send to other sites without asking is not."""
    return kind.partition(";")[0].strip().lower() == "application/json"


def too_large(most: int) -> str:
    """What is said of a body that is too large."""
    return f"the request has more than the {most:,} bytes that one may have: send less at once."


class _Counted:
    """The messages of a request, until its body is too large."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._read = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._read += len(message.get("body", b""))
        if self._read > self._most:
            raise HTTPException(413, too_large(self._most))
        return message


def _refusal(status: int, said: str, code: str | None = None, headers: Any = None) -> JSONResponse:
    return JSONResponse(error_body(said, status, code=code), status, headers)


_LOG: Final = logging.getLogger("ralm.serving")

_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


BATCH_FIGURES: Final = {
    "steps": "Steps in which texts were read together.",
    "texts": "Texts in these steps.",
    "seconds": "Seconds of these steps.",
    "passes": "Prompts, or parts of them, that were scored.",
}
"""What is told of `ralm.serving.batcher.Counts`, by name."""
SEARCH_FIGURES: Final = {
    "queries": "Queries that were searched.",
    "seconds": "Seconds that requests waited for them.",
}
"""What is told of `ralm.serving.indexes.Searches`, by name."""


class Metrics:
    """The figures of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "ralm_requests", "Requests by route and HTTP status.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "ralm_request_seconds", "Seconds of a request.", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.first = Histogram(
            "ralm_first_event_seconds",
            "Seconds until the first event of a stream.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.tokens = Counter(
            "ralm_tokens", "Tokens of prompts, and tokens that were written.", ["kind"], registry=self.registry
        )

    def watch(self, name: str, said: str, count: Callable[[], int]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(f"ralm_{name}", said, registry=self.registry).set_function(count)

    def watch_each(self, kind: str, figures: Mapping[str, str], counts: object) -> None:
        """A gauge for each of these attributes of `counts`, named after the kind; `figures` says what they are."""
        for name, said in figures.items():
            self.watch(f"{kind}_{name}", said, partial(getattr, counts, name))

    def text(self) -> bytes:
        """All figures in Prometheus's text format."""
        return generate_latest(self.registry)


_NO_ROUTE: Final = "none"


class AccessLog:
    """Counts every request that `app` answers, and logs it without its body or query."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and note it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.monotonic(), 499

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, counting)
        finally:
            self._note(scope, status, time.monotonic() - begin)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route: Any = scope.get("route")
        path = getattr(route, "path", _NO_ROUTE)  # never the client's: there may be any number of these
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        _LOG.info("%s %s %d in %.3f s", scope["method"], path, status, seconds)
