"""What people see in a terminal: progress, as lines where standard error is none, and visible control characters."""

import json
from types import SimpleNamespace

import pytest

from ralm import terminal
from ralm.terminal import one_line, printable_json, visible


def test_short_work_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(terminal.track(range(3), "Counting", 3)) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_long_work_says_how_far_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with terminal.progress_bar("Scoring", total=3100) as advance:
        for _ in range(4):
            advance(310)
    assert capsys.readouterr().err.splitlines() == [
        "ralm: Scoring: 620 of 3,100, 20 a second, 0:02:04 left",
        "ralm: Scoring: 1,240 of 3,100, 20 a second, 0:01:33 left",
    ]


def test_work_of_unknown_length(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 30.0])
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with terminal.progress_bar("Indexing passages") as advance:
        advance(60_000)
    assert capsys.readouterr().err == "ralm: Indexing passages: 60,000, 2,000 a second\n"


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
    written = printable_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(written) == value
    assert visible(written) == written
    assert "é 海" in written
