"""The file of answers, each under a key of all that decides it, and their JSON: the same as Python's reader and writer,
also where pydantic refuses."""

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ralm.lm.api.client import AnswerStore, answer_key, default_answers
from ralm.lm.api.http import JsonObject

KEY = answer_key("model", "/completions", {"prompt": [1, 2]})


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


def test_an_answer_takes_little_room(tmp_path: Path) -> None:
    answer: JsonObject = {"logprobs": [{"token": "a", "logprob": -0.5}] * 2000}
    with closing(AnswerStore(tmp_path / "answers")) as store:
        store.put(KEY, answer)
    assert (tmp_path / "answers").stat().st_size < len(json.dumps(answer)) / 3


@pytest.mark.parametrize("text", ['"\\ud83d"', '{"a": "\\udc9c"}', "[" * 500 + "]" * 500])
def test_half_a_character_and_deep_nesting_are_read_and_written(tmp_path: Path, text: str) -> None:
    answer: JsonObject = {"text": json.loads(text)}
    with closing(AnswerStore(tmp_path / "answers")) as store:
        store.put(KEY, answer)
        assert store.get(KEY) == answer


def test_not_a_number_and_infinity_are_kept(tmp_path: Path) -> None:
    with closing(AnswerStore(tmp_path / "answers")) as store:
        store.put(KEY, {"found": [math.nan, math.inf, -math.inf]})
        found: Any = (store.get(KEY) or {})["found"]
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]
