"""Metrics of answers against the published functions, and on hard cases where the definitions differ."""

import json
from typing import Any

import pytest

from ralm.answering.metrics import (
    contains,
    dpr_tokens,
    exact_match,
    f1,
    has_answer,
    normalised,
    token_match,
    token_recall,
)
from tests.shared_data import shared


@pytest.fixture(scope="module")
def functions() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = json.loads(shared("golden", "official_qa", "functions.json").read_text("utf-8"))
    return found


def test_normalisation_and_exact_match_are_the_published_ones(functions: dict[str, list[Any]]) -> None:
    assert len(functions["normalize_answer"]) > 200
    for text, expected in functions["normalize_answer"]:
        assert normalised(text) == expected, text
    assert len(functions["exact_match"]) > 400
    for prediction, answer, expected in functions["exact_match"]:
        assert exact_match(prediction, [answer]) is expected, (prediction, answer)


HARD = [
    # prediction, answer, SQuAD's exact match, equal DPR tokens
    ("The Beatles", "beatles", True, False),  # articles count in DPR
    ("Beatles, the", "The Beatles", True, False),
    ("U.S.A.", "USA", True, False),  # punctuation separates in DPR, joins in SQuAD
    ("a-b", "ab", True, False),
    ("a - b", "a-b", False, True),  # SQuAD drops the hyphen with or without a word boundary
    ("3.14", "314", True, False),
    ("Beyonce\u0301", "Beyoncé", False, True),  # composed and decomposed forms: only DPR normalises them
    ("Röntgen", "rontgen", False, False),  # marks count in both
    ("1\u20132", "1-2", False, False),  # an en dash is not ASCII punctuation, and not a hyphen
    ("A", "", True, False),  # a letter that is an article is nothing to SQuAD
    ("", "", True, True),
    ("“quoted”", "quoted", False, False),
    ("January\xa031, 2018", "January 31, 2018", True, True),  # a space that does not break
    ("straße", "STRASSE", False, False),  # lower case, not case folding
    ("ONE  two\tthree\n", "one two three", True, True),
]


@pytest.mark.parametrize(("prediction", "answer", "squad", "dpr"), HARD)
def test_where_the_definitions_differ(prediction: str, answer: str, squad: bool, dpr: bool) -> None:
    assert exact_match(prediction, ["nothing like it", answer]) is squad
    assert token_match(prediction, ["nothing like it", answer]) is dpr


def test_no_answers_match_nothing() -> None:
    assert not exact_match("", [])
    assert not token_match("", [])
    assert not has_answer("text", [])
    assert not contains("", [])
    assert f1("text", []) == token_recall("text", []) == 0


@pytest.mark.parametrize(
    ("prediction", "answers", "of_f1", "recall", "held"),
    [
        ("the red dog", ["a dog"], 2 / 3, 1, True),  # 1 shared of 2 said and 1 in the answer
        ("red dog", ["green cat", "dog red"], 1, 1, False),
        ("dog dog dog", ["dog"], 0.5, 1, True),  # words are counted, not only listed
        ("dog dog", ["dog dog cat"], 0.8, 2 / 3, False),
        ("", ["dog"], 0, 0, False),
        ("the", ["a"], 1, 1, True),  # both are nothing
        ("the", ["dog"], 0, 0, False),
        ("It is Paris, the capital.", ["Paris"], 0.4, 1, True),
        ("He was a police officer.", ["pol", "officers"], 0, 0, False),  # words, not letters
        ("I do not know.", ["the"], 0, 0, False),  # nothing is not in everything
    ],
)
def test_shared_words(prediction: str, answers: list[str], of_f1: float, recall: float, held: bool) -> None:
    assert f1(prediction, answers) == pytest.approx(of_f1)
    assert token_recall(prediction, answers) == pytest.approx(recall)
    assert contains(prediction, answers) is held


def test_tokens_of_dpr() -> None:
    assert dpr_tokens("Don't STOP_at 3.14%\u200b") == ["don", "'", "t", "stop", "_", "at", "3", ".", "14", "%"]
    assert dpr_tokens("Beyoncé") == dpr_tokens("Beyonce\u0301") == ["beyonce\u0301"]
    assert dpr_tokens("東京 とうきょう") == ["東京", "とうきょう"]


@pytest.mark.parametrize(
    ("text", "answer", "holds"),
    [
        ("In 1901 the prize went to Wilhelm Conrad Röntgen, of Germany", "wilhelm conrad ro\u0308ntgen", True),
        ("catalogue of dogs", "cat", False),  # tokens, not letters
        ("the cat sat", "cat the", False),
        ("the U.S. army", "U.S.", True),
        ("the US army", "U.S.", False),
        ("one two", "one two three", False),
        ("two", "", False),
        ("a a b", "a b", True),  # the first place where it begins is not the one where it stands
    ],
)
def test_whether_a_text_holds_an_answer(text: str, answer: str, holds: bool) -> None:
    assert has_answer(text, [answer]) is holds
