"""A server on 127.0.0.1 that imitates a provider, answers from a model of the test's, and fails as its script says.

    with ScriptedServer(OfTable(seed=1), VLLM(), faults=[Status(429, retry_after=0), None, Slow(2)]) as server:
        ...  # ask server.url; then see server.requests, server.most_at_once, server.times_asked

The script has one entry for each POST request, in the order of arrival: a fault, or None for an answer. It may be a
function of the request instead. Requests past its end are answered.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from typing import Any, Self, TypeAlias

from tests.api.backings import Backing
from tests.api.dialects.base import Call, Dialect
from tests.api.faults import NO_FAULT, Fault
from tests.api.replies import Json, RefusedError, Reply


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


Script: TypeAlias = Sequence[Fault | None] | Callable[[Request], Fault | None]


class ScriptedServer:
    """A server of a dialect in front of a model.

    It listens as soon as it is made, at `root`; `url` is the base URL of the OpenAI client. With a `key`, requests
    without it are refused. Every request takes `delay` seconds in addition, any number of them at the same time.
    """

    def __init__(
        self,
        backing: Backing,
        dialect: Dialect,
        *,
        model: str = "scripted",
        faults: Script = (),
        key: str | None = None,
        delay: float = 0.0,
        fingerprint: str = "fp_scripted",
    ) -> None:
        self.backing = backing
        self.dialect = dialect
        self.model = model
        self.faults = faults
        self.key = key
        self.delay = delay
        self.fingerprint = fingerprint
        self.requests: list[Request] = []
        self.most_at_once = 0
        self._at_once = 0
        self._numbers = Counter[str]()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._http = _HttpServer(self)
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
    def under_way(self) -> int:
        """How many requests wait for their answer."""
        with self._lock:
            return self._at_once

    @property
    def times_asked(self) -> Counter[str]:
        """How often each was asked, by `Request.asked`, of POST requests."""
        return Counter(request.asked for request in self.posts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close()
        if self._http.errors and kind is None:
            raise self._http.errors[0]

    def close(self) -> None:
        """Cut every connection and stop."""
        self._http.shutdown()
        self._http.cut_connections()
        self._ended.set()
        self._http.server_close()
        self._thread.join()

    def reply(self, method: str, path: str, body: Json, headers: Mapping[str, str]) -> Reply:
        """Record a request and answer it, or fail as the script says."""
        request, fault = self._recorded(method, path, body, headers)
        with self._under_way():
            self._ended.wait(self.delay + fault.seconds)
            instead = fault.instead(self.dialect.failure)
            return fault.sent(self._answer(request, fault)) if instead is None else instead

    def _recorded(self, method: str, path: str, body: Json, headers: Mapping[str, str]) -> tuple[Request, Fault]:
        with self._lock:
            request = Request(self._numbers[method], method, path, body, headers)
            self._numbers[method] += 1
            self.requests.append(request)
            return request, self._fault(request) or NO_FAULT

    def _fault(self, request: Request) -> Fault | None:
        if callable(self.faults):
            return self.faults(request)
        if request.method == "GET" or request.number >= len(self.faults):
            return None
        return self.faults[request.number]

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1

    def _answer(self, request: Request, fault: Fault) -> Reply:
        call = Call(
            number=request.number,
            body=request.body,
            backing=fault.backing(self.backing),
            fault=fault,
            model=self.model,
            fingerprint=fault.fingerprint or self.fingerprint,
        )
        try:
            if self.key not in (None, request.key) and self.dialect.needs_key(request.path):
                raise self.dialect.wrong_key(request.key)
            handler = self.dialect.routes().get((request.method, request.path))
            if handler is None:
                raise self.dialect.not_found(request.path)
            answer = handler(call)
            return answer if isinstance(answer, Reply) else Reply.of(answer)
        except RefusedError as refused:
            return refused.reply


class _HttpServer(ThreadingHTTPServer):
    """Keeps the connections, so that they can be cut, and the errors of the imitation itself."""

    daemon_threads = False
    request_queue_size = 256

    def __init__(self, scripted: ScriptedServer) -> None:
        self.scripted = scripted
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
        """Keep what is a bug of the imitation; clients may go whenever they like."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HttpServer

    def do_GET(self) -> None:
        self._serve(b"{}")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _serve(self, body: bytes) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            reply = self.server.scripted.reply(self.command, self.path, json.loads(body), headers)
        except Exception as error:
            self.server.errors.append(error)
            raise
        try:
            self._send(reply)
        except ConnectionError:
            self.close_connection = True

    def _send(self, reply: Reply) -> None:
        cut = reply.cut_after
        if cut is None or cut >= 0:
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(reply.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body[:cut])
        self.close_connection = self.close_connection or cut is not None
