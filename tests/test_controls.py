"""Characters that act on a terminal, made visible."""

import json

import pytest

from ralm.terminal import one_line, printable_json, visible


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
