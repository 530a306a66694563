"""The program, run in this process, and the corpus, text and settings of its tests."""

import io
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ralm.cli import main

MODEL_LENGTH = ["--max-length", "64", "--document-tokens", "24"]
STORIES = [
    ("sea", "The Sea", "The sea is deep and blue. Ships cross the sea by night, and the whales sing in the deep."),
    ("hill", "The Hill", "The hill is green in spring. Sheep graze on the hill, and a dog keeps the sheep together."),
    ("town", "", "A town lies between the sea and the hill. Its market sells fish, wool and bread every morning."),
]
TEXT = "The dog keeps the sheep together on the green hill. The whales sing in the deep blue sea by night. " * 2


@dataclass
class Answer:
    status: int
    out: str
    err: str


def ralm(*arguments: object, stdin: str | bytes = "") -> Answer:
    """Run the program in this process: what it prints, and the status it exits with."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["ralm", *map(str, arguments)])
        given = stdin if isinstance(stdin, bytes) else stdin.encode()
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        try:
            main()
            status = 0
        except SystemExit as stopped:
            status = int(stopped.code or 0)
    return Answer(status, out.getvalue(), err.getvalue())


def done(*arguments: object) -> Answer:
    """What the program answers; it must succeed."""
    answer = ralm(*arguments)
    assert answer.status == 0, answer.err
    return answer


def printed(*arguments: object) -> Any:
    """The JSON that the program prints with --json."""
    return json.loads(done(*arguments, "--json").out)


def failed(answer: Answer, status: int, message: str) -> None:
    """One clear sentence, nothing on standard output, no traceback."""
    assert answer.status == status, answer.err
    assert message in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A file of JSON Lines."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_stories(folder: Path, metadata: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
    """The folder, with a corpus of the stories, corpus.jsonl, and a text about them, text.txt."""
    rows = [
        {"id": name, "title": title, "text": text} | dict((metadata or {}).get(name, {}))
        for name, title, text in STORIES
    ]
    write_rows(folder / "corpus.jsonl", rows)
    (folder / "text.txt").write_text(TEXT)
    return folder
