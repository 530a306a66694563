"""A server of chats on loopback, in a thread of the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from ralm.serving.running import Server, bound_socket
from ralm.serving.service import Service


@contextmanager
def served(service: Service) -> Iterator[str]:
    """The address of a server that runs inside the block."""
    ready = Event()
    with bound_socket("127.0.0.1", 0) as listening:
        said: list[str] = []

        def is_ready(url: str) -> None:
            said.append(url)
            ready.set()

        server = Server(service, listening, is_ready)
        thread = Thread(target=server.run)
        thread.start()
        assert ready.wait(60)
        try:
            yield said[0]
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()
