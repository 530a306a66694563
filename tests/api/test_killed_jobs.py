"""The program asks a server, is killed in the middle, and is run again: no answered request is asked again."""

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ralm.lm.registry import load_local_model
from ralm.records import Passage
from ralm.retrieval.build import build_index
from tests.api.backings import OfModel
from tests.api.faults import Fault, Slow
from tests.api.scripted_server import Request, ScriptedServer
from tests.api.served import EXACT
from tests.campaign import campaign
from tests.cli.program import STORIES, TEXT, ralm
from tests.cli.test_signals import wait_until
from tests.forked import Program, started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
READING = "--stride 4 --max-length 64 --document-tokens 24 --reader ensemble --documents 3".split()
OPTIONS = [*READING, "--lm-args", "tokenizer=ralm-tiny"]


class Job:
    """`ralm eval` in a folder with a text and an index, against a server; its answers are kept in that folder."""

    def __init__(self, folder: Path, server: ScriptedServer) -> None:
        self.folder = folder
        self.model = f"{server.url}#{server.model}"
        (folder / "text.txt").write_text(TEXT)
        passages = [Passage(number, name, title, text) for number, (name, title, text) in enumerate(STORIES)]
        build_index(passages, folder / "index")

    def start(self, *more: str) -> Program:
        return started("ralm", *self.arguments(self.model, OPTIONS, more), folder=self.folder)

    def nll(self, *more: str, lm: str | None = None, options: Sequence[str] = OPTIONS) -> float:
        """The figure of a whole run, in this process."""
        answer = ralm(*self.arguments(lm or self.model, options, more))
        assert answer.status == 0, answer.err
        return float(json.loads(answer.out)["nll"])

    def arguments(self, lm: str, options: Sequence[str], more: Sequence[str]) -> list[str]:
        return ["eval", "text.txt", "--index", "index", "--lm", lm, *options, "--json", *more]


@pytest.mark.parametrize(("kind", "enough", "kept"), [("vllm", 25, []), campaign("llama.cpp", 70, ["--out", "run"])])
def test_a_killed_evaluation(
    kind: str, enough: int, kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RALM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    begun, killed = threading.Event(), threading.Event()

    def slowly(request: Request) -> Fault | None:
        """From some request on nothing is answered before the process is killed."""
        if request.method == "GET" or killed.is_set() or request.number < enough:
            return None
        begun.set()
        return Slow(10)

    with ScriptedServer(OfModel(load_local_model("ralm-tiny")), EXACT[kind], faults=slowly) as server:
        job = Job(tmp_path, server)
        process = job.start(*kept)
        assert begun.wait(120), process.communicate()[1]
        wait_until(lambda: server.at_once <= len(server.posts) - enough, "requests are not answered")
        time.sleep(1)  # until the answers have arrived
        process.kill()
        process.communicate()
        killed.set()
        answered = {request.asked for request in server.posts if request.number < enough}
        before = len(server.posts)
        found = job.nll(*kept)
        again = [request.asked for request in server.posts[before:]]
        assert len(again) == len({*again})
        probed = {asked for asked in again if asked in answered}
        assert len(probed) <= 1  # whether it is still the same model is asked by every process
        assert len(answered) == enough
        expected = job.nll(lm="ralm-tiny", options=READING)
        assert found == pytest.approx(expected, abs=1e-2)
        done = len(server.posts)
        assert job.nll(*([*kept, "--force"] if kept else [])) == found
        assert len(server.posts) == done + 1
