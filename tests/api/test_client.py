"""The client on loopback: order, bounds, faults, budgets, kept answers, and what a killed process leaves behind."""

import asyncio
import gc
import json
import logging
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ralm.errors import BudgetError, ServerError, StorageError, UsageError
from ralm.lm.api.answers import tokens_in_answer
from ralm.lm.api.client import AnswerStore, ApiUsage, Budget, Client, answer_key, default_answers
from ralm.lm.api.endpoint import ApiOptions, Endpoint
from ralm.lm.api.http import ApiRequest, JsonObject
from tests.api.scripted_server import HttpServer, Request
from tests.api.writing import Reply

KEY = "sk-Very-Secret_0123456789"
NOW = {"Retry-After": "0.001"}
"""Makes the package send a request again at once."""


def echo(request: Request) -> Reply:
    """An answer that says what was asked, with its number of tokens."""
    return Reply({"said": request.body, "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


def slowly(seconds: float) -> Callable[[Request], Reply]:
    """The same after some seconds."""
    return lambda request: replace(echo(request), seconds=seconds)


def client_of(server: HttpServer, tmp_path: Path, *, identity: str = "a model", **options: Any) -> Client:
    client = Client(Endpoint(server.url, "m", KEY), ApiOptions(answers=tmp_path / "answers", **options))
    client.identity = identity
    return client


def asked(numbers: Iterator[int] | range) -> Iterator[ApiRequest]:
    return (ApiRequest("/completions", {"n": number}, 3, 2) for number in numbers)


def numbers(answers: Iterator[Any]) -> list[int]:
    return [answer["said"]["n"] for answer in answers]


def refused(reply: Reply, tmp_path: Path, **options: Any) -> str:
    """What the client says to a server that answers everything with this."""
    with HttpServer(lambda _: reply) as server, client_of(server, tmp_path, **options) as client:
        with pytest.raises(ServerError) as error:
            list(client.answers(asked(range(1))))
        return str(error.value).replace(server.url, "URL")


def test_answers_come_in_order_with_no_more_under_way_than_allowed(tmp_path: Path) -> None:
    def reply(request: Request) -> Reply:
        return slowly(0.01 + 0.002 * (request.body["n"] * 7 % 11))(request)

    with HttpServer(reply) as server, client_of(server, tmp_path, requests_at_once=5) as client:
        assert numbers(client.answers(asked(range(100)))) == list(range(100))
        assert server.most_at_once == 5
        assert client.usage == ApiUsage(requests=100, tokens_in=300, tokens_out=200)
        assert {request.path for request in server.requests} == {"/v1/completions"}


def test_long_iterables_are_pulled_as_they_are_needed(tmp_path: Path) -> None:
    pulled: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            pulled.append(len(pulled))
            yield pulled[-1]

    with HttpServer(echo) as server, client_of(server, tmp_path, requests_at_once=2) as client:
        answers: Any = client.answers(asked(endless()))
        assert [next(answers)["said"] for _ in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert len(pulled) <= 20
        answers.close()
        assert len(server.requests) <= 20


def test_an_answer_comes_as_soon_as_it_is_known(tmp_path: Path) -> None:
    seen: list[int] = []

    def one_by_one() -> Iterator[int]:
        yield 0
        while not server.requests or server.at_once:
            time.sleep(0.001)
        time.sleep(0.1)  # the answer is on its way
        yield 1
        seen.append(-1)
        yield 2

    with HttpServer(echo) as server, client_of(server, tmp_path) as client:
        answers: Any = client.answers(asked(one_by_one()))
        seen.extend(answer["said"]["n"] for answer in answers)
    assert seen == [0, -1, 1, 2]


def test_equal_requests_are_sent_once(tmp_path: Path) -> None:
    with HttpServer(echo) as server, client_of(server, tmp_path) as client:
        assert numbers(client.answers(asked(iter([1, 2, 1, 1, *range(200), 2])))) == [1, 2, 1, 1, *range(200), 2]
        assert len(server.requests) == 200
        assert client.usage.requests == 200
        assert client.usage.reused == 5


def test_without_an_identity_nothing_is_kept(tmp_path: Path) -> None:
    with HttpServer(echo) as server, client_of(server, tmp_path, identity="", requests_at_once=1) as client:
        for times in (1, 2):
            assert numbers(client.answers(asked(iter([1, *range(30), 1])))) == [1, *range(30), 1]
            assert len(server.requests) == 30 * times
    with closing(AnswerStore(tmp_path / "answers")) as store:
        assert store.get(answer_key("", "/completions", {"n": 1})) is None
        store.put(answer_key("", "/completions", {"n": 1}), {"said": {"n": "something else"}})
    with HttpServer(echo) as server, client_of(server, tmp_path, identity="") as client:
        assert numbers(client.answers(asked(range(1, 2)))) == [1]


def test_a_second_client_asks_nothing_again_but_what_another_model_says(tmp_path: Path) -> None:
    with HttpServer(echo) as server:
        with client_of(server, tmp_path) as client:
            list(client.answers(asked(range(10))))
        with client_of(server, tmp_path) as client:
            assert numbers(client.answers(asked(range(12)))) == list(range(12))
            assert client.usage == ApiUsage(requests=2, reused=10, tokens_in=6, tokens_out=4)
        with client_of(server, tmp_path, identity="another") as client:
            list(client.answers(asked(range(12))))
            assert client.usage.requests == 12
        assert len(server.requests) == 24


def test_native_endpoints_and_what_is_got_which_does_not_count(tmp_path: Path) -> None:
    def reply(request: Request) -> Reply:
        return Reply({}, 503, NOW) if request.method == "GET" and not request.number else echo(request)

    with HttpServer(reply) as server, client_of(server, tmp_path) as client:
        list(client.answers([ApiRequest("//generate", {"n": 1}, 1)]))
        assert client.get("/models") == client.get("//health") == echo(server.requests[-1]).body
        asked = [(one.method, one.path) for one in server.requests]
        assert asked == [("POST", "/generate"), *[("GET", "/v1/models")] * 2, ("GET", "/health")]
        assert client.usage == ApiUsage(requests=1, tokens_in=3, tokens_out=2)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_faults_are_retried_and_counted(tmp_path: Path, status: int) -> None:
    def reply(request: Request) -> Reply:
        return echo(request) if request.number % 3 == 2 else Reply({"error": "later"}, status, NOW)

    with HttpServer(reply) as server, client_of(server, tmp_path, requests_at_once=1) as client:
        assert numbers(client.answers(asked(range(4)))) == list(range(4))
        assert len(server.requests) == 12
        assert client.usage == ApiUsage(requests=4, retries=8, tokens_in=12, tokens_out=8)


@pytest.mark.parametrize("fault", [{"cut_after": 20}, {"seconds": 1.0}])
def test_connections_that_break_off_or_take_too_long_are_retried(tmp_path: Path, fault: dict[str, Any]) -> None:
    def reply(request: Request) -> Reply:
        return echo(request) if request.number % 2 else replace(echo(request), **fault)

    with HttpServer(reply) as server, client_of(server, tmp_path, requests_at_once=1, timeout=0.5) as client:
        assert numbers(client.answers(asked(range(2)))) == [0, 1]
        assert client.usage.retries == 2
        assert len(server.requests) == 4


def test_a_server_that_is_away(tmp_path: Path) -> None:
    with HttpServer(echo) as server:
        pass
    with client_of(server, tmp_path, retries=2) as client:
        with pytest.raises(ServerError, match=r"cannot be reached or broke off \(Connection refused\)") as error:
            list(client.answers(asked(range(100))))
        assert "tried 3 times over" in str(error.value)
        assert "stored answers are not asked for twice" in str(error.value)
        assert error.value.status is None
        assert client.usage.requests <= 16
        with pytest.raises(ServerError, match="Connection refused"):
            client.get("/models")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (
            Reply({"error": {"message": f"Incorrect API key provided: {KEY}. Find yours at ...", "code": "x"}}, 401),
            "URL rejected the key in the environment variable RALM_API_KEY (401: Incorrect API key provided: [key]. "
            "Find yours at ...).",
        ),
        (
            Reply({"detail": "Forbidden"}, 403),
            "URL rejected the key in the environment variable RALM_API_KEY (403: Forbidden).",
        ),
        (
            Reply({"object": "error", "message": "The model `m` does not exist.", "code": 404}, 404),
            "URL has no model m, or no URL/completions (404: The model `m` does not exist.).",
        ),
        (Reply(b"", 404), "URL has no model m, or no URL/completions (404: no reason given)."),
        (
            Reply({"error": {"message": "The context is too long.\nSecond line"}}, 400),
            "URL rejected a request (400: The context is too long.).",
        ),
        (Reply({"detail": [{"msg": "n required"}, {"msg": "x"}]}, 422), "URL rejected a request (422: n required)."),
        (Reply({"error": "x" * 1000}, 400), f"URL rejected a request (400: {'x' * 300}...)."),
        (Reply({"error": "x" * 290 + KEY}, 400), f"URL rejected a request (400: {'x' * 290}[key])."),
        (Reply([], 400), "URL rejected a request (400: no reason given)."),
        (Reply({"error": {}}, 400), "URL rejected a request (400: no reason given)."),
        (
            Reply(b"<html>\n<h1>It works</h1>", 200, {"Content-Type": "text/html"}),
            "URL/completions answered with '<html>', not with a JSON object; check that it is the URL of an API.",
        ),
        (Reply(b"", 200), "URL/completions answered with nothing, not with a JSON object; check that"),
        (Reply([1, 2]), "URL/completions answered with '[1, 2]', not with a JSON object; check that"),
        (Reply(b"[" * 100_000), "URL/completions answered with '[["),
        (Reply(b'{"a": "\xff'), "URL/completions answered with"),
        (Reply({"error": {"message": "Provider is away", "code": 502}}), "URL rejected a request (Provider is away)."),
        (Reply({"choices": [{"error": {"message": "cut off"}}]}), "URL rejected a request (cut off)."),
        (Reply({"object": "error", "message": "no"}), "URL rejected a request (no)."),
        (Reply({}, 307, {"Location": "https://elsewhere/v1"}), "URL has moved to https://elsewhere/v1 (307)"),
        (Reply({}, seconds=1.0), "URL did not answer within 0.5 seconds; tried once."),
        (
            Reply({"error": {"message": "Daily limit."}}, 429, {"Retry-After": "3600"}),  # too long to wait for
            "URL limits the rate of requests (429: Daily limit.); tried once. Lower `requests_at_once`",
        ),
        (
            Reply(b"<html>Bad gateway</html>", 502, NOW),
            "URL failed (502: <html>Bad gateway</html>); tried 2 times over 0 seconds. Run this again",
        ),
    ],
)
def test_what_a_server_may_say_instead(tmp_path: Path, reply: Reply, said: str) -> None:
    assert refused(reply, tmp_path, retries=1 if reply.status in (429, 502) else 0, timeout=0.5).startswith(said)
    with HttpServer(echo) as server, client_of(server, tmp_path) as client:
        assert numbers(client.answers(asked(range(1)))) == [0], "no refusal is kept"


def test_without_a_key_none_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def reply(request: Request) -> Reply:
        return echo(request) if request.method == "POST" else Reply({"error": "Who are you?"}, 401)

    with HttpServer(reply) as server, Client(Endpoint(server.url, "m"), ApiOptions(answers=tmp_path / "a")) as client:
        list(client.answers(asked(range(1))))
        with pytest.raises(ServerError, match="needs a key .401: Who are you.*put it into .* RALM_API_KEY"):
            client.get("/models")
    assert "authorization" not in server.requests[0].headers
    assert KEY not in str(server.requests)


def test_the_key_is_sent_and_is_nowhere_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def reply(request: Request) -> Reply:
        if request.number == 0:
            return echo(request)
        return Reply({"error": {"message": f"No: {request.headers['authorization']}"}}, 403)

    caplog.set_level(logging.DEBUG)
    with HttpServer(reply) as server, client_of(server, tmp_path) as client:
        with pytest.raises(ServerError) as error:
            list(client.answers(asked(range(5))))
        assert "No: Bearer [key]" in str(error.value)
        shown = [repr(client), str(vars(client)), str(error.value), str(error.getrepr(showlocals=False, style="long"))]
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert error.value.__cause__ is error.value.__context__ is None
    assert KEY not in "".join([*shown, caplog.text])
    assert not any(KEY.encode() in file.read_bytes() for file in tmp_path.iterdir())


def test_answers_under_way_when_another_fails_are_kept(tmp_path: Path) -> None:
    all_there = threading.Event()

    def reply(request: Request) -> Reply:
        if request.number == 3:
            all_there.set()
        all_there.wait(10)
        if request.body["n"] == 1:
            return Reply({"error": "no"}, 400)
        return slowly(0.2 if request.body["n"] else 0.0)(request)

    with HttpServer(reply) as server, client_of(server, tmp_path, requests_at_once=4) as client:
        answers = client.answers(asked(range(1000)))
        assert next(answers)["said"] == {"n": 0}
        with pytest.raises(ServerError, match="no"):
            next(answers)
        sent = {request.body["n"] for request in server.requests}
        assert {0, 1, 2, 3} <= sent
        assert len(sent) <= 8
        known = sorted(sent - {1})
        assert numbers(client.answers(asked(iter(known)))) == known
        assert len(server.requests) == len(sent)


def test_a_caller_that_stops_keeps_what_is_under_way(tmp_path: Path) -> None:
    with HttpServer(slowly(0.1)) as server, client_of(server, tmp_path, requests_at_once=3) as client:
        for _ in client.answers(asked(range(1000))):
            break
        sent = [request.body["n"] for request in server.requests]
        assert len(sent) <= 9
        assert sorted(numbers(client.answers(asked(iter(sent))))) == sorted(sent)
        assert len(server.requests) == len(sent)


def test_an_error_of_the_caller_passes_through(tmp_path: Path) -> None:
    def failing() -> Iterator[int]:
        yield 0
        raise ZeroDivisionError

    with HttpServer(echo) as server, client_of(server, tmp_path) as client:
        with pytest.raises(ZeroDivisionError):
            list(client.answers(asked(failing())))
        list(client.answers(asked(range(1))))
        assert len(server.requests) <= 1


def test_an_answer_that_cannot_be_kept_stops(tmp_path: Path) -> None:
    with HttpServer(echo) as server, client_of(server, tmp_path) as client:
        list(client.answers(asked(range(1))))
        with sqlite3.connect(tmp_path / "answers") as database:
            database.execute("DROP TABLE entries")
        database.close()
        with pytest.raises(StorageError, match="the file of answers .* cannot be used"):
            list(client.answers(asked(range(1, 5))))


@pytest.mark.parametrize("at_once", [1, 7])
def test_a_budget_of_requests_is_exact_and_the_next_run_goes_on(tmp_path: Path, at_once: int) -> None:
    with HttpServer(echo) as server:
        for run in range(1, 4):
            with client_of(server, tmp_path, max_requests=10, requests_at_once=at_once) as client:
                with pytest.raises(BudgetError, match=f"10 requests sent and {10 * (run - 1)} reused, 30 tokens in"):
                    list(client.answers(asked(range(100))))
                assert len(server.requests) == 10 * run
        with client_of(server, tmp_path, max_requests=70) as client:
            assert numbers(client.answers(asked(range(100)))) == list(range(100))
        assert len(server.requests) == 100


def test_many_threads_share_one_client(tmp_path: Path) -> None:
    found: dict[int, list[int]] = {}
    with HttpServer(slowly(0.002)) as server, client_of(server, tmp_path, requests_at_once=3) as client:

        def work(first: int) -> None:
            found[first] = numbers(client.answers(asked(range(first, first + 20))))

        threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 100, 20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {first: list(range(first, first + 20)) for first in range(0, 100, 20)}
        assert server.most_at_once <= 3
        assert client.usage.requests == 100


def test_inside_a_running_event_loop(tmp_path: Path) -> None:
    async def work() -> list[int]:
        return numbers(client.answers(asked(range(5))))

    with HttpServer(echo) as server, client_of(server, tmp_path) as client:
        assert asyncio.run(work()) == list(range(5))


def test_nothing_is_left_after_close(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with HttpServer(slowly(0.05)) as server:
        during = set(threading.enumerate())
        client = client_of(server, tmp_path)
        answers = client.answers(asked(range(1000)))
        next(answers)
        client.close()
        client.close()
        sent = len(server.requests)
        assert sent <= 48
        assert {thread for thread in threading.enumerate() if thread.name == "ralm-api"} == set()
        assert not any("asyncio" in thread.name for thread in threading.enumerate())
        with pytest.raises(UsageError, match="closed"):
            list(answers)
        with pytest.raises(UsageError, match="closed"):
            list(client.answers(asked(range(5000, 5001))))
        with closing(AnswerStore(tmp_path / "answers")) as store, client_of(server, tmp_path) as again:
            assert store.file.exists()
            list(again.answers(asked(range(sent))))
        assert len(server.requests) == sent, "those under way were kept"
    assert set(threading.enumerate()) - before <= during


def test_a_client_that_is_forgotten_leaves_no_thread(tmp_path: Path) -> None:
    with HttpServer(echo) as server:
        client = client_of(server, tmp_path)
        list(client.answers(asked(range(3))))
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "ralm-api")
        del client
        gc.collect()
        assert not thread.is_alive()


IMPORTS = """
import random, signal, sys
from pathlib import Path
from ralm.lm.api.client import Client
from ralm.lm.api.endpoint import ApiOptions, Endpoint
from ralm.lm.api.http import ApiRequest
"""
PROGRAM = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
client = Client(Endpoint(sys.argv[1], "m"), ApiOptions(answers=Path(sys.argv[2]), requests_at_once=4))
client.identity = "x"
for answer in client.answers(ApiRequest("/completions", {"n": number}, 3) for number in range(int(sys.argv[3]))):
    print(answer["said"]["n"], flush=True)
"""


def start(server: HttpServer, tmp_path: Path, count: int, last: str = "") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", IMPORTS + PROGRAM + last, server.url, str(tmp_path / "answers"), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})


def test_a_program_that_never_closes_ends(tmp_path: Path) -> None:
    last = "answers = client.answers(ApiRequest('/completions', {'n': n}, 3) for n in range(9)); next(answers)"
    with HttpServer(echo) as server, start(server, tmp_path, 3, last) as program:
        out, err = program.communicate(timeout=60)
        assert (out, err, program.returncode) == ("0\n1\n2\n", "", 0)


def test_an_interrupt_stops_and_keeps_what_is_under_way(tmp_path: Path) -> None:
    with HttpServer(slowly(0.05)) as server, start(server, tmp_path, 10_000) as program:
        assert program.stdout
        program.stdout.readline()
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=60)
        assert err.splitlines()[-1] == "KeyboardInterrupt"
        assert "never retrieved" not in err
        assert "pending" not in err
        sent = {request.body["n"] for request in server.requests}
        assert len(sent) < 1000
        with Client(Endpoint(server.url, "m"), ApiOptions(answers=tmp_path / "answers")) as client:
            client.identity = "x"
            list(client.answers(asked(iter(sorted(sent)))))
            assert client.usage.requests == 0


INTERRUPTED = """
random.seed(int(sys.argv[3]))
signal.signal(signal.SIGALRM, signal.default_int_handler)

def numbers(client, count):
    return [answer["said"]["n"] for answer in client.answers(ApiRequest("/c", {"n": n}, 1) for n in range(count))]

for identity in range(2):
    with Client(Endpoint(sys.argv[1], "m"), ApiOptions(answers=Path(sys.argv[2]), requests_at_once=4)) as client:
        for part in range(8):
            client.identity = f"{identity}-{part}"
            try:
                # again after a second: Python ignores an interrupt within a finalizer
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.05), 1)
                numbers(client, 1_000_000)
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
        assert numbers(client, 30) == list(range(30))
