"""The file of answers, each under a key of all that decides it, and their JSON: the same as Python's reader and writer,
also where pydantic refuses."""

import json
import math
import struct
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.lm.api.client import AnswerStore, answer_key, default_answers
from ralm.lm.api.http import JsonObject, read_json, write_json

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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
)


@given(JSON)
def test_what_is_written_is_read(value: object) -> None:
    assert read_json(write_json(value)) == value
    assert read_json(json.dumps(value)) == value


def test_numbers_are_read_to_the_last_bit() -> None:
    drawn = np.random.default_rng(0).bytes(8 * 20_000)
    values = [value for (value,) in struct.iter_unpack("<d", drawn) if math.isfinite(value)]
    digits = [f"-{value % 50:.30f}" for value in values if 0 < value < 1e9]
    assert read_json(json.dumps(values)) == values
    assert read_json(f"[{','.join(digits)}]") == [float(text) for text in digits]
    assert read_json(write_json(values)) == values


@pytest.mark.parametrize("text", ['"\\ud83d"', '{"a": "\\udc9c"}', "[" * 500 + "]" * 500])
def test_half_a_character_and_deep_nesting_are_read_and_written(text: str) -> None:
    value = json.loads(text)
    assert read_json(text) == value
    assert read_json(write_json(value)) == value


def test_not_a_number_and_infinity_are_kept() -> None:
    found = read_json(write_json([math.nan, math.inf, -math.inf]))
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


@pytest.mark.parametrize("text", ["", "<html>", '{"a": 1', "{'a': 1}", "[1,]"])
def test_what_is_no_json_raises(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        read_json(text)


def test_nesting_without_end_raises() -> None:
    with pytest.raises((ValueError, RecursionError)):
        read_json("[" * 200_000)
