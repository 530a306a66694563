"""`ralm serve` as a process: its settings, its port, its signals."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from ralm.errors import UsageError
from ralm.serving.server import address_of, bound_socket
from tests.cli.program import ralm
from tests.serving.process import running
from tests.serving.served import DOCUMENTS, MODEL, events_of, save_index

ASK: dict[str, Any] = {"model": MODEL, "prompt": "The whales", "max_tokens": 8, "temperature": 0}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return save_index(tmp_path / "few", DOCUMENTS)


@pytest.mark.slow
def test_signals(index: Path) -> None:
    """SIGHUP reloads; SIGTERM finishes what runs; the log has no prompt."""
    with running("--lm", MODEL, "--index", f"mine={index}", "--model-name", "tiny") as served:
        ask = {**ASK, "model": "tiny"}
        answer = httpx.post(f"{served.url}/v1/completions", json=ask, timeout=60).json()
        assert answer["ralm"]["index"] == "mine"
        served.process.send_signal(signal.SIGHUP)
        assert "unchanged" in served.wait_for("index mine")
        with httpx.stream(
            "POST", f"{served.url}/v1/completions", json={**ask, "max_tokens": 60, "stream": True}, timeout=60
        ) as streamed:
            lines = streamed.iter_lines()
            first = next(lines)
            served.process.send_signal(signal.SIGTERM)
            rest = [first, *lines]
        assert len(events_of("\n\n".join(line for line in rest if line) + "\n\n")) > 30
        assert served.ended() == 0
        assert "whales" not in "".join(served.lines)
        assert "Traceback" not in "".join(served.lines)


def test_a_thread_that_does_not_end_does_not_hold_the_process(index: Path) -> None:
    stuck = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()"
    with running("--index", index, "--limits", "shutdown_seconds=2", before=stuck) as served:
        served.process.send_signal(signal.SIGTERM)
        assert served.ended(30) == 1
        assert "the server did not end in 2 seconds: it was stopped" in served.lines[-1]


def test_a_signal_ends_the_protocol_over_an_open_input(index: Path) -> None:
    pytest.importorskip("mcp")
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    begin = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}).encode() + b"\n"
    command = [sys.executable, "-m", "ralm", "mcp", "--index", str(index)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        process.stdin.write(begin)
        assert b"serverInfo" in process.stdout.readline()
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM


def test_streams_that_do_not_end_in_time_are_cut_off(index: Path, tmp_path: Path) -> None:
    flags = ("--lm", MODEL, "--index", index, "--limits", "shutdown_seconds=2", "--audit-log", tmp_path / "audit")
    with running(*flags) as served:
        body = {**ASK, "max_tokens": 900, "n": 8, "temperature": 1, "stream": True}
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as streamed,
        ):
            lines = streamed.iter_lines()
            next(lines)
            served.process.send_signal(signal.SIGTERM)
            assert [*lines]
        assert served.ended(30) == 0
        assert json.loads((tmp_path / "audit").read_text())["status"] == 499


@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_a_port_is_taken_once(index: Path) -> None:
    options = ["--lm", MODEL, "--index", index, "--reader", "ensemble", "--documents", 2, "--limits", "documents=3"]
    options += ["--stride", 8]
    with running(*options, RALM_SERVE_KEY="a-key") as served:
        right = {"Authorization": "Bearer a-key"}
        answer = httpx.post(f"{served.url}/v1/completions", json=ASK, headers=right, timeout=60).json()
        told = {name: answer["ralm"][name] for name in ("index", "reader", "documents", "stride")}
        assert told == {"index": "few", "reader": "ensemble", "documents": 2, "stride": 8}
        assert httpx.post(f"{served.url}/v1/completions", json=ASK).status_code == 401
        port = int(served.url.rpartition(":")[2])
        taken = ralm("serve", "--lm", MODEL, "--port", port)
        assert taken.status == 2
        assert taken.err.count("\n") == 1
        assert f"cannot listen on 127.0.0.1:{port} (address already in use)" in taken.err
        with httpx.stream(
            "POST",
            f"{served.url}/v1/completions",
            json={**ASK, "max_tokens": 900, "n": 4, "temperature": 1, "stream": True},
            headers=right,
            timeout=60,
        ) as streamed:
            lines = streamed.iter_lines()
            next(lines)
            begin = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert served.process.poll() is None
            served.process.send_signal(signal.SIGTERM)
            assert served.ended(10) == 128 + signal.SIGTERM, "".join(served.lines)
            assert time.monotonic() - begin < 5


LM = f"--lm {MODEL}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "there is nothing to serve: give --lm or --index."),
        (f"{LM} --host 0.0.0.0", "other computers can reach --host 0.0.0.0: put a key for clients"),
        (f"{LM} --retriever http://127.0.0.1:9", "--retriever, --reader and the like need passages: give --index."),
        *(
            (f"--index {{index}} {given}", f"{given.split()[0]} has no effect without --lm.")
            for given in (
                "--reader ensemble",
                "--stride 8",
                "--prompt chat",
                "--model-name a",
                "--lm-args dtype=float32",
            )
        ),
        (f"{LM} --port 70000", "--port must be at most 65,535"),
        (f"{LM} --index none", "none is not a ralm index"),
        (f"{LM} --index a/x --index b/x", "two indexes are called 'x': give NAME=DIR"),
        (f"{LM} --index plain={{index}}", "no index can be called plain, which is the model without"),
        (f"{LM} --max-length 2000", "is beyond the 1024 tokens that ralm-tiny can read"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(index: Path, arguments: str, said: str) -> None:
    given = ["serve", *arguments.format(index=index).split()]
    answer = ralm(*given, *(() if "--port" in given else ("--port", "0")))
    assert answer.status in (1, 2)
    assert said in answer.err
    assert answer.err.startswith("ralm: ")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("host", ["192.0.2.1", "a\nb", "a\0b", "no.such.invalid", "\u00e9" * 70])
def test_an_address_that_this_computer_does_not_have(host: str) -> None:
    with pytest.raises(UsageError, match=r"(?s)cannot listen on .*:80 \(.+\): choose another"):
        bound_socket(host, 80)


def test_an_address_of_version_6() -> None:
    if socket.has_ipv6:
        with bound_socket("::1", 0) as listening:
            assert address_of(listening).startswith("http://[::1]:")
