"""Analysis: Lucene's own answers, examples worked out by hand, and the rules of UAX #29 applied one by one."""

import json

import pytest
import regex
from hypothesis import given, settings, strategies as st

from ralm.retrieval import analysis
from ralm.retrieval.analysis import ENGLISH, Analyser, lucene as words_module
from ralm.retrieval.analysis.lucene import words
from tests.shared_data import shared

CLASSES = (
    "ALetter",
    "Numeric",
    "Katakana",
    "ExtendNumLet",
    "MidLetter",
    "MidNum",
    "MidNumLet",
    "Single_Quote",
    "Extend",
    "Format",
    "ZWJ",
)
ALPHABET = "aZ19_.,:;'\"-$ \t\n\u2019\u00b7\u00e9\u03a3\u0130\u0301\u200d\u00ad\u3042\u4e00\u30ab\u30ad\uac00\u0661"


def test_lucenes_terms_of_every_golden_text() -> None:
    analyse = Analyser(ENGLISH)
    rows = [json.loads(line) for line in shared("golden", "lucene", "analysis.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 1125
    assert [row["text"] for row in rows if analyse(row["text"]) != row["tokens"]] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\t ", []),
        ("-- ... '' __ \u00ad \u0301", []),
        ("3.14 1,000 1.a a.1 1;2 a;b a,b", ["3.14", "1,000", "1", "a", "a", "1", "1;2", "a", "b", "a", "b"]),
        ("U.S.A. e.g. a:b 1:2", ["U.S.A", "e.g", "a:b", "1", "2"]),
        ("can't 'tis rock'n'roll dogs' l'\u00e9t\u00e9", ["can't", "tis", "rock'n'roll", "dogs", "l'\u00e9t\u00e9"]),
        ("snake_case _x_ a_._b 1_000", ["snake_case", "_x_", "a_", "_b", "1_000"]),
        ("well-known a/b x@y.org C++ #tag", ["well", "known", "a", "b", "x", "y.org", "C", "tag"]),
        ("\u6771\u4eac\u306e", ["\u6771", "\u4eac", "\u306e"]),
        ("\u30ab\u30bf\u30ab\u30ca\u30fc", ["\u30ab\u30bf\u30ab\u30ca\u30fc"]),
        ("\ud55c\uad6d\uc5b4 \ub9d0", ["\ud55c\uad6d\uc5b4", "\ub9d0"]),
        ("\u0e01\u0e02\u0e03", ["\u0e01\u0e02\u0e03"]),
        (
            "\u05d0'\u05d1 \u05d0\"\u05d1 \u05d0\" \u05d0' \u05d0'1",
            ["\u05d0'\u05d1", '\u05d0"\u05d1', "\u05d0", "\u05d0'", "\u05d0'1"],
        ),
        ("e\u0301te\u0301", ["e\u0301te\u0301"]),
        ("\U0001f600\U0001f44d\U0001f3fd ok", ["\U0001f600", "\U0001f44d\U0001f3fd", "ok"]),
        ("\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", ["\U0001f1e9\U0001f1ea", "\U0001f1eb\U0001f1f7"]),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cats' cat's CAT\u2019S cat\uff07s", ["cat", "cat", "cat", "cat"]),
        ("to be or not to be", []),
        ("ponies relational conditional possibly", ["poni", "relat", "condit", "possibl"]),
        ("analogies analogy analogi", ["analog", "analog", "analog"]),
        ("as is us", ["us"]),
        ("\u039f\u0394\u039f\u03a3 \u0130", ["\u03bf\u03b4\u03bf\u03c3", "i"]),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert Analyser(ENGLISH)(text) == expected


def test_a_run_of_more_than_255_letters_is_cut() -> None:
    assert words("x" * 600) == ["x" * 255, "x" * 255, "x" * 90]
    assert words("\u00e9" * 256) == ["\u00e9" * 255, "\u00e9"]


def test_remembering_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["running runs", "ran running", "runs. (runs) runs"] * 3
    expected = [Analyser(ENGLISH)(text) for text in texts]
    monkeypatch.setattr(analysis, "_CACHED_RUNS", 2)
    forgetful = Analyser(ENGLISH)
    assert [forgetful(text) for text in texts] == expected


def word_break_class(character: str) -> str:
    if character == ":":
        return "MidLetter"
    return next((name for name in CLASSES if regex.match(rf"\p{{WB={name}}}", character)), "Other")


def joined(classes: list[str], i: int) -> bool:
    """Whether UAX #29 has no boundary before the i-th of characters without their marks (rules WB5 to WB13b).

    Hebrew is left to the examples: Lucene's grammar lets a digit follow a Hebrew letter's apostrophe, the standard not.
    """
    before, after = classes[i - 1], classes[i]
    two_before = classes[i - 2] if i >= 2 else ""
    two_after = classes[i + 1] if i + 1 < len(classes) else ""
    in_word = ("MidLetter", "MidNumLet", "Single_Quote")
    in_number = ("MidNum", "MidNumLet", "Single_Quote")
    word_like = ("ALetter", "Numeric", "Katakana")
    return (
        (before in ("ALetter", "Numeric") and after in ("ALetter", "Numeric"))
        or (before == "ALetter" and after in in_word and two_after == "ALetter")
        or (two_before == "ALetter" and before in in_word and after == "ALetter")
        or (two_before == "Numeric" and before in in_number and after == "Numeric")
        or (before == "Numeric" and after in in_number and two_after == "Numeric")
        or (before == after == "Katakana")
        or (before in (*word_like, "ExtendNumLet") and after == "ExtendNumLet")
        or (before == "ExtendNumLet" and after in word_like)
    )


def words_by_the_rules(text: str) -> list[str]:
    """Characters with their marks (WB4), joined by the rules; what has no letter, digit or ideograph is no word."""
    characters: list[str] = []
    for character in text:
        mark = word_break_class(character) in ("Extend", "Format", "ZWJ")
        if mark and characters and not characters[-1].isspace():
            characters[-1] += character
        else:
            characters.append(character)
    classes = [word_break_class(character[0]) for character in characters]
    found: list[str] = []
    for i, character in enumerate(characters):
        if i and joined(classes, i):
            found[-1] += character
        else:
            found.append(character)
    of_a_word = regex.compile(r"[\p{WB=ALetter}\p{WB=Numeric}\p{WB=Katakana}\p{Han}\p{Hiragana}]")
    return [word for word in found if of_a_word.search(word)]


@settings(max_examples=500)
@given(st.text(alphabet=ALPHABET, max_size=12))
def test_words_obey_the_rules_of_the_standard(text: str) -> None:
    assert words(text) == words_by_the_rules(text)


@settings(max_examples=500)
@given(st.text(alphabet=[chr(i) for i in range(128)], max_size=20) | st.text(alphabet="aB12_.,:;' ", max_size=20))
def test_the_fast_path_for_ascii_agrees_with_the_whole(text: str) -> None:
    assert words(text) == words_module._UNICODE_WORDS.findall(text)


@settings(max_examples=300)
@given(st.text(max_size=20) | st.text(alphabet=ALPHABET, max_size=20))
def test_no_word_goes_beyond_white_space(text: str) -> None:
    assert [word for run in text.split() for word in words(run)] == words(text)
