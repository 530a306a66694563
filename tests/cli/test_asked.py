"""Prompts and queries: as arguments, on standard input and in files; what is no text is refused in one sentence."""

import json
import os
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from ralm.cli.options import read_input
from ralm.errors import RalmError
from tests.cli.program import Answer, ralm


def refused(answer: Answer, message: str) -> None:
    assert answer.status in (1, 2)
    assert answer.out == ""
    assert message in answer.err
    assert len(answer.err.splitlines()) == 1


def test_json_lines_may_hold_several_lines(tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text("\n".join(map(json.dumps, ["one\ntwo", {"prompt": "a\u2028b", "id": 3, "query": "q"}])) + "\n\n")
    assert read_input(None, file, "prompt") == ["one\ntwo", "a\u2028b"]
    file.write_text('{"query": "who?"}\n')
    assert read_input(None, file, "query") == ["who?"]


def test_a_line_of_a_file_is_one_whatever_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "asked.txt"
    file.write_bytes("one\x0c\x1c\x85\u2028still one\r\ntwo\n".encode())
    assert read_input(None, file, "query") == ["one\x0c\x1c\x85\u2028still one", "two"]


def test_a_line_of_standard_input_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (b"", b"\n", b"\r\n"):
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"who?" + end)))
        assert read_input("-", None, "question") == ["who?"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ("3", "line 2 is neither a string nor an object with the string"),
        ('{"text": "x"}', "line 2 is neither a string nor an object with the string"),
        ('"\\ud800"', "line 2 holds a lone surrogate"),
    ],
)
def test_lines_that_are_no_prompt(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text(f'"one"\n{line}\n')
    with pytest.raises(RalmError, match=message):
        read_input(None, file, "prompt")


def test_what_is_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    generate = ["generate", "--lm", "ralm-tiny"]
    refused(ralm(*generate, name), "the prompt is not UTF-8")
    refused(ralm(*generate, "-", stdin=b"caf\xe9"), "standard input is not UTF-8")
    refused(ralm("search", tmp_path, name), "the query is not UTF-8")
    refused(ralm("search", tmp_path, "--queries", tmp_path / name), "does not exist")
    refused(ralm("eval", tmp_path / "x", "--lm", name), "does not exist")


def test_paths_that_no_system_takes(tmp_path: Path) -> None:
    refused(ralm("search", "a" * 5000, "sea"), "File name too long")
    refused(ralm("search", "nul\0", "sea"), "an argument holds a NUL character")
