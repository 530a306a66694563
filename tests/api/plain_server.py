"""A small HTTP server for the tests of the client: it answers with whatever a test scripts."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What the server sends back: JSON, or text as it is."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    cut: bool = False
    """Break the connection off in the middle of the body."""


@dataclass
class Request:
    """What the server got; `number` counts the requests from 0."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: Any


class PlainServer:
    """`requests` are those so far, `most_at_once` how many of them were under way at once."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Request] = []
        self.most_at_once = 0
        self.at_once = 0
        self.lock = threading.Lock()


def echo(request: Request) -> Reply:
    """An answer that says what was asked, with its number of tokens."""
    return Reply({"said": request.body, "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


@contextmanager
def plain_server(reply: Callable[[Request], Reply] = echo) -> Iterator[PlainServer]:
    """A server on loopback that answers each request as `reply` says."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            content = self.rfile.read(length)
            if len(content) < length:
                return  # the client was killed
            with server.lock:
                server.at_once += 1
                server.most_at_once = max(server.most_at_once, server.at_once)
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = json.loads(content) if content else None
                request = Request(len(server.requests), self.command, self.path, headers, body)
                server.requests.append(request)
            answer = reply(request)
            time.sleep(answer.seconds)
            with server.lock:  # before the client may send the next one
                server.at_once -= 1
            self.send(answer)

        def send(self, reply: Reply) -> None:
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if reply.cut else content)
            self.close_connection = self.close_connection or reply.cut

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:
            pass  # clients of these tests break off

    with Quiet(("127.0.0.1", 0), Handler) as http:
        server = PlainServer(f"http://127.0.0.1:{http.server_address[1]}/v1")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
