"""The files of docs/deploy that start a server: their commands are run, and what they name is there."""

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.cli.program import ralm
from tests.serving.chat_upstream import ChatUpstream
from tests.serving.process import running
from tests.serving.served import serving
from tests.serving.test_connections import ASK, HALVES, received, sent
from tests.serving.test_limits import limited, until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNIT = (DEPLOY / "ralm.service").read_text()


def words_of(instruction: str) -> list[str]:
    [found] = re.findall(rf"^{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


def test_every_flag_exists() -> None:
    [unit] = re.findall("^ExecStart=(.*)$", UNIT, re.MULTILINE)
    words = [*words_of("ENTRYPOINT"), *words_of("CMD"), *shlex.split(unit)]
    flags = {word for word in words if word.startswith("--")}
    help_text = ralm("serve", "--help").out
    assert flags == {"--host", "--index", "--lm"}
    assert all(f"{flag} " in help_text for flag in flags)


def test_the_image_is_made_of_files_that_exist() -> None:
    copied = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY")]
    assert all((ROOT / name).exists() for names in copied for name in names)
    build = COMPOSE["services"]["ralm"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    mounted = {one.split(":")[-2] if one.endswith(":ro") else one.split(":")[-1] for one in services_volumes("ralm")}
    assert mounted == {"/index", "/var/log/ralm"}
    assert {one.split(":")[0] for name in ("ralm", "vllm") for one in services_volumes(name)} >= {*COMPOSE["volumes"]}


def services_volumes(service: str) -> list[str]:
    volumes: list[str] = COMPOSE["services"][service]["volumes"]
    return volumes


@pytest.mark.slow
def test_the_command_of_the_compose_file(index: Path, tmp_path: Path) -> None:
    service = COMPOSE["services"]["ralm"]
    [program, command, *fixed] = words_of("ENTRYPOINT")
    assert (program, command) == ("ralm", "serve")
    assert service["environment"].keys() == {"RALM_SERVE_KEY", "RALM_API_KEY"}
    upstream = ChatUpstream()
    with upstream.server as server:
        places = {"/index": str(index), "/var/log/ralm": str(tmp_path), "http://vllm:8000": server.url}
        words = [*fixed, *shlex.split(service["command"])]
        for name, place in places.items():
            words = [word.replace(name, place) for word in words]
        with running(*words, RALM_SERVE_KEY="sk-client", RALM_API_KEY="sk-vllm") as served:
            url = served.url.replace("0.0.0.0", "127.0.0.1")
            body = {"model": "chat", "messages": [{"role": "user", "content": "What sings in the sea?"}]}
            right = {"Authorization": "Bearer sk-client"}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=right, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.json()["search_results"][0]["title"] == "The Sea"
            assert httpx.get(f"{url}/ready").status_code == 200
            served.process.send_signal(signal.SIGHUP)
            served.wait_for("index index: unchanged")
            served.process.send_signal(signal.SIGTERM)
            assert served.ended() == 0
    assert upstream.last.headers["authorization"] == "Bearer sk-vllm"
    [line] = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    assert line["passages"][0]["document_id"] == "sea"


@contextmanager
def nginx(upstream: str, folder: Path) -> Iterator[str]:
    """The address of nginx with the configuration of docs/deploy before a server, with shorter times and no TLS."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    site = re.sub("    ssl_.*\n", "", (DEPLOY / "nginx.conf").read_text())
    for text, replacement in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port}"),
        ("127.0.0.1:8000", upstream.removeprefix("http://")),
        ("client_header_timeout 10s", "client_header_timeout 1s"),
        ("client_body_timeout 10s", "client_body_timeout 3s"),
        ("ralm_clients 32", "ralm_clients 8"),
    ):
        assert text in site
        site = site.replace(text, replacement)
    places = " ".join(f"{name}_temp_path {folder}/{name};" for name in "client_body proxy fastcgi uwsgi scgi".split())
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/log; events {{}} http {{ access_log off; {places} {site} }}"
    )
    process = subprocess.Popen(["nginx", "-e", str(folder / "log"), "-c", str(folder / "nginx.conf")])
    try:
        until(lambda: (folder / "pid").exists() and process.poll() is None)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_keeps_slow_clients_from_the_server(tmp_path: Path) -> None:
    with serving(limited()) as straight, nginx(straight, tmp_path) as url:
        body = {**ASK, "model": "table-1", "prompt": "abc", "max_tokens": 100, "stream": True}
        headers = {"Host": "localhost"}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60) as streamed:
            times = [time.monotonic() for line in streamed.iter_lines() if line]
        assert times[-1] - times[0] > 1, "its pieces came as they were made"
        begin = time.monotonic()
        for half in HALVES.values():
            with sent(url, half) as slow:
                assert received(slow, 30)[:12] in (b"", b"HTTP/1.1 408")
        assert time.monotonic() - begin < 30, "each was ended"
        assert 'route="none"' not in httpx.get(f"{straight}/metrics").text, "no half request came through"
        with ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(sent(url, HALVES["half a body"]))
            assert httpx.get(f"{url}/health", headers=headers).status_code == 429
