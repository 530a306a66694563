"""What a server refuses so that it stays up: too many requests, too large, too long, without the key."""

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ralm.corpus.splitting import make_passages
from ralm.errors import UsageError
from ralm.records import IntArray, NextTokens
from ralm.retrieval.update import update_index
from ralm.serving import server
from ralm.serving.local import LocalService
from ralm.serving.middleware import KEY, open_key
from ralm.serving.options import Limits, ServeOptions
from tests.api.backings import OfTable
from tests.serving.served import DOCUMENTS, MODEL, PROMPTS, local, save_index, serving, tiny

ASK: dict[str, Any] = {"model": "table-1", "prompt": "abc", "max_tokens": 200, "temperature": 0}
SECRET = "sk-the-key-of-this-server"


class SlowTable(OfTable):
    """A model that takes some seconds for every token, and counts its tokens."""

    def __init__(self, seconds: float = 0.02) -> None:
        super().__init__(seed=1)
        self.seconds = seconds
        self.written = 0

    def next_tokens(self, texts: Sequence[IntArray]) -> NextTokens:
        time.sleep(self.seconds)
        self.written += 1
        return super().next_tokens(texts)


def limited(max_length: int | None = None, **limits: Any) -> LocalService:
    return local(SlowTable(), ServeOptions(limits=Limits(**limits)), max_length=max_length)


def model_of(service: LocalService) -> SlowTable:
    found: SlowTable = service.model._model
    return found


def until(true: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def gauge(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"ralm_{name} "))


def test_more_requests_than_may_wait_are_refused() -> None:
    with (
        serving(limited(requests_at_once=2, requests_waiting=1)) as url,
        httpx.Client(base_url=url, timeout=30) as http,
        ThreadPoolExecutor(3) as pool,
    ):
        answers = [pool.submit(http.post, "/v1/completions", json=ASK) for _ in range(3)]
        until(lambda: gauge(url, "requests_under_way") == 2 and gauge(url, "requests_waiting") == 1)
        for stream in (False, True):
            refused = http.post("/v1/completions", json={**ASK, "stream": stream})
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "busy"
        assert http.get("/health").status_code == 200  # it still answers
        assert [answer.result().status_code for answer in answers] == [200] * 3
        until(lambda: gauge(url, "requests_under_way") == gauge(url, "requests_waiting") == 0)


def test_a_client_that_goes_away_frees_its_place() -> None:
    service = limited(requests_at_once=1, requests_waiting=4)
    model = model_of(service)
    with serving(service) as url, httpx.Client(base_url=url, timeout=30) as http:
        model.seconds = 0.05
        with http.stream("POST", "/v1/completions", json={**ASK, "stream": True}) as streamed:
            next(streamed.iter_lines())
        until(lambda: gauge(url, "requests_under_way") == 0)
        assert model.written < 100
        model.written = 0
        with pytest.raises(httpx.ReadTimeout):  # of a whole answer
            http.post("/v1/completions", json=ASK, timeout=0.3)
        until(lambda: gauge(url, "requests_under_way") == 0)
        assert model.written < 100
        with http.stream("POST", "/v1/completions", json={**ASK, "stream": True}) as streamed:
            lines = streamed.iter_lines()
            next(lines)
            with pytest.raises(httpx.ReadTimeout):  # while it waits
                http.post("/v1/completions", json=ASK, timeout=0.3)
            until(lambda: gauge(url, "requests_waiting") == 0)
        until(lambda: gauge(url, "requests_under_way") == 0)
        assert http.post("/v1/completions", json={**ASK, "max_tokens": 1}).status_code == 200


def test_a_request_that_takes_too_long_is_ended() -> None:
    with serving(limited(seconds=0.3)) as url, httpx.Client(base_url=url, timeout=30) as http:
        refused = http.post("/v1/completions", json=ASK)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "time_up"
        streamed = http.post("/v1/completions", json={**ASK, "stream": True})
        assert streamed.status_code == 200
        last = json.loads(streamed.text.strip().split("\n\n")[-1].removeprefix("data: "))
        assert last["error"]["code"] == "time_up"
        assert http.post("/v1/completions", json={**ASK, "max_tokens": 2}).status_code == 200


def test_a_body_that_is_too_large() -> None:
    def chunks() -> Iterator[bytes]:
        yield from [b'{"prompt": "'] + [b"a" * 1000] * 20 + [b'"}']

    with serving(limited(body_bytes=10_000)) as url, httpx.Client(base_url=url) as http:
        kind = {"Content-Type": "application/json"}
        for content in (b"a" * 20_000, chunks()):
            refused = http.post("/v1/completions", content=content, headers=kind)
            assert refused.status_code == 413
            assert "exceeds the limit of 10,000 bytes" in refused.json()["error"]["message"]


def test_own_limits_of_tokens() -> None:
    with serving(limited(max_length=20, new_tokens=5)) as url:
        for change, said in (
            ({"max_tokens": 6}, "`max_tokens` must be from 0 to 5."),
            ({"max_tokens": 5, "prompt": "a" * 16}, "the limit is 20: send at most 15 tokens"),
        ):
            answer = httpx.post(f"{url}/v1/completions", json={**ASK, **change})
            assert answer.status_code == 400
            assert said in answer.json()["error"]["message"]
        answer = httpx.post(f"{url}/v1/completions", json={"model": "table-1", "prompt": "abc"})
        assert answer.json()["usage"]["completion_tokens"] <= 5


