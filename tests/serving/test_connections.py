"""Clients that send half a request, send too much at once, or do not read their answers: others are answered as ever,
the server ends when it is told to, and the log stays short."""

import json
import logging
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ralm.errors import UsageError
from ralm.records import IntArray, NextTokens
from ralm.serving import connections
from ralm.serving.options import Limits, ServeOptions
from ralm.serving.server import bound_socket
from ralm.serving.service import LocalService
from tests.api.backings import OfTable
from tests.serving.served import MODEL, PROMPTS, serving, tiny
from tests.serving.test_limits import limited, until

ASK: dict[str, Any] = {"model": MODEL, "prompt": PROMPTS[0], "max_tokens": 2, "temperature": 0}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LENGTH = HEAD + b"Content-Length: %d\r\n\r\n"
HALVES = {
    "nothing": b"",
    "half a line": b"GET /hea",
    "half of the headers": HEAD,
    "half a body": LENGTH % 1000 + b'{"model": ',
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n100\r\n{",
}
FULL = {**ASK, "echo": True, "max_tokens": 0, "logprobs": 20, "n": 128, "prompt": PROMPTS[5], "stream": True}
"""A request for more than the system keeps for a client that does not read."""


@contextmanager
def sent(url: str, content: bytes) -> Iterator[socket.socket]:
    """A connection on which this was sent."""
    address = urlsplit(url)
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.connect((address.hostname, address.port))
        opened.sendall(content)
        yield opened


def whole(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return LENGTH % len(content) + content


def received(opened: socket.socket, seconds: float = 30) -> bytes:
    """All that a connection gets until it ends, or until nothing comes for some seconds."""
    opened.settimeout(seconds)
    parts = []
    with suppress(ConnectionResetError, TimeoutError):
        while part := opened.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("half", HALVES)
def test_half_a_request_is_ended(monkeypatch: pytest.MonkeyPatch, half: str) -> None:
    monkeypatch.setattr(connections, "_HEADER_SECONDS", 0.5)
    with serving(limited(body_seconds=0.5)) as url, sent(url, HALVES[half]) as slow:
        begin = time.monotonic()
        answer = received(slow)
        assert time.monotonic() - begin < 10
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"] == (
        "the request did not arrive in 0.5 seconds: send it faster."
    )


def test_a_request_that_is_refused_is_not_read_for_ever() -> None:
    service = LocalService(tiny(), ServeOptions(limits=Limits(body_seconds=0.5)), key="a-key")
    with serving(service) as url, sent(url, HALVES["half a body"]) as slow:
        assert received(slow).startswith(b"HTTP/1.1 401 ")


def test_a_connection_stays_open_for_longer_than_clients_keep_it() -> None:
    """The pool of httpx drops a connection after 5 idle seconds, as uvicorn does: a request could meet its end."""
    with serving(limited()) as url:
        connection = HTTPConnection(urlsplit(url).netloc)
        connection.connect()
        first = connection.sock
        for seconds in (0, 6):
            time.sleep(seconds)
            connection.request("GET", "/health")
            assert connection.getresponse().read()
        assert connection.sock is first
        connection.close()


@pytest.mark.parametrize("half", HALVES)
def test_the_oldest_of_too_many_connections_is_closed(half: str) -> None:
    with serving(limited(connections=4)) as url, ExitStack() as stack:
        slow = [stack.enter_context(sent(url, HALVES[half])) for _ in range(6)]
        assert httpx.get(f"{url}/health").status_code == 200
        for opened in slow[:3]:
            answer = received(opened)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"there are too many connections: try again later." in answer
        assert received(slow[3], 0.5) == b""


def test_more_files_than_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: told.append(limits))
    connections.reserve_files(512)
    connections.reserve_files(10)
    assert told == [(768, 1000)]
    with pytest.raises(UsageError, match="`connections` 800 needs 1,056 open files, and this process may open 1,000"):
        connections.reserve_files(800)


