"""The audit log: who got which passages, also when answers end early, the file moves, or the disk is full."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from ralm.errors import UsageError
from ralm.reading import ReadingOptions
from ralm.records import Passage
from ralm.serving.answers import text_key
from ralm.serving.middleware import AuditLog
from ralm.serving.options import Settings
from tests.serving.chat_upstream import NAME, WORDS, passing_on
from tests.serving.served import MODEL, local, serving, tiny
from tests.serving.test_limits import SlowTable, until

QUESTION = "What sings in the deep sea by night?"
SEA = {"index": "few", "passage": 1, "document_id": "sea", "rank": 1}


def lines_of(path: Path, count: int) -> list[dict[str, Any]]:
    """The lines, once there are so many: one is written after its answer was sent."""
    until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == count
    return lines


def asked(url: str, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return httpx.post(f"{url}{path}", json={"model": MODEL, "temperature": 0, **body}, timeout=60)


def test_each_request_is_a_line_with_its_passages(index: Path, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    with serving(local(tiny(), folders={"few": index}, audit=AuditLog(log))) as url:
        whole = asked(url, prompt=QUESTION, max_tokens=5)
        streamed = asked(url, prompt=QUESTION, max_tokens=5, stream=True)
        plain = asked(url, prompt=QUESTION, max_tokens=5, ralm={"index": None})
        failed = asked(url, prompt="", max_tokens=5)
        found = httpx.get(f"{url}/search", params={"q": "whales", "k": 2}, headers={"X-Request-Id": "mine"})
        hit = found.json()["hits"][-1]
        text = text_key(Passage(0, "", "", hit["text"]))
        httpx.get(f"{url}/passages/few", params={"document": hit["document_id"], "text": text})
        httpx.get(f"{url}/health")
        lines = lines_of(log, 6)
    numbers = [one["passage"] for one in whole.json()["search_results"]]
    assert [one["passage"] for one in lines[0]["passages"]] == numbers
    assert lines[0]["passages"][0] == SEA
    assert [one["passages"] == lines[0]["passages"] for one in lines[1:4]] == [True, False, False]
    assert lines[2]["passages"] == lines[3]["passages"] == []
    assert [one["status"] for one in lines] == [200, 200, 200, 400, 200, 200]
    assert [one["request_id"] for one in lines[:4]] == [
        one.headers["X-Request-Id"] for one in (whole, streamed, plain, failed)
    ]
    assert lines[4]["request_id"] == found.headers["X-Request-Id"] == "mine"
    assert [one["passage"] for one in lines[4]["passages"]] == [hit["passage"] for hit in found.json()["hits"]]
    assert (lines[5]["path"], lines[5]["passages"][0]["document_id"]) == ("/passages/few", hit["document_id"])
    usage = whole.json()["usage"]
    first = lines[0]
    assert (first["prompt_tokens"], first["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert (first["client"], first["path"], first["model"]) == ("127.0.0.1", "/v1/completions", MODEL)
    assert first["time"].endswith("Z")
    assert first["seconds"] > 0
    assert "whales" not in log.read_text()
    assert "sings" not in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("echo", [False, True])
def test_passages_that_share_a_context_are_all_listed(index: Path, tmp_path: Path, echo: bool) -> None:
    log = tmp_path / "audit.jsonl"
    settings = Settings(reading=ReadingOptions(reader="concatenation:documents=3"))
    with serving(local(tiny(), settings=settings, folders={"few": index}, audit=AuditLog(log))) as url:
        prompt = "By night the dog and the whales sing"
        body: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 0} if echo else {"max_tokens": 1}
        answer = asked(url, prompt=prompt, ralm={"reader": "concatenation"}, **body).json()
        found = httpx.get(f"{url}/search", params={"q": prompt, "k": 3}).json()["hits"]
        line, _ = lines_of(log, 2)
    if not echo:
        assert {one["passage"]: one["rank"] for one in line["passages"]} == {
            hit["passage"]: rank for rank, hit in enumerate(found, 1)
        }
    listed = [one["passage"] for one in line["passages"]]
    assert [one["passage"] for one in answer["search_results"]] == listed
    assert [one["passage"] for one in answer["ralm"]["passages"]] == listed
    assert max(one["rank"] for one in line["passages"]) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_answers_of_another_server(index: Path, tmp_path: Path, stream: bool) -> None:
    log = tmp_path / "audit.jsonl"
    with passing_on(index, audit=AuditLog(log)) as (_, url):
        body = {"model": NAME, "messages": [{"role": "user", "content": QUESTION}], "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        body["ralm"] = {"reader": "concatenation"}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body)
        [line] = lines_of(log, 1)
    assert [(one["document_id"], one["rank"]) for one in line["passages"]] == [("sea", 1), ("night", 2)]
    assert (line["model"], line["status"]) == (NAME, 200)
    assert line["prompt_tokens"] > 0
    assert line["request_id"] == answer.headers["X-Request-Id"]


def test_a_client_that_leaves_and_an_answer_that_breaks_off(index: Path, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    with passing_on(index, seconds=0.2, audit=AuditLog(log)) as (_, url):
        body = {"model": NAME, "messages": [{"role": "user", "content": QUESTION}], "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
            next(text for text in response.iter_text() if WORDS[0] in text)
        [line] = lines_of(log, 1)
    assert line["status"] == 499
    assert line["passages"][0]["document_id"] == "sea"
    log = tmp_path / "own.jsonl"
    with serving(local(SlowTable(), audit=AuditLog(log))) as url:
        body = {"model": "table-1", "prompt": "abc", "max_tokens": 200, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body) as response:
            next(response.iter_lines())
        [line] = lines_of(log, 1)
    assert line["status"] == 499
    assert 0 < line["completion_tokens"] < 200


def test_a_moved_file_is_opened_again(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    with serving(local(SlowTable(0), audit=AuditLog(log))) as url:
        asked(url, model="table-1", prompt="abc", max_tokens=1)
        lines_of(log, 1)
        old = log.rename(tmp_path / "audit.jsonl.1")
        asked(url, model="table-1", prompt="abc", max_tokens=1)
        lines_of(log, 1)
        tmp_path.rename(moved := tmp_path.with_name("moved"))
        assert asked(url, model="table-1", prompt="abc", max_tokens=1).status_code == 200
        moved.rename(tmp_path)
    assert len(lines_of(old, 1)) == 1
    assert (log.stat().st_mode & 0o777, old.stat().st_mode & 0o777) == (0o600, 0o600)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_costs_lines_and_no_answers(caplog: pytest.LogCaptureFixture) -> None:
    with serving(local(SlowTable(0), audit=AuditLog(Path("/dev/full")))) as url:
        assert asked(url, model="table-1", prompt="abc", max_tokens=1).status_code == 200
        until(lambda: "a line of the audit log /dev/full was lost" in caplog.text)
        assert asked(url, model="table-1", prompt="abc", max_tokens=1).status_code == 200


@pytest.mark.parametrize("name", [".", "none/audit.jsonl"])
def test_a_file_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be written .* that this user may write to"):
        AuditLog(tmp_path / name)
