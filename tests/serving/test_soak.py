"""A server under load and faults: nothing is stuck, nothing is wrong, and memory does not grow.

`RALM_SOAK` is how many seconds it takes. In the first minutes caches and the pools of the allocator fill, so memory is
looked at from `LONG` on: the most of the last third is compared with the most of the second.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.process import Running, running
from tests.serving.served import MODEL, PROMPTS, save_index

SECONDS = float(os.environ.get("RALM_SOAK", "5"))
ASK: dict[str, Any] = {"model": MODEL, "max_tokens": 16, "temperature": 0}
LONG = 600
CLIENTS = 8


class Client(threading.Thread):
    """Asks in turn, well or badly, until it is told to stop; `statuses` counts the answers."""

    def __init__(self, url: str, number: int, expected: dict[str, str]) -> None:
        super().__init__()
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.stopped = threading.Event()
        self._draw = random.Random(number)
        self._expected = expected
        self._http = httpx.Client(base_url=url, timeout=60)

    def run(self) -> None:
        """Ask and ask."""
        kinds = [self.ask, self.ask, self.score, self.vanish, self.read_slowly, self.send_nonsense, self.send_too_much]
        with self._http:
            while not self.stopped.is_set():
                try:
                    self._draw.choice(kinds)()
                except Exception as error:  # noqa: BLE001  # told by the test
                    self.wrong.append(repr(error))

    def ask(self) -> None:
        prompt = self._draw.choice(PROMPTS)
        got = self._http.post("/v1/completions", json={**ASK, "prompt": prompt})
        self.statuses[got.status_code] += 1
        if got.status_code == 200 and got.json()["choices"][0]["text"] != self._expected[prompt]:
            self.wrong.append(f"{prompt!r}: {got.text[:300]}")

    def score(self) -> None:
        body = {**ASK, "prompt": self._draw.choice(PROMPTS[:3]), "max_tokens": 0, "echo": True, "logprobs": 0}
        body["ralm"] = {"reader": "ensemble", "documents": 3}
        self.statuses[self._http.post("/v1/completions", json=body).status_code] += 1

    def vanish(self) -> None:
        body = {**ASK, "prompt": PROMPTS[0], "max_tokens": 400, "stream": True, "temperature": 1}
        with self._http.stream("POST", "/v1/completions", json=body) as streamed:
            lines = streamed.iter_lines()
            for _ in range(self._draw.randint(0, 5)):
                next(lines, None)

    def read_slowly(self) -> None:
        body = {**ASK, "prompt": PROMPTS[1], "stream": True}
        with self._http.stream("POST", "/v1/completions", json=body) as streamed:
            self.statuses[streamed.status_code] += 1
            for _ in streamed.iter_raw(64):
                time.sleep(0.01)

    def send_nonsense(self) -> None:
        content = self._draw.choice([b"{", b"[" * 9000, b'{"model": 1}', b"\xff" * 99, b'{"prompt": NaN}'])
        got = self._http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
        self.statuses[got.status_code] += 1

    def send_too_much(self) -> None:
        got = self._http.post("/v1/completions", json={**ASK, "prompt": "word " * 200_000})
        self.statuses[got.status_code] += 1


def most_memory(served: Running, seconds: float) -> int:
    """The most memory (KiB) that a server has within some seconds."""
    end, most = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        most = max(most, served.resident_kib)
        time.sleep(0.2)
    return most


@pytest.mark.campaign
@pytest.mark.timeout(SECONDS * 2 + 300)
def test_load_with_faults(tmp_path: Path) -> None:
    index = save_index(tmp_path / "few")
    limits = ("--limits", "requests_at_once=6,requests_waiting=4")
    with running("--lm", MODEL, "--index", index, *limits, anew=True, MALLOC_ARENA_MAX="2") as served:
        expected = {}
        for prompt in PROMPTS:
            answer = httpx.post(f"{served.url}/v1/completions", json={**ASK, "prompt": prompt}, timeout=60).json()
            expected[prompt] = answer["choices"][0]["text"]
        clients = [Client(served.url, number, expected) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        _, before, after = (most_memory(served, SECONDS / 3) for _ in range(3))
        for client in clients:
            client.stopped.set()
        for client in clients:
            client.join(60)
            assert not client.is_alive()
        time.sleep(1)
        figures = httpx.get(f"{served.url}/metrics").text
        assert "ralm_requests_under_way 0.0" in figures
        assert "ralm_requests_waiting 0.0" in figures
        statuses = sum((client.statuses for client in clients), Counter[int]())
        assert [wrong for client in clients for wrong in client.wrong] == []
        assert statuses.keys() <= {200, 400, 429}, statuses
        assert min(statuses[200], statuses[400]) > 5
        assert SECONDS < LONG or after < before * 1.05, (before, after)
        served.process.send_signal(signal.SIGTERM)
        assert served.ended() == 0
        assert "Traceback" not in "".join(served.lines)
