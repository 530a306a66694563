"""The file of answers: what is in it stays, what was altered is missing, what is something else is refused."""

import json
import math
import sqlite3
import threading
from pathlib import Path

import pytest

from ralm.errors import InputError, StorageError
from ralm.lm.api.store import AnswerStore, answer_key, default_answers
from ralm.lm.api.transport import JsonObject

KEY = answer_key("model", "/completions", {"prompt": [1, 2]})
OTHER = answer_key("model", "/completions", {"prompt": [1, 3]})


def test_what_was_put_is_there_for_every_process(tmp_path: Path) -> None:
    answer: JsonObject = {"text": "h\u00e9 \ud800 \0", "numbers": [0.1, -1e-300, 3, math.inf], "none": None}
    with AnswerStore(tmp_path / "some" / "answers.sqlite") as one, AnswerStore(one.file) as two:
        assert one.get(KEY) is None
        one.put(KEY, answer)
        assert two.get(KEY) == answer
        two.put(KEY, {"text": "new"})
        assert one.get(KEY) == {"text": "new"}
        assert one.get(OTHER) is None


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
    with AnswerStore(tmp_path / "answers") as store:
        store.put(answer_key("model", "/completions", {"prompt": "a secret passage"}), {"text": "fine"})
    assert not any(b"secret" in file.read_bytes() for file in tmp_path.iterdir())


def test_altered_answers_are_missing(tmp_path: Path) -> None:
    with AnswerStore(tmp_path / "answers") as store:
        store.put(KEY, {"n": 1})
        store.put(OTHER, {"n": 2})
    database = sqlite3.connect(tmp_path / "answers")
    entries = dict(database.execute("SELECT address, entry FROM entries").fetchall())
    for wrong in (entries[OTHER], b"\xff" + entries[KEY][1:], entries[KEY][:-1], b"", "text", None):
        with database:
            database.execute("UPDATE entries SET entry = ? WHERE address = ?", (wrong, KEY))
        with AnswerStore(tmp_path / "answers") as store:
            assert store.get(KEY) is None
            assert store.get(OTHER) == {"n": 2}
    database.close()


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("These are notes, and by no means a database. " * 50)
    with pytest.raises(InputError, match="is not a file of answers"):
        AnswerStore(tmp_path / "notes.txt")
    with pytest.raises(StorageError, match="the file of answers .* cannot be used"):
        AnswerStore(tmp_path)
    with pytest.raises(StorageError, match="cannot be used"):
        AnswerStore(tmp_path / "notes.txt" / "answers")


def test_several_threads_at_once(tmp_path: Path) -> None:
    with AnswerStore(tmp_path / "answers") as store:

        def work(first: int) -> None:
            for number in range(first, 200, 4):
                key = answer_key("m", "/", {"n": number})
                store.put(key, {"n": number})
                assert store.get(key) == {"n": number}

        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [store.get(answer_key("m", "/", {"n": n})) for n in range(200)] == [{"n": n} for n in range(200)]


def test_where_answers_are_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_answers({}) == tmp_path / ".cache" / "ralm" / "answers.sqlite"
    assert default_answers({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/ralm/answers.sqlite")
    assert default_answers({"XDG_CACHE_HOME": "/caches", "RALM_CACHE": "/mine"}) == Path("/mine/answers.sqlite")


def test_an_answer_takes_little_room(tmp_path: Path) -> None:
    answer: JsonObject = {"logprobs": [{"token": "a", "logprob": -0.5}] * 2000}
    with AnswerStore(tmp_path / "answers") as store:
        store.put(KEY, answer)
    assert (tmp_path / "answers").stat().st_size < len(json.dumps(answer)) / 3