def test_without_the_key_nothing_is_told(index: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="ralm")
    with serving(local(tiny(), folders={"few": index}, key=SECRET)) as url:
        body = {"model": MODEL, "prompt": "The sea", "max_tokens": 1}
        wrong = [None, "", SECRET, "Bearer", f"Bearer {SECRET}x", f"Basic {SECRET}", "Bearer \u00e9"]
        said = ""
        for sent in wrong:
            headers = {} if sent is None else {b"Authorization": sent.encode("latin-1")}
            for answer in (
                httpx.post(f"{url}/v1/completions", json=body, headers=headers),
                httpx.get(f"{url}/metrics", headers=headers),
                httpx.get(f"{url}/search?q=a", headers=headers),
                httpx.get(f"{url}/openapi.json", headers=headers),
            ):
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
                said += answer.text
        right = {"Authorization": f"Bearer {SECRET}"}
        assert httpx.get(f"{url}/health").status_code == httpx.get(f"{url}/ready").status_code == 200
        assert httpx.post(f"{url}/v1/completions", json=body, headers=right, timeout=60).status_code == 200
        until(lambda: "POST /v1/completions 200" in caplog.text)  # the line is written once the answer is sent
        assert SECRET not in said + caplog.text
        assert "The sea" not in caplog.text


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [(host, False) for host in ("0.0.0.0", "::", "192.168.1.5", "example.com")]
    + [(host, True) for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]")],
)
def test_other_computers_need_a_key(host: str, is_ours: bool) -> None:
    assert open_key(host, environment={KEY: SECRET}) == SECRET
    if is_ours:
        assert open_key(host, environment={}) is None
    else:
        with pytest.raises(UsageError, match=f"put a key for clients into the environment variable {KEY}"):
            open_key(host, environment={})
    for wrong in ("with space", "line\nbreak", "caf\u00e9"):
        with pytest.raises(UsageError) as refused:
            open_key(host, environment={KEY: wrong})
        assert wrong not in str(refused.value)


def test_a_page_of_another_site_cannot_ask(url: str) -> None:
    for host, status in (("evil.example", 403), ("localhost:80", 200), ("127.0.0.1", 200), ("[::1]:9", 200)):
        assert httpx.get(f"{url}/v1/models", headers={"Host": host}).status_code == status


def test_a_model_that_fails_for_good_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(*_: object) -> list[object]:
        raise SystemError("the device is gone")

    with serving(limited()) as url, httpx.Client(base_url=url, timeout=20) as http:
        assert http.get("/health").json()["status"] == http.get("/ready").json()["status"] == "ok"
        monkeypatch.setattr("ralm.serving.batcher.Batcher._score", fails)
        for _ in range(2):
            answer = http.post("/v1/completions", json=ASK)
            assert answer.status_code == 500
            assert answer.json()["error"]["message"] == "the language model failed: see the log of the server."
        assert http.get("/health").status_code == http.get("/ready").status_code == 503
        assert "restart the server" in http.get("/health").json()["error"]["message"]
        assert "SystemError: the device is gone" in caplog.text
        assert http.get("/v1/models").status_code == 200


def test_an_index_that_changes_is_served_as_it_was_until_it_is_reloaded(tmp_path: Path) -> None:
    folder = save_index(tmp_path / "index", DOCUMENTS[:2])
    service = local(tiny(), folders={"few": folder})
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as http:

        def titles(query: str) -> list[str]:
            return [hit["document_id"] for hit in http.get("/search", params={"q": query}).json()["hits"]]

        assert titles("open a file") == []
        folder.rename(tmp_path / "old")
        save_index(folder, DOCUMENTS)
        assert titles("open a file") == []
        assert titles("whales") == ["sea"]
        assert service.indexes.reload() == {"few": "changed"}
        assert titles("open a file") == ["open"]
        assert service.indexes.reload() == {"few": "unchanged"}
        (folder / "manifest.json").write_text("{}")
        assert "kept as it was: " in service.indexes.reload()["few"]
        assert titles("open a file") == ["open"]


def test_a_followed_index_is_opened_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_FOLLOW_SECONDS", 1)
    folder = save_index(tmp_path / "index", DOCUMENTS[:2])
    service = local(tiny(), ServeOptions(follow=True), folders={"few": folder})
    with serving(service) as url:

        def found() -> bool:
            return bool(httpx.get(f"{url}/search", params={"q": "open a file"}).json()["hits"])

        assert not found()
        update_index(folder, make_passages(DOCUMENTS[4:]))
        until(found)
        shutil.rmtree(folder)
        time.sleep(2)
        assert found(), "an index that is gone is kept"


def test_figures_for_prometheus(client: httpx.Client) -> None:
    client.post("/v1/completions", json={"model": MODEL, "prompt": PROMPTS[0], "max_tokens": 3, "temperature": 0})
    client.get("/no/such/path")
    text = client.get("/metrics").text
    assert 'ralm_requests_total{route="/v1/completions",status="200"}' in text
    assert 'ralm_requests_total{route="none",status="404"}' in text
    assert 'ralm_tokens_total{kind="written"}' in text
    assert "\nralm_passage_cache_read " in text
