"""What the text of an answer says about its passages: numbers that it cites, and runs of words that it quotes."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

from ralm.answering.metrics import dpr_tokens
from ralm.answering.quotes import cited_numbers, own_spans, quotes

PASSAGE = "Marie Curie was born in Warsaw in 1867. She discovered polonium and radium with Pierre Curie."
QUESTION = "Use this text to answer the question that follows it.\n\nQuestion: Where was Marie Curie born?"


def quoted(answer: str, passage: str = PASSAGE, own: str = QUESTION) -> list[tuple[str, str]]:
    return [(answer[slice(*one.answer)], passage[slice(*one.passage)]) for one in quotes(answer, passage, own)]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Warsaw", ["Warsaw"]),
        ("She was born in WARSAW, in 1867!", ["was born in WARSAW, in 1867"]),
        ("It was in 1867.", ["in 1867"]),
        ("Polonium and radium: she discovered both.", ["Polonium and radium", "she discovered"][:1]),
        ("Marie Curie was born in Paris.", []),
        ("Use this text to answer the question that follows it.", []),
        ("I was there with a friend.", []),  # words that everybody writes
        ("Marie", []),  # a word of the question
        ("radium", ["radium"]),  # the whole answer
        ("She saw radium.", []),  # a word alone that is no name
        ("", []),
        ("...", []),
    ],
)
def test_quotes_by_hand(answer: str, expected: list[str]) -> None:
    assert [said for said, _ in quoted(answer)] == expected
    assert all(dpr_tokens(said.replace(",", "")) == dpr_tokens(read) for said, read in quoted(answer))


def test_composed_and_decomposed_letters_are_the_same() -> None:
    assert quoted("In Besanc\u0327on.", "The city of Besan\u00e7on lies there.", "") == [
        ("Besanc\u0327on", "Besan\u00e7on")
    ]


def test_scripts_without_spaces() -> None:
    assert (
        quoted(
            "\u7b54\u6848\u662f\u5c45\u91cc\u592b\u4eba\u3002",
            "\u5c45\u91cc\u592b\u4eba\u53d1\u73b0\u4e86\u954d\u3002",
            "",
        )[0][0]
        == "\u5c45\u91cc\u592b\u4eba"
    )


@pytest.mark.parametrize(
    ("answer", "numbers"),
    [
        ("Yes [1].", {1: [(4, 7)]}),
        ("Yes [1, 3] and [ 3 ].", {1: [(4, 10)], 3: [(4, 10), (15, 20)]}),
        ("No [0], [4], [-1], [1.5], [a], (1), [12345].", {}),
        ("[2][2]", {2: [(0, 3), (3, 6)]}),
        ("[2; 2]", {2: [(0, 6)]}),
    ],
)
def test_numbers_that_an_answer_cites(answer: str, numbers: dict[int, list[tuple[int, int]]]) -> None:
    assert cited_numbers(answer, 3) == numbers
    assert cited_numbers(answer, 3, "Cite them, as in [1].") == numbers


def test_a_citation_that_is_copied_from_the_instruction_cites_nothing() -> None:
    assert cited_numbers("Cite their numbers, as in [1]. So [2].", 3, "Cite their numbers, as in [1].") == {
        2: [(34, 37)]
    }


def test_a_long_answer_of_one_word_is_fast() -> None:
    [one] = quotes("no " * 2_000, "no " * 2_000)
    assert one.answer == (0, 5_999)


# ---- of any text: the longest common runs, by a plain loop

WORDS = st.lists(st.sampled_from(["a", "b", "Cd", "7"]), max_size=12)


def plain_runs(words: Sequence[str], others: Sequence[str]) -> list[tuple[int, int]]:
    """The longest common run, then those on either side, found by trying all."""
    found = [
        (begin, begin + size)
        for size in range(len(words), 0, -1)
        for begin in range(len(words) - size + 1)
        for there in range(len(others) - size + 1)
        if list(words[begin : begin + size]) == list(others[there : there + size])
    ]
    if not found:
        return []
    begin, end = found[0]
    after = [(end + one, end + other) for one, other in plain_runs(words[end:], others)]
    return [*plain_runs(words[:begin], others), (begin, end), *after]


@given(WORDS, WORDS)
@example(["a", "b", "a"], ["b", "a", "b"])
def test_quotes_are_the_longest_common_runs(said: list[str], read: list[str]) -> None:
    answer, passage = " ".join(said), " ".join(read)
    found = quotes(answer, passage)
    expected = [
        " ".join(said[begin:end])
        for begin, end in plain_runs(said, read)
        if end - begin >= 3 or "7" in said[begin:end] or end - begin == len(said)
    ]
    assert [answer[slice(*one.answer)] for one in found] == expected
    assert all(answer[slice(*one.answer)] == passage[slice(*one.passage)] for one in found)


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=20))
@example("\u0130stanbul", "i\u0307stanbul", "")
def test_what_holds_of_any_quotes(answer: str, passage: str, own: str) -> None:
    found = quotes(answer, passage, own)
    for span, text in [(one.answer, answer) for one in found] + [(one.passage, passage) for one in found]:
        assert 0 <= span[0] < span[1] <= len(text)
    assert all(one.answer[1] <= other.answer[0] for one, other in pairwise(found))
    assert all(answer[slice(*one)].strip() for one in own_spans(answer, own))
    assert quotes(answer, passage, answer) == [], (
        "words of the prompt itself are no quote" if len(answer.split()) > 1 else ""
    )
    for number, spans in cited_numbers(answer, 9).items():
        assert all(str(number) in answer[slice(*one)] for one in spans)
