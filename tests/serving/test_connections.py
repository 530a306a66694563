"""Clients that send half a request, or do not read their answers: others are answered as ever, and the server ends when
it is told to."""

import json
import resource
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ralm.records import IntArray, NextTokens
from ralm.serving import server
from ralm.serving.options import Limits, ServeOptions
from ralm.serving.server import bound_socket
from tests.api.backings import OfTable
from tests.serving.process import running
from tests.serving.served import MODEL, PROMPTS, local, serving, tiny
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
MOST_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
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


def test_more_half_requests_than_a_process_may_open_files_by_default(index: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES, MOST_FILES))
    lower = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, {MOST_FILES}))"
    with running("--index", index, "--limits", "shutdown_seconds=10", before=lower) as served, ExitStack() as stack:
        for half in [*HALVES.values()] * 220:
            stack.enter_context(sent(served.url, half))
        assert httpx.get(f"{served.url}/search", params={"q": "the sea"}, timeout=30).json()["hits"]
        served.process.send_signal(signal.SIGTERM)
        assert served.ended(30) == 0
        assert "Traceback" not in "".join(served.lines)


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


def test_the_server_ends_beside_a_client_that_does_not_read() -> None:
    service = local(tiny(), ServeOptions(limits=Limits(shutdown_seconds=0.5)))
    with ExitStack() as stack:
        with serving(service) as url:
            stack.enter_context(sent(url, whole(FULL)))
            until(lambda: "ralm_first_event_seconds_count 1.0" in httpx.get(f"{url}/metrics").text, 60)
            until(lambda: "ralm_requests_under_way 0.0" in httpx.get(f"{url}/metrics").text, 60)
            begin = time.monotonic()
        assert time.monotonic() - begin < 20


def test_a_client_that_does_not_read_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_UNREAD_SECONDS", 1)
    with serving(local(tiny())) as url, sent(url, whole(FULL)) as unread:
        until(lambda: 'status="200"} 1.0' in httpx.get(f"{url}/metrics").text.partition("completions")[2], 60)
        assert b"[DONE]" not in received(unread)


class Stuck(OfTable):
    """A model that does not come back for some seconds."""

    def next_tokens(self, texts: Sequence[IntArray]) -> NextTokens:
        time.sleep(5)
        return super().next_tokens(texts)


def test_a_request_is_answered_in_time_whatever_its_thread_does() -> None:
    body = {**ASK, "model": "table-1", "prompt": "abc"}
    limits = Limits(seconds=0.5, requests_at_once=1)
    with serving(local(Stuck(seed=1), ServeOptions(limits=limits))) as url:
        for words in ("timed out", "waited in the queue too long"):
            begin = time.monotonic()
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
            assert time.monotonic() - begin < 4
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "time_up")
            assert words in answer.json()["error"]["message"]


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
