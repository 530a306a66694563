"""The connections of a server: their number, how long clients may take to send and to read, and lines in the log.

uvicorn limits neither. Clients that send nothing, half a request or half a body, or that do not read their answers,
would hold connections for ever, and a process without a free file descriptor answers nobody.
"""

import asyncio
import json
import logging
import re
import time
from enum import Enum, auto
from math import inf
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ralm.errors import UsageError
from ralm.serving.errors import error_body
from ralm.serving.options import Limits

_LOG: Final = logging.getLogger("ralm.serving")
_HEADER_SECONDS: Final = 10.0
"""Seconds in which the headers of a request must arrive."""
_READ_SECONDS: Final = 60.0
"""Seconds after which a client that reads nothing of its answer is disconnected."""
_KEEP_ALIVE_SECONDS: Final = 75
"""Seconds for which an idle connection is kept: longer than clients and proxies keep theirs (httpx 5, aiohttp 15, nginx
60), or a request would meet a connection that is just being closed."""
_OTHER_FILES: Final = 256
"""File descriptors for all else: models, indexes, servers of models."""
_ACCEPTED_AT_ONCE: Final = 64
"""Connections that asyncio accepts before it closes others: each has a file descriptor meanwhile."""
_CLOSED_AT_ONCE: Final = 32
"""The part of all connections, 1/32, that is closed if there are too many: a flood must not cost a search for each."""
_GRACE: Final = 5
_MINUTE: Final = 60.0
_MOST_FAULTS: Final = 1000
"""Faults that are told apart in the log."""


class Phase(Enum):
    """What a connection waits for."""

    IDLE = auto()
    HEADERS = auto()
    BODY = auto()
    SERVER = auto()
    READER = auto()


class ServerConfig(uvicorn.Config):
    """The configuration of uvicorn, the limits of connections, and `held`, the bytes of all their requests."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        super().__init__(
            app,
            http=Connection,
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            log_level="warning",
            backlog=_ACCEPTED_AT_ONCE,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            # only for requests that do not end without their connections
            timeout_graceful_shutdown=int(limits.shutdown_seconds) + _GRACE,
        )
        self.limits = limits
        self.held = 0


class Connection(H11Protocol):
    """A connection that ends if its client is too slow.

    If there are too many, the one that has waited longest for a request ends; if all bodies together are too large, the
    one with the largest incomplete body: a small request is answered beside others that never end.
    """

    def __init__(self, config: ServerConfig, *arguments: Any, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self._shared = config
        self._held = 0
        self._since = time.monotonic()
        self._seen: tuple[Any, ...] = ()
        self._seconds = {Phase.HEADERS: _HEADER_SECONDS, Phase.BODY: config.limits.body_seconds}
        self._seconds[Phase.READER] = _READ_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin a connection; end another one if there are too many."""
        super().connection_made(transport)
        most = self._shared.limits.connections
        if len(self.connections) > most and len(self._in(*Phase)) > most:
            _LOG.warning("there are too many connections: the oldest without a request were closed")
            waiting = sorted(self._in(Phase.IDLE, Phase.HEADERS, Phase.BODY), key=lambda one: one._since)
            for one in waiting[: most // _CLOSED_AT_ONCE + 1]:
                one.end(503, "there are too many connections: try again later.")

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request; end the one with the largest body if all together are too large."""
        super().data_received(data)
        if self.conn.our_state is not h11.SEND_RESPONSE:
            return  # answered already: what follows is dropped
        self._held += len(data)
        self._shared.held += len(data)
        if self._shared.held > self._shared.limits.bodies * self._shared.limits.body_bytes:
            _LOG.warning("all requests together are too large: one was rejected")
            largest = max(self._in(Phase.BODY), key=lambda one: one._held, default=self)
            largest.end(503, "the server receives too much at once: try again later.")

    def _in(self, *phases: Phase) -> list["Connection"]:
        """The connections in these phases, without those that are being closed."""
        ours = [one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()]
        return [one for one in ours if one.phase in phases]

    def on_response_complete(self) -> None:
        """Forget the request, and wait for the next."""
        self._release()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._release()
        super().connection_lost(exc)

    def _release(self) -> None:
        self._shared.held -= self._held
        self._held = 0

    @property
    def phase(self) -> Phase:
        """What the connection waits for."""
        is_answered = self.cycle is not None and self.cycle.response_complete
        if self.transport.get_write_buffer_size() and (is_answered or self.flow.write_paused):
            return Phase.READER
        if self.conn.their_state is h11.SEND_BODY:
            return Phase.BODY
        if self.conn.their_state is not h11.IDLE:
            return Phase.SERVER
        return Phase.HEADERS if self.cycle is None or self.conn.trailing_data[0] else Phase.IDLE

    def check(self, now: float) -> None:
        """End the connection if its client takes too long; called every second."""
        phase = self.phase
        unsent = self.transport.get_write_buffer_size() if phase is Phase.READER else 0
        if (phase, unsent, self.cycle) != self._seen:
            self._since = now if self._seen else self._since  # at first, since the connection was made
            self._seen = phase, unsent, self.cycle
        elif now - self._since > self._seconds.get(phase, inf):
            _LOG.warning("a client took too long to %s: its connection was closed", _TOO_SLOW[phase])
            self.end(408, f"the request did not arrive in {self._seconds[phase]:g} seconds: send it faster.")

    def end(self, status: int, message: str) -> None:
        """Close the connection, with an error if no response was begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE) or self.transport.is_closing():
            self.transport.abort()
            return
        content = json.dumps(error_body(message, status)).encode()
        headers = {"content-type": "application/json", "content-length": str(len(content)), "connection": "close"}
        if status == 503:
            headers["retry-after"] = "1"
        for event in (
            h11.Response(status_code=status, headers=[*headers.items()]),
            h11.Data(data=content),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def shutdown(self) -> None:
        """End the connection after its response; at once if its request is not complete."""
        if self.phase is Phase.BODY:
            self.end(503, "the server is being stopped.")
        else:
            super().shutdown()


_TOO_SLOW: Final = {
    Phase.HEADERS: "send a request",
    Phase.BODY: "send the body of a request",
    Phase.READER: "read its answer",
}


class OnceAMinute(logging.Filter):
    """Passes a warning or an error on once a minute, with the number of those that were left out before."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[object, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        if record.levelno < logging.WARNING:
            return True
        first_line = record.getMessage().partition("\n")[0]
        fault = re.sub(r"\d+", "", first_line), repr(record.exc_info and record.exc_info[1])
        now, (last, left_out) = time.monotonic(), self._last.get(fault, (-inf, 0))
        if now - last < _MINUTE:
            self._last[fault] = last, left_out + 1
            return False
        if len(self._last) >= _MOST_FAULTS:
            self._last.clear()
        self._last[fault] = now, 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out:,} times more since the last line)", ()
        return True


def reserve_files(connections: int) -> None:
    """Let this process open a file for each connection; UsageError if the system does not allow so many."""
    import resource

    needed = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UsageError(
            f"`connections` {connections:,} needs {needed:,} open files, and this process may open {hard:,}: lower it, "
            "or raise the limit (ulimit -Hn)."
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
