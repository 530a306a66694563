"""What people see: texts and names that would act on a terminal as escapes; notes, progress and messages; `--quiet`."""

import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from ralm import terminal
from ralm.cli.process import library_messages, quietly
from ralm.errors import RalmWarning
from ralm.terminal import PROGRESS_SWITCH, one_line, progress_bar, to_json, visible
from tests.cli.program import MODEL_LENGTH, Answer, done, ralm

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


@pytest.mark.parametrize(("variables", "before", "after"), [({}, "\x1b[1m", "\x1b[0m"), ({"NO_COLOR": "1"}, "", "")])
def test_terms_of_a_query_are_bold_in_a_terminal(
    index: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], before: str, after: str
) -> None:
    assert "     whales sing\n" in safe(ralm("search", index, "whale seas")).out
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    shown = ralm("search", index, "whale seas").out
    assert f"  a, corpus.jsonl:1  {before}Sea{after}\n     {before}whales{after} sing\n" in shown


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


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("messages")
    (folder / "corpus.jsonl").write_text(json.dumps({"id": "a", "title": "Sea", "text": "whales sing"}) + "\n")
    done("index", folder / "corpus.jsonl", "--out", folder / "index")
    return folder / "index"


def test_quiet_leaves_out_notes(index: Path) -> None:
    told, quiet = (ralm(*options, "search", index, "sheep") for options in ([], ["--quiet"]))
    assert told.err.startswith("ralm: no passage was found")
    assert (quiet.status, quiet.out, quiet.err) == (told.status, told.out, "")
    assert ralm("search", index, "sheep").err == told.err, "only where it is given"


def test_quiet_leaves_errors(tmp_path: Path) -> None:
    answer = ralm("--quiet", "search", tmp_path / "missing", "sheep")
    assert answer.status == 1
    assert answer.err.startswith("ralm: ")


def test_what_the_library_says_comes_as_lines_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("ralm.some.part")
    handlers, shown = list(logging.getLogger("ralm").handlers), warnings.showwarning
    with library_messages():
        logger.info("half is\ndone")
        with quietly():
            logger.info("three quarters are done")
            logger.warning("%s is slow", "this model")
            warnings.warn("some is lost", RalmWarning, stacklevel=1)
    assert capsys.readouterr().err == ("ralm: half is\\ndone\nralm: this model is slow\nralm: warning: some is lost\n")
    assert logging.getLogger("ralm").handlers == handlers
    assert warnings.showwarning is shown
    logger.info("nobody listens")
    assert capsys.readouterr().err == ""


def test_quiet_leaves_out_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROGRESS_SWITCH, raising=False)
    monkeypatch.setattr("ralm.terminal._SECONDS_A_LINE", 0.0)
    with quietly():
        with progress_bar("Reading", total=2) as advance:
            advance()
        assert os.environ[PROGRESS_SWITCH] == "0", "processes that are started show none either"
    assert capsys.readouterr().err == ""
    assert PROGRESS_SWITCH not in os.environ
    with progress_bar("Reading", total=2) as advance:
        advance()
    assert "Reading: 1 of 2" in capsys.readouterr().err


def test_long_work_says_how_far_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with terminal.progress_bar("Scoring", total=3100) as advance:
        for _ in range(4):
            advance(310)
    assert capsys.readouterr().err.splitlines() == [
        "ralm: Scoring: 620 of 3,100, 20.0 a second, 0:02:04 left",
        "ralm: Scoring: 1,240 of 3,100, 20.0 a second, 0:01:33 left",
    ]


@pytest.mark.parametrize(("value", "lines"), [("0", 0), ("1", 1), ("", 1)])
def test_the_environment_turns_it_off(
    value: str, lines: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RALM_PROGRESS", value)
    monkeypatch.setattr(terminal, "_SECONDS_A_LINE", 0.0)
    assert list(terminal.track(range(1), "Counting")) == [0]
    assert len(capsys.readouterr().err.splitlines()) == lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, naïve café 海 👩‍👩‍👧", "plain text, naïve café 海 👩‍👩‍👧"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x9b31m\x7f\x00", "\\x9b31m\\x7f\\x00"),
        ("nice\rbad", "nice\\rbad"),
        ("user\u202eexe.txt\u2066", "user\\u202eexe.txt\\u2066"),
        ("\udcff\ud800", "\\udcff\\ud800"),
        ("two\r\nlines\n\tand a tab", "two\r\nlines\n\tand a tab"),
    ],
)
def test_what_acts_on_a_terminal_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_name_has_one_line() -> None:
    assert one_line("a\nb\tc\r\nd\x1b") == "a\\nb\\tc\\r\\nd\\x1b"


def test_json_is_escaped_and_means_the_same() -> None:
    value = {"\x9bkey": "\x1b \x7f \u2028 \u202e \udcff é 海 \n"}
    written = to_json(value, indent=1)
    assert json.loads(written) == value
    assert visible(written) == written
    assert "é 海" in written
