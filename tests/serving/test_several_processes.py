"""`ralm serve --workers`: one address, several processes, one set of metrics; a dead process is replaced."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from ralm import build_index, make_passages
from tests.serving.process import Running, running
from tests.serving.served import DOCUMENTS, save_index

QUERY = {"queries": ["Which dog keeps sheep?"], "topk": 1}


def children(served: Running) -> list[int]:
    """The processes that answer."""
    task = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children")
    listed = [Path("/proc", pid) for pid in task.read_text().split()]
    return [int(one.name) for one in listed if b"spawn_main" in (one / "cmdline").read_bytes()]


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_several_processes_are_one_server(tmp_path: Path) -> None:
    folder = save_index(tmp_path / "index", DOCUMENTS)
    with running("--index", f"few={folder}", "--workers", "2", anew=True, RALM_SERVE_KEY="k") as served:
        headers = {"Authorization": "Bearer k"}
        assert "serving few with 2 processes" in served.lines[-1]

        def answered() -> str:
            found = httpx.post(f"{served.url}/retrieve", json=QUERY, headers=headers, timeout=60).raise_for_status()
            return str(found.json()["result"][0][0]["id"])

        def metric(name: str) -> float:
            text = httpx.get(f"{served.url}/metrics", headers=headers, timeout=60).text
            found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
            assert found is not None, text
            return float(found[1])

        assert [answered() for _ in range(20)] == ["hill"] * 20
        assert metric("ralm_search_queries") == 22, "those that each process searches when it starts too"
        assert metric("ralm_requests_under_way") == 0
        first = children(served)
        assert len(first) == 2
        os.kill(first[0], signal.SIGKILL)
        served.wait_for(f"process {first[0]} ended with status -9: another one is started")
        served.wait_for("answers requests")
        assert len(children(served)) == 2
        assert [answered() for _ in range(10)] == ["hill"] * 10
        assert metric("ralm_search_queries") == 33, "what an ended process counted stays"

        build_index(make_passages(DOCUMENTS[3:]), folder, force=True)
        assert httpx.post(f"{served.url}/admin/reload", headers=headers, timeout=60).status_code == 200
        until(lambda: sum("index few: changed" in line for line in served.lines) >= 1)
        until(lambda: {answered() for _ in range(20)} == {"night"})
        served.process.send_signal(signal.SIGTERM)
        assert served.ended() == 0
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in first))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--index", "nowhere"], "nowhere"),
        (["--lm", "ralm-tiny"], "has no effect with a language model"),
    ],
)
def test_rejected(arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "ralm", "serve", "--port", "0", "--workers", "2", *arguments]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert failed.returncode != 0
    assert said in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
