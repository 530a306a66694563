"""What the text of an answer says about its passages: numbers that it cites, and runs of words that it quotes."""

from collections.abc import Sequence
from itertools import pairwise
from time import process_time

import pytest
from hypothesis import example, given, strategies as st

from ralm.answering.citations import cited_numbers, copied_spans, quotes
from ralm.answering.metrics import dpr_tokens

PASSAGE = (
    "Marie Curie was born in Warsaw in 1867. She discovered polonium and radium with Pierre Curie. "
    "Set gooseberry-fool and set_log_scale in getValue for a well-known, long-term goal, as in section 2 of 12."
)
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
        ("Polonium-free radium", []),  # part of a word
        ("Use Gooseberry-fool, set_log_level or log_scale.", ["Gooseberry-fool"]),  # rare
        ("It calls getValue or set_log_scale", ["getValue", "set_log_scale"]),
        ("A well-known plan for the long-term, i.e. a scale.", []),
        ("", []),
        ("...", []),
        ("Sure! 2. First", []),
        ("Sure:\n12. Last", []),
        ("It has 12 parts, see section 2.", ["12", "section 2"]),
        ("2", ["2"]),
    ],
)
def test_quotes_by_hand(answer: str, expected: list[str]) -> None:
    assert [said for said, _ in quoted(answer)] == expected
    assert all(dpr_tokens(said.replace(",", "")) == dpr_tokens(read) for said, read in quoted(answer))


def test_a_rare_word_stands_in_no_other_document() -> None:
    assert quotes("Use gooseberry-fool.", PASSAGE, QUESTION, ["A Gooseberry-fool!"]) == []


def test_composed_letters_and_scripts_without_spaces() -> None:
    [quote] = quoted("In Besanc\u0327on.", "The city of Besan\u00e7on lies there.", "")
    assert quote == ("Besanc\u0327on", "Besan\u00e7on")
    name = "\u5c45\u91cc\u592b\u4eba"
    assert quoted(f"\u7b54\u6848\u662f{name}\u3002", f"{name}\u53d1\u73b0\u4e86\u954d\u3002", "")[0][0] == name


@pytest.mark.parametrize(
    ("answer", "numbers"),
    [
        ("Yes [1].", {1: [(4, 7)]}),
        ("Yes [1, 3] and [ 3 ].", {1: [(4, 10)], 3: [(4, 10), (15, 20)]}),
        ("No [0], [4], [-1], [1.5], [a], (1), [12345].", {}),
        ("[2][2]", {2: [(0, 3), (3, 6)]}),
        ("[2; 2]", {2: [(0, 6)]}),
        # as people and models write them
        ("\u30101\u3011", {1: [(0, 3)]}),
        ("\u30101\u2020source\u3011[2\u2020b]", {1: [(0, 10)], 2: [(10, 15)]}),
        ("[1\uff0c2] [1\u30013] [1\uff1b2]", {1: [(0, 5), (6, 11), (12, 17)], 2: [(0, 5), (12, 17)], 3: [(6, 11)]}),
        ("[1-3]", {1: [(0, 5)], 2: [(0, 5)], 3: [(0, 5)]}),
        ("[1\u20132, 3]", {1: [(0, 8)], 2: [(0, 8)], 3: [(0, 8)]}),
        ("[1, 1-2]", {1: [(0, 8)], 2: [(0, 8)]}),
        ("[1]-[3]", {1: [(0, 7)], 2: [(0, 7)], 3: [(0, 7)]}),
        ("[0-9] [1-9] [3-1] [1-] [1990-1999]", {}),
        ("A.[^1] B.[^1, ^2]", {1: [(2, 6), (9, 17)], 2: [(9, 17)]}),
        ("\uff3b\uff11\uff3d \uff3b1\uff3d [\uff12\u3000]", {1: [(0, 3), (4, 7)], 2: [(8, 12)]}),
        ("Warsaw[1], **Lodz[2]** and *Lodz[3]*", {1: [(6, 9)], 2: [(17, 20)], 3: [(32, 35)]}),
        ("* Lodz[1]\n+ Lodz[2]\n> Lodz[3]", {1: [(6, 9)], 2: [(16, 19)], 3: [(26, 29)]}),
        ("C++[1], E = mc\u00b2[2], 1 + 1 = 2 [3]", {1: [(3, 6)], 2: [(15, 18)], 3: [(30, 33)]}),
        ("| Lodz[1] | Lodz[2] |", {1: [(6, 9)], 2: [(16, 19)]}),
        # code
        ("x = a[1] + b[2]", {}),
        ("x=a[1][2]+b[3]", {}),
        ("a[1] += 2", {}),
        ("if b[2] <= a[1]: [3]", {3: [(17, 20)]}),
        ("Write `a[1]` or ``b ` [2]``. [3]", {3: [(29, 32)]}),
        ("As ` in [1], but `[2]`.", {2: [(18, 21)]}),
        ("So:\n```python\nprint(a[1])\n```\nSee [2].", {2: [(34, 37)]}),
        ("~~~\na [1]\n~~~\n[2]", {2: [(14, 17)]}),
        ("```\na [1]\nand so on [2]", {}),
        ("print(rows[3], b, a[1]), rows[1].name, A[1] = 2", {}),
        ("vitamin c[1]. H2O[2] = ice", {1: [(9, 12)], 2: [(17, 20)]}),
        ("max_tokens[1] limits, see Fig. b[2]", {1: [(10, 13)], 2: [(32, 35)]}),
        ("Curie's[1] 5 m[2] [3](http://a)", {1: [(7, 10)], 2: [(14, 17)], 3: [(18, 21)]}),
    ],
)
def test_numbers_that_an_answer_cites(answer: str, numbers: dict[int, list[tuple[int, int]]]) -> None:
    assert cited_numbers(answer, 3) == numbers
    assert cited_numbers(answer, 3, "Cite them, as in [1].") == numbers


def test_a_citation_that_is_copied_from_the_instruction_cites_nothing() -> None:
    assert [*cited_numbers("Cite their numbers, as in [1]. So [2].", 3, "Cite their numbers, as in [1].")] == [2]


@pytest.mark.parametrize("words", ["the ", "The. ", "the cat ", "the cat sat on the mat and it was blue. "])
def test_a_long_answer_that_repeats_itself_is_fast(words: str) -> None:
    [quote, *_], begin = quotes("no " * 2_000, "no " * 2_000), process_time()
    assert quote.answer == (0, 5_999)
    quotes(words * (90_000 // len(words)), f"It is {words}", "so the cat")
    assert process_time() - begin < 5


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
        if end - begin >= 3 or "7" in said[begin:end] != ["7"] or end - begin == len(said)
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
    assert all(answer[slice(*one)].strip() for one in copied_spans(answer, own))
    assert quotes(answer, passage, answer) == [], "words of the prompt itself are no quote"
    spans = [span for spans in cited_numbers(answer, 9).values() for span in spans]
    assert all(0 <= begin < end <= len(answer) for begin, end in spans)
