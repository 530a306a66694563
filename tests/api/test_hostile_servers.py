"""Servers that are broken or mean harm: an answer is right or a clean error, in bounded time and memory, and none is
stored that cannot be used."""

import gzip
import math
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from ralm.errors import ServerError, UsageError
from ralm.lm.api.client import Client, answer_key
from ralm.lm.api.endpoint import ApiOptions, Endpoint
from ralm.records import FloatArray, ScoringSequence
from tests.api.backings import OfTable
from tests.api.dialects import OpenAI
from tests.api.faults import Fault, InTheMiddle, Raw, Status
from tests.api.served import EXACT, VOCABULARY, check_sentence, served

TABLE = OfTable(seed=2, vocabulary=VOCABULARY)
PASSES = [ScoringSequence(TABLE.tokenizer.encode(text), np.array([1, 3])) for text in ("The list", "A river", "A sea")]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Play: TypeAlias = Callable[[bytes], Iterator[bytes | float]]


def scored(model: Any) -> FloatArray:
    return np.concatenate([*model.score(PASSES)])


# What takes no end, or is no answer


def whole(body: bytes, *headers: bytes) -> Iterator[bytes | float]:
    head = [HEAD.strip(), b"Connection: close", *headers]  # the server closes it
    yield b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])


def endless(part: bytes, begin: bytes = HEAD, seconds: float = 0.0) -> Play:
    """The same bytes for ever."""

    def play(_: bytes) -> Iterator[bytes | float]:
        yield begin
        while True:
            yield part
            if seconds:
                yield seconds

    return play


def bomb(*encodings: bytes) -> Play:
    """64 MiB of zeros, compressed once or twice."""

    def play(_: bytes) -> Iterator[bytes | float]:
        body = bytes(1 << 26)
        for _ in encodings:
            body = gzip.compress(body)
        yield from whole(body, b"Content-Encoding: " + b", ".join(encodings))

    return play


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SLOW, LONG = "did not answer within 0.5 seconds; tried once", "its answer has more than 1,"
HARM: dict[str, tuple[Play, str]] = {
    "dripped body": (endless(b" ", HEAD + b"Content-Length: 100000\r\n\r\n", 0.05), SLOW),
    "dripped headers": (endless(b"a", HEAD + b"X-Long: ", 0.05), SLOW),
    "dripped status": (endless(b"1", b"HTTP/1.1 2", 0.05), SLOW),
    "slow early hints": (endless(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", b"", 0.01), SLOW),
    "early hints": (endless(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", b""), SLOW),
    "slow chunks": (endless(b"1\r\n \r\n", CHUNKED, 0.05), SLOW),
    "endless chunks": (endless(b"10000\r\n" + bytes(65536) + b"\r\n", CHUNKED), LONG),
    "endless body": (endless(bytes(65536), HEAD + b"Connection: close\r\n\r\n"), LONG),
    "gzip": (bomb(b"gzip"), LONG),
    "gzip twice": (bomb(b"gzip", b"gzip"), LONG),
    "deflate": (endless(bytes(65536), HEAD + b"Content-Encoding: deflate\r\n\r\n"), "cannot be reached or broke off"),
    "endless headers": (endless(b"X-A: " + b"a" * 1000 + b"\r\n"), "cannot be reached or broke off"),
}


@pytest.mark.parametrize("name", HARM)
def test_what_takes_no_end_ends_in_bounded_time_and_memory(name: str) -> None:
    play, said = HARM[name]
    with served(TABLE, OpenAI(), options={"timeout": 0.5 if said == SLOW else 60.0, "retries": 0}) as (server, model):
        server.faults = lambda _: Raw(play)
        begun, memory = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(ServerError) as raised:
            scored(model)
        assert time.monotonic() - begun < 60, "it hangs"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300_000, "kilobytes"
    assert said in str(raised.value)
    check_sentence(raised.value)


def test_a_long_answer_with_all_that_was_asked_for_is_read() -> None:
    with served(OfTable(seed=2, vocabulary=6_000), EXACT["llama.cpp"], options={"top_logprobs": 6_000}) as (_, model):
        given = model.continuations().next_tokens([PASSES[0].tokens_N])
    assert given.log_probs_BC.shape == (1, 6_000)


def test_a_server_without_encryption_is_named_as_such(tmp_path: Path) -> None:
    with served(TABLE, OpenAI()) as (server, _):
        plain = server.url.replace("http:", "https:")
        options = ApiOptions(answers=tmp_path / "answers", retries=0)
        with (
            Client(Endpoint(plain, "m"), options) as client,
            pytest.raises(ServerError, match="no encrypted conn") as e,
        ):
            client.get("/models")
    check_sentence(e.value)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
@pytest.mark.parametrize(
    "value", ["http://a\nb:1", "http://a\x01b", "http://[::1", "http://host:port", "socks9://host:1"]
)
def test_proxies_that_cannot_be_used(
    variable: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(
        UsageError, match="the proxy or the certificates that the environment names cannot be"
    ) as raised:
        Client(Endpoint("http://host/v1", "m"), ApiOptions(answers=tmp_path / "answers"))
    check_sentence(raised.value)


# What is stored


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *((kind, InTheMiddle(math.nan)) for kind in ("echo", "vllm")),
        *((kind, Status(200, body={"choices": []})) for kind in EXACT),
    ],
)
def test_an_answer_that_cannot_be_used_is_not_stored(kind: str, fault: Fault) -> None:
    with served(TABLE, EXACT[kind]) as (server, model):
        server.faults = lambda _: fault
        with pytest.raises(ServerError, match=r"not stored in .*answers\.sqlite; run this again\.") as raised:
            scored(model)
        check_sentence(raised.value)
        server.faults = ()
        np.testing.assert_allclose(scored(model), scored(TABLE), atol=1e-5)


def test_a_stored_answer_that_cannot_be_used_is_asked_for_again() -> None:
    with served(TABLE, EXACT["vllm"]) as (server, model):
        for one in PASSES:
            request = model.backend.scoring_request(one.tokens_N)
            model.client.store.put(answer_key(model.client.identity, request.path, request.body), {"choices": [None]})
        np.testing.assert_allclose(scored(model), scored(TABLE), atol=1e-5)
        asked = len(server.posts)
        np.testing.assert_allclose(scored(model), scored(TABLE), atol=1e-5)
        assert len(server.posts) == asked
