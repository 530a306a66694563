"""The gate before all routes: the key, the size of requests, metrics, the access log and the audit log.

The key never appears in a log or an answer. Without a key, a server listens on loopback addresses only, and requests
must name one of them as their host, so that a page in a browser cannot reach the server under another name.
"""

import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pydantic import JsonValue
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ralm.errors import UsageError
from ralm.lm.api.endpoint import key_in
from ralm.records import Passage
from ralm.serving.errors import GONE, RequestError, error_response

KEY: Final = "RALM_SERVE_KEY"
"""The environment variable with the key."""

ENTRY: Final = "ralm.audit"
"""The key of the entry of the audit log in the scope of a request."""
_OPEN: Final = ("/health", "/ready", "/")
"""Paths that need no key: they reveal nothing of the model or its passages."""
_PORT: Final = re.compile(r":\d*$")
_LOG: Final = logging.getLogger("ralm.serving")
_NO_ROUTE: Final = "none"
_NOT_AUDITED: Final = (*_OPEN, "/metrics")
_REQUEST_ID: Final = "x-request-id"
_MAX_PATH: Final = 1000
_MODE: Final = 0o600
_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Upper bounds of the buckets of durations."""
_SAFE_ID: Final = re.compile(r"[\w.:-]{1,128}", re.ASCII)


def open_key(host: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the key of the environment; UsageError if no header can hold it, or an open host lacks one."""
    key = key_in(KEY, environment)
    if key is None and not is_loopback(host):
        raise UsageError(
            f"other computers can reach `host` {host}: put a key for clients into the environment variable {KEY}, or "
            "listen on 127.0.0.1."
        )
    return key


def is_loopback(host: str) -> bool:
    """Return whether an address is a loopback address, which no other computer can reach."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


class Metrics:
    """The metrics of one server for Prometheus."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "ralm_requests", "Requests by route and HTTP status.", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "ralm_request_seconds", "Seconds of a request.", ["route"], buckets=_SECONDS, registry=registry
        )
        self.first = Histogram(
            "ralm_first_event_seconds", "Seconds until a stream's first event.", buckets=_SECONDS, registry=registry
        )
        self.under_way = Gauge("ralm_requests_under_way", "Requests that are computed.", registry=registry)
        self.waiting = Gauge("ralm_requests_waiting", "Requests in the queue.", registry=registry)
        self._tokens = Counter("ralm_tokens", "Tokens of prompts, and generated tokens.", ["kind"], registry=registry)

    def count_tokens(self, read: int, written: int) -> None:
        """Count tokens of prompts, and generated tokens."""
        self._tokens.labels("prompt").inc(read)
        self._tokens.labels("written").inc(written)


@dataclass(slots=True)
class AuditEntry:
    """What is known of a request; `finish` adds the rest of an answer when the request has ended."""

    model: str | None = None
    status: int | None = None
    """Set if it differs from the one that was sent."""
    passages: list[JsonValue] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish: Callable[["AuditEntry"], None] | None = None

    def add_passages(self, index: str | None, passages: Iterable[tuple[int, Passage]]) -> None:
        """Add passages with their ranks."""
        for rank, passage in passages:
            name = {"index": index, "passage": passage.number, "document_id": passage.document_id, "rank": rank}
            self.passages.append({**name})

    def as_json(self) -> dict[str, JsonValue]:
        """Return the fields that routes fill in."""
        if self.finish is not None:
            self.finish(self)
        return {
            "model": self.model,
            "passages": self.passages,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }


class AuditLog(WatchedFileHandler):
    """A line of JSON for each request, with its client and the passages that it got; UsageError if not writable.

    The file, which this user alone may read, is opened again once it was moved away.
    """

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(path, encoding="ascii")
        except OSError as error:
            raise UsageError(
                f"`audit_log` {path} cannot be written ({(error.strerror or str(error)).lower()}): name a file in a "
                "folder that this user may write to."
            ) from None

    def _open(self) -> Any:
        return open(  # the handler closes it
            self.baseFilename, "a", encoding=self.encoding, opener=lambda path, flags: os.open(path, flags, _MODE)
        )

    def write(self, entry: AuditEntry, head: dict[str, JsonValue]) -> None:
        """Append a line; a fault is logged, and the request goes on."""
        try:
            time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            line = json.dumps({"time": time, **head, **entry.as_json()}, separators=(",", ":"))
            self.handle(logging.LogRecord("ralm.audit", logging.INFO, "", 0, line, None, None))
        except Exception:  # noqa: BLE001  # a request does not fail by its log
            self.handleError(None)

    def handleError(self, record: logging.LogRecord | None) -> None:  # noqa: ARG002  # as the base class
        """Log that a line was lost."""
        _LOG.error("a line of the audit log %s was lost: %s", self.baseFilename, sys.exc_info()[1])


