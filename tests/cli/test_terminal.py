"""Texts, titles and names that would act on a terminal: people see them, and data has them as escapes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ralm.terminal import visible
from tests.cli.program import MODEL_LENGTH, Answer, ralm

EVIL = "\x1b]0;owned\x07\x9b2J\x7f\u202eexe\u2028\x08"
TITLE = f"The {EVIL}\nSea"
TEXT = os.fsdecode(b"text\xff.txt")
BODY = f"The sheep {EVIL} graze on the hill, and the whales sing in the sea. " * 3


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, tiny_folders: dict[str, Path]) -> Path:
    """An index of one such document, a text whose name is not UTF-8, and a run."""
    folder = tmp_path_factory.mktemp("terminal") / "bad\x1b[1m"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text(json.dumps({"id": f"id{EVIL}", "title": TITLE, "text": BODY}) + "\n")
    (folder / TEXT).write_text(BODY)
    safe(ralm("index", folder / "corpus.jsonl", "--out", folder / "index", "--words", 10))
    reading = ["--lm", tiny_folders["gpt2"], "--index", folder / "index", *MODEL_LENGTH, "--limit-tokens", 80]
    safe(ralm("eval", folder / TEXT, *reading, "--baseline", "--out", folder / "run"))
    return folder


def safe(answer: Answer, status: int = 0) -> Answer:
    """What the program printed, of which nothing acts on a terminal."""
    assert answer.status == status, answer.err
    assert visible(answer.out) == answer.out
    assert visible(answer.err) == answer.err
    return answer


def test_passages_found(work: Path) -> None:
    assert "The \\x1b]0;owned\\x07" in safe(ralm("search", work / "index", "sheep")).out
    found = json.loads(safe(ralm("search", work / "index", f"sheep {EVIL}", "--json")).out)
    assert found["query"] == f"sheep {EVIL}"
    assert found["hits"][0]["title"] == TITLE


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_generated_texts(work: Path, tiny_folders: dict[str, Path], form: list[str]) -> None:
    reading = ["--lm", tiny_folders["gpt2"], "--index", work / "index", "--document-tokens", 24, "--new-tokens", 8]
    answer = safe(ralm("generate", f"The sheep {EVIL}", *reading, *form, "--baseline"))
    assert "owned" in answer.out


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_reports(work: Path, form: list[str]) -> None:
    assert "x9b2J" in safe(ralm("report", work / "run", *form)).out or form
    assert "\\u009b2J" in safe(ralm("report", work / "run", "--json")).out


def test_a_page_of_a_run(work: Path, tmp_path: Path) -> None:
    safe(ralm("report", work / "run", "--html", tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert visible(page) == page


def test_errors_and_wrong_calls(work: Path) -> None:
    name = os.fsdecode(b"no\xfe") + EVIL
    assert "\\x1b]0;owned" in safe(ralm("search", work / name, "sheep"), 1).err
    assert "\\x1b]0;owned" in safe(ralm("search", work / "index", "a", name), 2).err
    assert "\\x1b]0;owned" in safe(ralm(name), 2).err
    assert len(safe(ralm("eval", work / "one\ntwo", "--lm", "x"), 1).err.splitlines()) == 1


def test_values_of_a_sweep_are_no_markup(
    work: Path, tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    index = work / "[bold]index[/nothing]"
    index.parent.mkdir()
    index.symlink_to(work / "index")
    command = ["sweep", work / TEXT, "--lm", tiny_folders["gpt2"], *MODEL_LENGTH, "--limit-tokens", 40]
    answer = safe(ralm(*command, "--over", "index", "--values", f"{work / 'index'},{index}"))
    assert "[bold]index[/nothing]" in answer.out.replace("\n", "")


def test_an_output_that_knows_few_characters(work: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ralm", "search", str(work / "index"), "sheep"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"owned" in done.stdout
    assert b"\x1b" not in done.stdout
