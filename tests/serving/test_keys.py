"""Keys of several clients: their names, their limits, and a file of keys that changes."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ralm.errors import InputError, RalmError, UsageError
from ralm.serving.audit import AuditLog
from ralm.serving.keys import KEY, Keys, open_keys
from ralm.serving.service import Service
from tests.serving.served import serving
from tests.serving.test_limits import SlowTable, until

FILE = """
[ada]
key = "sk-ada"
requests_per_minute = 2
[bob]
key_env = "BOB"
max_concurrency = 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    return path


def sent(url: str, key: str, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    body = {"model": "table-1", "prompt": "abc", "max_tokens": 1, **body}
    return httpx.post(f"{url}{path}", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=30)


def test_each_key_has_its_limits_and_its_name(file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="ralm")
    log, keys = tmp_path / "audit.jsonl", Keys("sk-own", file, {"BOB": "sk-bob"})
    with serving(Service(SlowTable(), keys=keys, audit=AuditLog(log))) as url:
        assert [sent(url, "sk-ada").status_code for _ in range(3)] == [200, 200, 429]
        with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-ada", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError, match="this key may send 2 requests a minute") as refused:
                client.completions.create(model="table-1", prompt="abc")
            assert refused.value.code == "rate_limit_exceeded"
            assert 50 < int(refused.value.response.headers["Retry-After"]) <= 60
        assert sent(url, "sk-none").status_code == 401
        with httpx.stream(
            "POST",
            f"{url}/v1/completions",
            json={"model": "table-1", "prompt": "abc", "max_tokens": 200, "temperature": 0, "stream": True},
            headers={"Authorization": "Bearer sk-bob"},
        ) as running:
            lines = running.iter_lines()  # the stream ends with its last reference
            next(lines)
            beyond = sent(url, "sk-bob")
            assert (beyond.status_code, beyond.headers["Retry-After"]) == (429, "1")
            assert sent(url, "sk-own").status_code == 200
        until(lambda: sent(url, "sk-bob").status_code == 200)
        assert sent(url, "sk-bob", "/admin/reload").status_code == 403
        assert sent(url, "sk-own", "/admin/reload").status_code == 200
    names = [(one["key"], one["status"]) for one in map(json.loads, log.read_text().splitlines())]
    assert names[:5] == [("ada", 200), ("ada", 200), ("ada", 429), ("ada", 429), (None, 401)]
    assert {("bob", 499), ("bob", 429), ("bob", 403), (KEY, 200)} < set(names)
    assert "sk-" not in caplog.text + log.read_text()


def test_a_file_that_changes(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ralm")
    service = Service(SlowTable(0), keys=Keys(None, file, {"BOB": "sk-bob"}))
    with serving(service) as url:
        assert [sent(url, "sk-ada").status_code for _ in range(2)] == [200, 200]
        file.write_text(FILE.replace("= 2", "= 3").replace("[bob]", "[eve]").replace("key_env", "key"))
        service.reload()
        assert [sent(url, "sk-ada").status_code for _ in range(2)] == [200, 429]  # requests before it count
        assert [sent(url, key).status_code for key in ("sk-bob", "BOB")] == [401, 200]
        file.write_text("[ada")
        service.reload()
        assert [sent(url, key).status_code for key in ("sk-bob", "BOB")] == [401, 200]
        file.unlink()
        service.reload()
        assert sent(url, "BOB").status_code == 200
    assert "the keys stay as they were" in caplog.text


def test_concurrent_requests_of_other_keys_do_not_count(file: Path) -> None:
    service = Service(SlowTable(), keys=Keys(None, file, {"BOB": "sk-bob"}))
    with serving(service) as url, ThreadPoolExecutor(1) as pool:
        running = pool.submit(sent, url, "sk-bob", max_tokens=50, temperature=0)
        until(lambda: bool(service.keys._usage["bob"].running))
        assert sent(url, "sk-ada").status_code == 200
        assert running.result().status_code == 200


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no key: add a table"),
        ("[ada", "is not a file of keys"),
        ('ada = "sk-secret"', "[ada] must be a table"),
        (f'[{KEY}]\nkey = "sk-secret"', "with the name of a client, other than RALM_SERVE_KEY"),
        ("[ada]", "[ada] needs either `key` or `key_env`"),
        ('[ada]\nkey = "sk-secret"\nkey_env = "BOB"', "[ada] needs either `key` or `key_env`"),
        ('[ada]\nkey_env = "NONE"', "[ada] has no key, or one with a space"),
        ('[ada]\nkey = "sk-secret 1"', "[ada] has no key, or one with a space"),
        ('[ada]\nkey = "sk-secret"\nrequests = 2', "[ada] sets requests; a key has key, key_env, requests_per_minute"),
        ('[ada]\nkey = "sk-secret"\nmax_concurrency = 0', "`max_concurrency` must be a whole number from 1 on"),
        ('[ada]\nkey = "sk-secret"\nmax_concurrency = true', "`max_concurrency` must be a whole number from 1 on"),
        ('[ada]\nkey = "sk-secret"\n[bob]\nkey = "sk-secret"', "[bob] has the key of ada"),
        ('[ada]\nkey = "sk-own"', "[ada] has the key of RALM_SERVE_KEY"),
    ],
)
def test_files_that_hold_no_keys(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(content)
    with pytest.raises(RalmError) as rejected:
        open_keys("0.0.0.0", path, {KEY: "sk-own"})
    assert said in str(rejected.value)
    assert "sk-" not in str(rejected.value)


def test_a_file_is_enough_for_other_computers(file: Path, tmp_path: Path) -> None:
    assert open_keys("0.0.0.0", file, {"BOB": "sk-bob"}).find("sk-bob")
    with pytest.raises(InputError, match="does not exist"):
        open_keys("0.0.0.0", tmp_path / "none.toml", {})
    with pytest.raises(UsageError, match="give a file of `keys`"):
        open_keys("0.0.0.0", None, {})