"""


@pytest.mark.slow
def test_interrupts_at_any_moment_leave_a_client_that_works(tmp_path: Path) -> None:
    with HttpServer(slowly(0.002)) as server:
        command = [sys.executable, "-c", IMPORTS + INTERRUPTED, server.url, str(tmp_path / "answers"), "0"]
        subprocess.run(command, timeout=240, check=True)


STORED = answer_key("model", "/completions", {"prompt": [1, 2]})


def test_all_that_decides_an_answer_is_in_its_key() -> None:
    body: JsonObject = {"prompt": [1, 2], "model": "m", "deep": {"x": 1, "y": [None]}}
    key = answer_key("model", "/completions", body)
    assert answer_key("model", "/completions", dict(reversed(body.items()))) == key
    others = [
        answer_key("model2", "/completions", body),
        answer_key("model", "//completions", body),
        answer_key("model", "/completions", body | {"prompt": [2, 1]}),
        answer_key("model", "/completions", body | {"prompt": "[1, 2]"}),
        answer_key("model", "/completions", body | {"deep": {"x": 1, "y": [0]}}),
        answer_key("model", "/completions", body | {"echo": False}),
        answer_key("", "model/completions", body),
    ]
    assert len({key, *others}) == 8


def test_requests_are_not_in_the_file(tmp_path: Path) -> None:
    with closing(AnswerStore(tmp_path / "answers")) as store:
        store.put(answer_key("model", "/completions", {"prompt": "a secret passage"}), {"text": "fine"})
    assert not any(b"secret" in file.read_bytes() for file in tmp_path.iterdir())


def test_where_answers_are_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_answers({}) == tmp_path / ".cache" / "ralm" / "answers.sqlite"
    assert default_answers({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/ralm/answers.sqlite")
    assert default_answers({"XDG_CACHE_HOME": "/caches", "RALM_CACHE": "/mine"}) == Path("/mine/answers.sqlite")


@pytest.mark.parametrize(
    "answer",
    [
        {"text": json.loads('"\\ud83d"')},  # half a character
        {"text": json.loads("[" * 500 + "]" * 500)},
        {"prompt": [0, 50256], "text": "n\u00e9\u2028\n", "none": None, "values": [math.inf, -math.inf]},
        {"logprobs": [{"token": "a", "logprob": -0.5}] * 2000},
    ],
    ids=["half a character", "deep", "values", "long"],
)
def test_stored_answers_are_read_as_they_came(tmp_path: Path, answer: JsonObject) -> None:
    with closing(AnswerStore(tmp_path / "answers")) as store:
        store.put(STORED, answer)
        assert store.get(STORED) == answer
    assert (tmp_path / "answers").stat().st_size < 20_000, "compressed"


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}, (3, 2)),
        ({"usage": {"prompt_tokens": 3, "total_tokens": 3}}, (3, 0)),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": None}}, (3, 0)),
        ({"tokens_evaluated": 5, "tokens_predicted": 0}, (5, 0)),
        ({"usage": {"prompt_tokens": "3"}}, None),
        ({"usage": {"prompt_tokens": True}}, None),
        ({"usage": {"prompt_tokens": -1}}, None),
        ({"usage": {}}, None),
        ({}, None),
    ],
)
def test_where_answers_say_how_many_tokens_they_took(answer: Any, tokens: Any) -> None:
    assert tokens_in_answer(answer) == tokens


def test_answers_without_a_count_are_counted_at_their_worst_and_said_to_be_estimates() -> None:
    budget = Budget(max_requests=None)
    budget.sent()
    budget.answered(ApiRequest("/completions", {}, 20, 5), {"choices": []})
    assert budget.usage == ApiUsage(requests=1, tokens_in=20, tokens_out=5, estimated=1)
    assert budget.usage.describe() == "1 requests sent and 0 reused, about 20 tokens in and 5 out"
