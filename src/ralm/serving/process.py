"""The process of a server: its socket, its signals and its end.

SIGTERM or SIGINT ends the server after the running requests, a second one at once; SIGHUP reloads the indexes.
Headers and bodies that drip from the open internet are the work of a reverse proxy.
"""

import asyncio
import atexit
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from threading import Thread
from typing import Final

import uvicorn

from ralm.errors import UsageError
from ralm.retrieval.bm25.kernels import load_compiler
from ralm.serving.server import make_app
from ralm.serving.state import SearchService
from ralm.terminal import no_progress

_LOG: Final = logging.getLogger("ralm.serving")
_BACKLOG: Final = 2048
"""Connections that the system holds until they are accepted."""
_UNREAD_SECONDS: Final = 60
"""Seconds after which the system ends the connection of a client that reads nothing of its answer."""
_KEEP_ALIVE_SECONDS: Final = 75
"""Seconds for which an idle connection is kept: longer than by clients and proxies (httpx 5, aiohttp 15, nginx 60)."""
_FOLLOW_SECONDS: Final = 5
"""Between two looks at the folders of indexes with `follow`."""
_REQUESTS_SHARE: Final = 0.9
"""The part of `shutdown_seconds` in which requests may end; the rest is for cutting them off."""


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; UsageError if the port is in use, or this computer has no such address."""
    name, family = host.strip("[]"), socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(name, port, family)
        listening = socket.create_server((name, port), family=family, backlog=_BACKLOG)
    except (OSError, ValueError) as error:  # ValueError: no name can be so
        reason = str(getattr(error, "strerror", error)).partition(" (while")[0].lower()
        raise UsageError(f"cannot listen on {host}:{port} ({reason}): choose another `port` or `host`.") from None
    # accepted connections inherit these; without the first, a stream on a kept connection waits 40 ms for an ACK
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _UNREAD_SECONDS)
    return listening


def address_of(listening: socket.socket) -> str:
    """Return the base URL of a server that listens on this socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(service: SearchService, listening: socket.socket, ready: Callable[[str], None]) -> None:
    """Answer requests until a signal ends the server; call `ready` with its address once it listens."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # each connection has a file
    with no_progress():
        load_compiler()
        service.warm_up()
        signal.signal(signal.SIGHUP, lambda *_: _reload(service))
        RalmServer(service, ready).run([listening])
        service.close()


def _reload(service: SearchService) -> None:
    """Open the indexes again, in a thread."""

    def reload() -> None:
        for name, outcome in service.indexes.reload().items():
            _LOG.info("index %s: %s", name, outcome)

    Thread(target=reload, daemon=True).start()


class RalmServer(uvicorn.Server):
    """A server that calls `ready` with its address once it listens, and ends within `shutdown_seconds`."""

    def __init__(self, service: SearchService, ready: Callable[[str], None]) -> None:
        super().__init__(
            uvicorn.Config(
                make_app(service),
                http="h11",  # it bounds the size of headers
                ws="none",
                lifespan="on",
                access_log=False,
                log_config=None,
                log_level="warning",
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_notify=_FOLLOW_SECONDS,
                callback_notify=self._follow if service.options.follow else None,
            )
        )
        self._service = service
        self._ready = ready
        self._seconds = service.options.limits.shutdown_seconds

    # Private: uvicorn's steps of a server and its connections; test_running.py.
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and call `ready`."""
        await super().startup(sockets)
        if not self.should_exit and sockets:
            self._ready(address_of(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End connections after their responses, or when the time for them is over."""
        cutting = asyncio.get_running_loop().call_later(self._seconds * _REQUESTS_SHARE, self._cut_off)
        await super().shutdown(sockets)
        cutting.cancel()

    def _cut_off(self) -> None:
        _LOG.warning("requests that did not end in %g seconds were cut off", self._seconds * _REQUESTS_SHARE)
        for connection in self.server_state.connections:
            connection.transport.abort()

    def handle_exit(self, sig: int, _: object) -> None:
        """End after the running requests, within `shutdown_seconds` whatever threads do; at a second signal at once."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True
        signal.signal(signal.SIGALRM, self._exit_now)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # all threads that are waited for have ended then

    def _exit_now(self, *_: object) -> None:
        _LOG.warning("the server did not end in %g seconds: it was stopped", self._seconds)
        os._exit(1)

    async def _follow(self) -> None:
        if self._service.indexes.have_changed():
            _reload(self._service)
