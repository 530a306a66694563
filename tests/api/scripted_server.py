"""Servers on 127.0.0.1 for tests: one that answers as a function says, and one that imitates a provider.

    with ScriptedServer(OfTable(seed=1), VLLM(), faults=[Status(429, retry_after=0), None, Slow(2)]) as server:
        ...  # ask server.url; then see server.requests, server.most_at_once, server.times_asked

The script has one entry for each POST request, in the order of arrival: a fault, or None for an answer. It may be a
function of the request instead. Requests past its end are answered.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from typing import Any, Self, TypeAlias

from tests.api.backings import Backing
from tests.api.dialects import Call, Dialect
from tests.api.faults import NO_FAULT, Fault
from tests.api.writing import Json, RefusedError, Reply


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came: its number among those of its method (from 0), and its headers in lower case."""

    number: int
    method: str
    path: str
    body: Json
    headers: Mapping[str, str]

    @property
    def key(self) -> str:
        """The key that was sent, or ""."""
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    @property
    def asked(self) -> str:
        """What was asked, as text: requests with the same path and body are equal."""
        return f"{self.path} {json.dumps(self.body, sort_keys=True)}"


class HttpServer:
    """A server that answers each request as `reply` says, any number of them at the same time.

    It listens as soon as it is made, at `root`; `url` is the base URL of the OpenAI client.
    """

    def __init__(self, reply: Callable[[Request], Reply]) -> None:
        self.requests: list[Request] = []
        self.at_once = 0
        self.most_at_once = 0
        self._reply = reply
        self._numbers = Counter[str]()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._http = _Listener(self)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def root(self) -> str:
        """The server's address, without a slash at the end."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def url(self) -> str:
        """The base URL of OpenAI's routes."""
        return f"{self.root}/v1"

    @property
    def posts(self) -> list[Request]:
        """The requests that a model was asked for, those that failed included."""
        return [request for request in self.requests if request.method == "POST"]

    @property
    def times_asked(self) -> Counter[str]:
        """How often each was asked, by `Request.asked`, of POST requests."""
        return Counter(request.asked for request in self.posts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._http.shutdown()
        self._http.cut_connections()
        self._ended.set()
        self._http.server_close()
        self._thread.join()
        if self._http.errors and kind is None:
            raise self._http.errors[0]

    def wait(self, seconds: float) -> None:
        """Wait, unless the server ends."""
        self._ended.wait(seconds)

    def answer(self, method: str, path: str, body: Json, headers: Mapping[str, str]) -> Reply:
        """Record a request; its answer, after the seconds that it takes."""
        with self._lock:
            request = Request(self._numbers[method], method, path, body, headers)
            self._numbers[method] += 1
            self.requests.append(request)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            reply = self._reply(request)
            self.wait(reply.seconds)
            return reply
        finally:
            with self._lock:
                self.at_once -= 1


Script: TypeAlias = Sequence[Fault | None] | Callable[[Request], Fault | None]


class ScriptedServer(HttpServer):
    """A server of a dialect in front of a model.

    With a `key`, requests without it are refused.
    """

    def __init__(
        self,
        backing: Backing,
        dialect: Dialect,
        *,
        model: str = "scripted",
        faults: Script = (),
        key: str | None = None,
    ) -> None:
        self.backing = backing
        self.dialect = dialect
        self.model = model
        self.faults = faults
        self.key = key
        super().__init__(self._scripted)

    def _scripted(self, request: Request) -> Reply:
        """The answer to a request, or the failure that the script has for it."""
        fault = self._fault(request) or NO_FAULT
        instead = fault.instead(self.dialect.failure)
        reply = fault.sent(self._answer(request, fault)) if instead is None else instead
        return replace(reply, seconds=fault.seconds)

    def _fault(self, request: Request) -> Fault | None:
        if callable(self.faults):
            return self.faults(request)
        if request.method == "GET" or request.number >= len(self.faults):
            return None
        return self.faults[request.number]

    def _answer(self, request: Request, fault: Fault) -> Reply:
        call = Call(
            number=request.number, body=request.body, backing=fault.backing(self.backing), fault=fault, model=self.model
        )
        try:
            if self.key not in (None, request.key):
                raise self.dialect.wrong_key(request.key)
            handler = self.dialect.routes().get((request.method, request.path))
            if handler is None:
                raise self.dialect.not_found(request.path)
            return Reply(handler(call))
        except RefusedError as refused:
            return refused.reply


class _Listener(ThreadingHTTPServer):
    """Keeps the connections, so that they can be cut, and the errors of the imitation itself."""

    daemon_threads = False
    request_queue_size = 256

    def __init__(self, owner: HttpServer) -> None:
        self.owner = owner
        self.errors: list[BaseException] = []
        self._open: set[socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def cut_connections(self) -> None:
        for connection in list(self._open):
            try:
                connection.shutdown(SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may go whenever they like."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    do_DELETE = do_POST

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        content = self.rfile.read(length)
        if len(content) < length:
            return  # the client was killed
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            reply = self.server.owner.answer(self.command, self.path, json.loads(content or b"{}"), headers)
        except Exception as error:
            self.server.errors.append(error)
            raise
        try:
            self._send(reply)
        except ConnectionError:
            self.close_connection = True

    def _send(self, reply: Reply) -> None:
        content, cut = reply.content, reply.cut_after
        if reply.raw is not None:
            self.close_connection = True
            for part in reply.raw(content):
                self.server.owner.wait(part) if isinstance(part, float) else self.wfile.write(part)
            return
        if cut is None or cut >= 0:
            self.send_response(reply.status)
            for name, value in {"Content-Type": reply.kind, **reply.headers, "Content-Length": len(content)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(content[:cut])
        self.close_connection = self.close_connection or cut is not None