def test_the_largest_of_too_many_bodies_is_rejected() -> None:
    service = limited(body_bytes=100_000, bodies=2)
    with serving(service) as url, ExitStack() as stack:
        bodies = [stack.enter_context(sent(url, LENGTH % 100_000 + b" " * (80_000 + n))) for n in range(5)]
        ended = [answer for one in bodies if (answer := received(one, 1))]
        assert len(ended) == 3
        assert all(one.startswith(b"HTTP/1.1 503 ") and b"\r\nretry-after: 1\r\n" in one for one in ended)
        assert all(b"the server receives too much at once: try again later." in one for one in ended)
        body = {**ASK, "model": "table-1", "prompt": "abc" * 10}
        for _ in range(3):
            assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize("half", HALVES)
def test_the_server_ends_beside_half_a_request(half: str) -> None:
    with ExitStack() as stack:
        with serving(limited()) as url:
            slow = stack.enter_context(sent(url, HALVES[half]))
            assert httpx.get(f"{url}/health").status_code == 200
            begin = time.monotonic()
        assert time.monotonic() - begin < 5
        answer = received(slow)
        assert not answer or b"the server is being stopped." in answer


@pytest.mark.parametrize("seconds", [0.5, 600])
def test_the_server_ends_beside_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(connections, "_READ_SECONDS", 600 if seconds == 0.5 else 1)
    service = LocalService(tiny(), ServeOptions(limits=Limits(shutdown_seconds=seconds)))
    with ExitStack() as stack:
        with serving(service) as url:
            stack.enter_context(sent(url, whole(FULL)))
            until(lambda: "ralm_first_event_seconds_count 1.0" in httpx.get(f"{url}/metrics").text, 60)
            begin = time.monotonic()
        assert time.monotonic() - begin < 20


class Stuck(OfTable):
    """A model that does not come back for some seconds."""

    def next_tokens(self, texts: Sequence[IntArray]) -> NextTokens:
        time.sleep(5)
        return super().next_tokens(texts)


def test_a_request_is_answered_in_time_whatever_its_thread_does() -> None:
    body = {**ASK, "model": "table-1", "prompt": "abc"}
    limits = Limits(seconds=0.5, requests_at_once=1)
    with serving(LocalService(Stuck(seed=1), ServeOptions(limits=limits))) as url:
        for words in ("timed out", "waited in the queue too long"):
            begin = time.monotonic()
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
            assert time.monotonic() - begin < 4
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "time_up")
            assert words in answer.json()["error"]["message"]


def test_one_line_a_minute_for_one_fault(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clock = [1000.0]
    monkeypatch.setattr("ralm.serving.connections.time.monotonic", lambda: clock[0])
    once, log = connections.OnceAMinute(), logging.getLogger("ralm.test_once")
    log.addFilter(once)
    caplog.set_level(logging.INFO, logger="ralm.test_once")
    for number in range(1000):
        log.warning("%d connections", number)
        log.warning("another fault")
        log.info("a request")
    clock[0] += 61
    log.warning("%d connections", 5)
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert lines == ["0 connections", "another fault", "5 connections (and 999 times more since the last line)"]
    assert len(caplog.records) == 1003


# ---- texts that are too long to be tokenised


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {**ASK, "ralm": {"query": "a " * 150_000}}, "ralm.query"),
        ("/v1/completions", {**ASK, "prompt": ["The", "a " * 150_000]}, "prompt"),
    ],
)
def test_lengths_are_checked_before_texts_are_tokenised(
    url: str, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], param: str
) -> None:
    seen, tokenizer = list[int](), tiny().tokenizer._tokenizer
    encode = tokenizer.encode

    def recording(text: str, **more: Any) -> Any:
        seen.append(len(text))
        return encode(text, **more)

    monkeypatch.setattr(tokenizer, "encode", recording)
    answer = httpx.post(f"{url}{path}", json=body, timeout=60)
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (param, "context_length_exceeded")
    assert max(seen, default=0) < 10_000


def test_pieces_of_a_stream_do_not_wait_for_an_acknowledgement() -> None:
    with bound_socket("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
