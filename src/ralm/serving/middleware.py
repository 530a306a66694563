"""The key and the size of requests, checked before any route; metrics and the access log.

The key never appears in a log or an answer. Without a key, a server listens on loopback addresses only, and requests
must name one of them as their host, so that a page in a browser cannot reach the server under another name.
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
_OPEN: Final = ("/health", "/")
"""Paths that need no key: they reveal nothing of the model or its passages."""
_KEY_CHARACTERS: Final = re.compile("[!-~]+")
_PORT: Final = re.compile(r":\d*$")
_LOG: Final = logging.getLogger("ralm.serving")
_NO_ROUTE: Final = "none"


def key_of(host: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key that clients must send, if any.

    Raises UsageError if there is none and other computers can reach the host, or if a header cannot hold the key.
    """
    key = environment.get(KEY) or None
    if key is None and not is_loopback(host):
        raise UsageError(
            f"other computers can reach `host` {host}: put a key for clients into the environment variable {KEY}, or "
            "listen on 127.0.0.1."
        )
    if key is not None and not _KEY_CHARACTERS.fullmatch(key):
        raise UsageError(f"the key in {KEY} has a space, a line break or a letter that is not ASCII; set it again.")
    return key


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address, which no other computer can reach."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Passes on requests with the key (or, without one, a loopback host) and a body of at most `body_bytes`."""

    def __init__(self, app: ASGIApp, key: str | None, body_bytes: int) -> None:
        self._app = app
        self._key = None if key is None else key.encode()
        self._most = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or reject it."""
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
        if self._key is None and not is_loopback(_PORT.sub("", headers.get("host", "localhost"))):
            message = "this server answers only requests to localhost and 127.0.0.1."
            return _rejection(403, message, "forbidden_host")
        if self._key is not None and path not in _OPEN and not self._has_key(headers):
            message = "the key is missing or wrong: send the header Authorization: Bearer KEY."
            return _rejection(401, message, "invalid_api_key", {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self._most:
            return _rejection(413, _too_large(self._most), "request_too_large")
        if (length != "0" or "transfer-encoding" in headers) and not _is_json(headers.get("content-type", "")):
            return _rejection(400, "the body must be JSON: send it with the header Content-Type: application/json.")
        return None

    def _has_key(self, headers: Headers) -> bool:
        assert self._key is not None
        kind, _, sent = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(sent.strip().encode("utf-8", "replace"), self._key)
        return same and kind.lower() == "bearer"


def _is_json(kind: str) -> bool:
    """Whether a body is JSON; bodies that browsers send to other sites without a preflight are not."""
    return kind.partition(";")[0].strip().lower() == "application/json"


def _too_large(most: int) -> str:
    return f"the request exceeds the limit of {most:,} bytes: send less at once."


class _Counted:
    """The messages of a request; raises HTTPException once its body is too large."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._read = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._read += len(message.get("body", b""))
        if self._read > self._most:
            raise HTTPException(413, _too_large(self._most))
        return message


def _rejection(status: int, message: str, code: str | None = None, headers: Any = None) -> JSONResponse:
    return JSONResponse(error_body(message, status, code=code), status, headers)


_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


BATCH_FIGURES: Final = {
    "steps": "Steps in which texts were read together.",
    "texts": "Texts in these steps.",
    "seconds": "Seconds of these steps.",
    "passes": "Prompts, or parts of them, that were scored.",
}
"""The attributes of `Counts` of the batcher, with descriptions."""
SEARCH_FIGURES: Final = {
    "queries": "Queries that were searched.",
    "seconds": "Seconds that requests waited for them.",
}
"""The attributes of `Searches`, with descriptions."""


class Metrics:
    """The metrics of one server for Prometheus."""

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
            "ralm_tokens", "Tokens of prompts, and generated tokens.", ["kind"], registry=self.registry
        )

    def watch(self, name: str, description: str, count: Callable[[], int]) -> None:
        """Add a gauge whose value `count` returns."""
        Gauge(f"ralm_{name}", description, registry=self.registry).set_function(count)

    def watch_each(self, kind: str, figures: Mapping[str, str], counts: object) -> None:
        """Add a gauge for each of these attributes of `counts`; `figures` holds their descriptions."""
        for name, description in figures.items():
            self.watch(f"{kind}_{name}", description, partial(getattr, counts, name))

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)


class AccessLog:
    """Counts and logs every request, without its body or query."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and log its status and duration."""
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
            self._log(scope, status, time.monotonic() - begin)

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        route: Any = scope.get("route")
        path = getattr(route, "path", _NO_ROUTE)  # not the path of the client: there may be any number of these
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        _LOG.info("%s %s %d in %.3f s", scope["method"], path, status, seconds)
