"""The process of a server: its socket, its signals and its end.

SIGTERM or SIGINT finishes what runs, a second one stops at once; SIGHUP takes the indexes as their folders are now.
"""

import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Any, Final

import uvicorn

from ralm.errors import UsageError
from ralm.serving.app import make_app
from ralm.serving.service import Service
from ralm.terminal import no_progress

_LOG: Final = logging.getLogger("ralm.serving")
_ENDS: Final = (signal.SIGTERM, signal.SIGINT)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there; UsageError if the port is in use, or the address is not this computer's."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), port), family=family, backlog=512)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UsageError(
            f"{host}:{port} cannot be listened on ({reason.lower()}): choose another `port` or `host`."
        ) from None


def serve(service: Service, listening: socket.socket, ready: Callable[[str], None]) -> None:
    """Answer requests until a signal ends the process; `ready` is called with the address once it listens."""
    server = Server(service, listening, ready)
    with no_progress():
        service.warm_up()
        server.run()
        service.close()


class Server(uvicorn.Server):
    """A server that says when it is ready, and ends and reloads as this module's head says."""

    def __init__(self, service: Service, listening: socket.socket, ready: Callable[[str], None]) -> None:
        config = uvicorn.Config(
            make_app(service), access_log=False, log_config=None, log_level="warning", lifespan="on", ws="none"
        )
        super().__init__(config)
        self._service = service
        self._listening = listening
        self._ready = ready

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit`."""
        super().run([self._listening] if sockets is None else sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        if not self.should_exit:
            self._ready(address_of(self._listening))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Inside the block, signals end the server or reload its indexes; only in the main thread."""
        if current_thread() is not main_thread():
            yield
            return
        handlers: dict[int, Any] = {**dict.fromkeys(_ENDS, self._end), signal.SIGHUP: self._reload}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, _: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + number)
        self.should_exit = True

    def _reload(self, _: int, __: FrameType | None) -> None:
        Thread(target=self._reload_indexes, daemon=True).start()

    def _reload_indexes(self) -> None:
        for name, said in self._service.indexes.reload().items():
            _LOG.info("index %s: %s", name, said)


def address_of(listening: socket.socket) -> str:
    """The base URL of a server that listens there."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