def entry_of(request: Any) -> AuditEntry:
    """Return the entry of a request."""
    entry: AuditEntry = request.scope[ENTRY]
    return entry


class Gate:
    """Passes on requests with the key (or, without one, to a loopback host) and a body of at most `body_bytes`.

    Counts and logs every request, without its body or query, and writes the audit log. Each answer has an
    `X-Request-Id`: that of the server of the model, of the client, or a new one.
    """

    def __init__(
        self, app: ASGIApp, key: str | None, body_bytes: int, metrics: Metrics, audit: AuditLog | None
    ) -> None:
        self._app = app
        self._key = None if key is None else _digest(key)
        self._body_bytes = body_bytes
        self._metrics = metrics
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or reject it, and log its status and duration."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status, is_sent = time.monotonic(), GONE, False
        request_id = Headers(scope=scope).get(_REQUEST_ID, "")
        if not _SAFE_ID.fullmatch(request_id):
            request_id = token_hex(12)
        entry = scope[ENTRY] = AuditEntry()

        async def noting(message: Message) -> None:
            nonlocal status, is_sent, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                request_id = MutableHeaders(scope=message).setdefault(_REQUEST_ID, request_id)
            await send(message)
            is_sent = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._guarded(scope, receive, noting)
        finally:
            seconds = time.monotonic() - begin
            path = getattr(scope.get("route"), "path", _NO_ROUTE)  # a client may send any number of other paths
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.labels(path).observe(seconds)
            _LOG.info("%s %s %d in %.3f s", scope["method"], path, status, seconds)
            if self._audit is not None and scope["path"] not in _NOT_AUDITED:
                self._audit.write(
                    entry,
                    {
                        "client": (scope.get("client") or (None,))[0],
                        "request_id": request_id,
                        "method": scope["method"],
                        "path": scope["path"][:_MAX_PATH],
                        "status": entry.status or (status if is_sent else GONE),
                        "seconds": round(seconds, 3),
                    },
                )

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope["path"], Headers(scope=scope))
            body = await self._body(receive)
        except RequestError as error:
            await error_response(error)(scope, receive, send)
            return
        if body is None:
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def next_message() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, next_message, send)

    async def _body(self, receive: Receive) -> bytes | None:
        """Return the body of a request; None if its client went away before the end."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None  # as no error: its traceback would hold the body for long
            body += message.get("body", b"")
            if len(body) > self._body_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                if not json.detect_encoding(body).startswith("utf-8"):
                    raise RequestError("the body must be encoded in UTF-8.")
                return bytes(body)

    def _too_large(self) -> RequestError:
        message = f"the request exceeds the limit of {self._body_bytes:,} bytes: send less at once."
        return RequestError(message, code="request_too_large", status=413)

    def _check(self, path: str, headers: Headers) -> None:
        """Raise RequestError if the headers are not those of a client that may ask."""
        if self._key is None and not is_loopback(_PORT.sub("", headers.get("host", "localhost"))):
            message = "this server answers only requests to localhost and 127.0.0.1."
            raise RequestError(message, code="forbidden_host", status=403)
        if self._key is not None and path not in _OPEN:
            kind, _, sent = headers.get("authorization", "").partition(" ")
            matches = hmac.compare_digest(self._key, _digest(sent.strip()))  # every wrong one takes the same time
            if not matches or kind.lower() != "bearer":
                message = "the key is missing or wrong: send the header Authorization: Bearer KEY."
                raise RequestError(message, code="invalid_api_key", status=401)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self._body_bytes:
            raise self._too_large()
        # bodies of other types are what browsers send to other sites without asking the server first
        is_json = headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
        if (length != "0" or "transfer-encoding" in headers) and not is_json:
            raise RequestError("the body must be JSON: send it with the header Content-Type: application/json.")
