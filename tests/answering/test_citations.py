"""What an answer says about its passages: numbers that it cites, words that it quotes, and what each passage gave."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from ralm.answering.answerer import Answerer
from ralm.answering.citations import CREDITED, AnswerSource, citations, cited_numbers, copied_spans, quotes
from ralm.answering.metrics import dpr_tokens
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import open_prompt
from ralm.reading.mixture import UniformWeights
from ralm.reading.parts import Parts
from ralm.reading.provenance import TracedText
from ralm.reading.readers import Ensemble
from ralm.reading.sources import FromRetriever
from ralm.records import NO_PASSAGE, ORIGIN, Metadata, Passage, Provenance
from ralm.serving.answers import annotations, name_of, sources_text, web_address
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer

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


PASSAGES = {number: Passage(number, f"d{number}", f"Title {number}", f"Text {number}.") for number in range(4)}
Row = tuple[Sequence[int], Sequence[float]]


def traced(
    texts: Sequence[str], gains: Sequence[float], rows: Sequence[Row] | None = None, before: str = ""
) -> TracedText:
    """An answer whose tokens have these gains; without `rows` it was read with passage 0."""
    rows = [((0,), (1.0,))] * len(texts) if rows is None else rows
    read = [(np.array(one, dtype=np.int64), np.array(other, dtype=np.float32)) for one, other in rows]
    return TracedText(
        before=before,
        texts=texts,
        log_probs_T=np.full(len(texts), -1, dtype=np.float32),
        baseline_T=-1 - np.array(gains, dtype=np.float32),
        provenance=Provenance.of_rows(read),
        passages=PASSAGES,
    )


def cited(text: TracedText) -> dict[int, list[str]]:
    """The words that each passage is cited for."""
    whole = text.before + "".join(text.texts)
    return {number: [whole[begin:end] for begin, end in spans] for number, spans in citations(text).items()}


def test_a_passage_is_cited_for_the_words_that_it_gave() -> None:
    texts = ["I", " think", " Par", "is", ",", " so", " it", " is"]
    assert cited(traced(texts, [0, 0.05, 4, 0, 0, -0.5, 0.2, 0])) == {0: ["Paris"]}
    assert cited(traced(texts, [2, 0, 4, 0, 0, -0.5, 0.2, 0])) == {0: ["I think Paris"]}
    assert cited(traced(texts, [4, -9, 5, 0, 0, -5, 4, 4])) == {0: ["I", "Paris", "it is"]}


def test_a_gain_whose_interval_includes_zero_credits_nobody() -> None:
    assert cited(traced(["a", " b"], [CREDITED - 0.01, 0])) == {}
    assert cited(traced(["a", " b"], [CREDITED + 0.01, 0])) == {0: ["a"]}
    assert cited(traced(["a", " b"], [6, -3.5])) == {}  # on balance
    assert cited(traced(["a"] * 30, [0.09] * 30)) == {}  # nowhere more than elsewhere
    assert cited(traced(["a"], [-3])) == {}
    assert cited(traced([], [])) == {}
    assert cited(traced(["a"], [math.nan])) == {}, "a model that tells no log-probabilities"
    assert cited(traced(["a", " \n"], [0, 5])) == {}, "white space"
    assert cited(traced(["a", " \n b\n"], [0, 5])) == {0: ["b"]}


def test_a_passage_that_gives_nothing_alone_is_not_credited() -> None:
    rows: list[Row] = [((1, 2), (0.5, 0.5))] * 2
    text = traced(["one", " two"], [8, 8], rows)
    assert [*citations(text, alone={1: 9.0, 2: CREDITED - 0.1})] == [1]
    assert [*citations(text, alone={1: 9.0, 2: CREDITED + 0.1})] == [1], "no token is left"


def test_words_of_the_prompt_itself_credit_nobody() -> None:
    texts = ["Use", " this", " text", ":", " Paris"]
    assert citations(traced(texts, [9, 9, 9, 0, 2]), prompt="Use this text now.") == {}
    assert citations(traced(texts, [9, 9, 9, 0, 4]), prompt="Use this text now.") == {0: [(15, 20)]}
    assert citations(traced(["Yes", " [", "1", "]"], [1, 3, 3, 3])) == {}, "nor does a number that cites"


def test_each_token_goes_to_the_passage_that_gave_it_most() -> None:
    both = (1, 2)
    rows: list[Row] = [(both, (0.9, 0.1)), (both, (0.2, 0.8)), (both, (0.5, 0.5)), ((3,), (1.0,))]
    words = cited(traced(["one", " two", " none", " three"], [5, 4, -1, 4], rows))
    assert words == {1: ["one"], 2: ["two"], 3: ["three"]}
    assert [*citations(traced(["one", " two"], [3, 5], rows[:2]))] == [2, 1], "the largest gain first"


def test_a_word_is_cited_whole_for_the_passage_that_gave_most_of_it() -> None:
    rows: list[Row] = [((1,), (1.0,)), ((NO_PASSAGE,), (1.0,)), ((2,), (1.0,))]
    assert cited(traced(["in", "ter", "net"], [4, 0, 5], rows)) == {2: ["internet"]}
    for word in (["set", "_log_", "scale"], ["np", ".", "log2"], [" goose", "berry-", "fool"]):
        assert cited(traced(word, [5, 0, 4], rows)) == {1: ["".join(word).strip()]}
    assert cited(traced([" net"], [4], rows[:1], before="in ter")) == {1: ["net"]}
    assert cited(traced(["net"], [4], rows[:1], before="inter")) == {1: ["net"]}  # what is before is not the answer
    assert cited(traced(["\u6211", "\u662f", "\u4e2d", "\u56fd"], [0, 0, 4, 0])) == {0: ["\u4e2d"]}, "no spaces"
    hindi = ["\u0939\u093f", "\u0928\u094d\u0926\u0940"]
    assert cited(traced(hindi, [4, 0])) == {0: ["".join(hindi)]}


def test_an_answer_cites_the_passage_that_its_words_come_from() -> None:
    passages = [Passage(0, "a", "", "where " + "paris " * 12), Passage(1, "b", "", "where else is it")]
    model = CountingModel(WordTokenizer(), vocabulary=30, max_length=100)
    source = FromRetriever(SharedWordsRetriever(passages), passages)
    parts = Parts(reader=Ensemble(documents=2), mixer=UniformWeights())
    options = AnswerOptions(new_tokens=4, stop=())
    [answer] = Answerer(model, open_prompt("replug"), source, parts=parts, options=options).answers(["where is it"])
    [(number, [span])] = citations(answer.text).items()
    assert answer.answer.text.split() == ["paris"] * 4
    assert (number, answer.answer.text[slice(*span)]) == (0, "paris paris paris paris")
    gains = {row.passage: row.gain for row in answer.text.contributions}
    assert [one.gain for one in answer.sources] == [pytest.approx(0, abs=1), pytest.approx(gains[0])]


READ: list[Row] = [((0,), (1.0,)), ((0, 1), (0.5, 0.5)), ((2, 0, 1), (0.7, 0.2, 0.1)), ((1, 2), (0.0, 1.0))]
READ += [((NO_PASSAGE,), (1.0,))]


@st.composite
def answers(draw: st.DrawFn) -> TracedText:
    texts = draw(st.lists(st.sampled_from(["a", " b", "c ", "", "\n", " \u4e2d", "d.", "  "]), max_size=20))
    gains = [draw(st.floats(-6, 6, width=32)) for _ in texts]
    rows = [draw(st.sampled_from(READ)) for _ in texts]
    return traced(texts, gains, rows, draw(st.sampled_from(["", "before", "x "])))


@given(answers())
def test_what_holds_of_any_answer(text: TracedText) -> None:
    found = citations(text)
    whole = text.before + "".join(text.texts)
    gains = {row.passage: row.gain for row in text.contributions}
    spans = sorted(span for runs in found.values() for span in runs)
    assert all(len(text.before) <= begin < end <= len(whole) for begin, end in spans)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
    assert all(whole[begin:end] == whole[begin:end].strip() for begin, end in spans)
    assert [gains[number] for number in found] == sorted((gains[number] for number in found), reverse=True)
    for number, runs in found.items():
        assert gains[number] > CREDITED
        assert runs
        assert [*runs] == sorted(runs)


@given(answers())
def test_more_gain_of_the_only_passage_is_cited_no_less(text: TracedText) -> None:
    alone = traced(text.texts, text.gain_T.tolist(), before=text.before)
    more = traced(text.texts, [max(gain, 4) for gain in text.gain_T.tolist()], before=text.before)

    characters, all_characters = (
        {place for runs in citations(one).values() for span in runs for place in range(*span)} for one in (alone, more)
    )
    assert characters <= all_characters


@pytest.mark.parametrize(
    ("metadata", "address"),
    [
        ({}, None),
        ({"url": "https://a.example/b", "source": "http://c"}, "https://a.example/b"),
        ({"url": "b.html", "source": "HTTP://c.example"}, "HTTP://c.example"),
        ({"url": "javascript:alert(1)"}, None),
        ({"url": "https://a.example/\n[2] b: https://b.example"}, None),
        ({"url": 7, "source": "/etc/passwd"}, None),
        ({"url": "https://a.example/b.pdf", "page": 3}, "https://a.example/b.pdf#page=3"),
        ({"url": "https://a.example/b#c", "page": 3}, "https://a.example/b#c"),
    ],
)
def test_the_address_of_a_passage_in_the_web(metadata: Metadata, address: str | None) -> None:
    assert web_address(Passage(0, "d", "T", "x", metadata=metadata)) == address


def test_sources_as_text() -> None:
    first, second = Passage(0, "d0", "A \n title", "x"), Passage(1, "d1", "", "y is the letter")
    found = [AnswerSource(passage=second, gain=3.2, spans=[(1, 2)])]
    found += [AnswerSource(passage=first, gain=4, spans=[(0, 1)])]
    assert sources_text(found, str) == f"\n\nSources:\n[1] A title: {first}\n[2] d1: {second}"
    assert sources_text([AnswerSource(passage=first)], str) == ""
    assert web_address(replace(first, document_id="http://d", metadata={"page": 3})) == "http://d#page=3"


def test_sources_that_the_text_alone_tells() -> None:
    texts = {"A": "Nothing.", "B": "The sea is deep and blue.", "C": "x"}
    passages = [Passage(number, name, name, text) for number, (name, text) in enumerate(texts.items())]
    passages[2] = replace(passages[2], metadata={"page": 2, ORIGIN: "c.jsonl:7"})
    answer = "It says: the sea is deep and blue. See [3] and [9]."
    found = AnswerSource.of_text(answer, passages, "Cite passages as in [1].", numbered=True)
    assert [one.known for one in found] == ["retrieved", "quoted", "cited"]
    words = [[answer[slice(*span)] for span in one.answer_spans] for one in found]
    assert words == [[], ["the sea is deep and blue"], ["[3]"]]
    text = sources_text(found, lambda one: one.title)
    assert text == '\n\nSources:\n[2] B: B "The sea is deep and blue"\n[3] C, page 2: C'
    noted: Any = [one["url_citation"] for one in annotations(found, lambda one: one.title)]  # type: ignore[call-overload,index]
    assert [(answer[one["start_index"] : one["end_index"]], one["url"]) for one in noted] == [
        ("the sea is deep and blue", "B"),
        ("[3]", "C"),
    ]
    told = [(one["document_id"], one["place"], one["page"], one["quotes"]) for one in noted]
    assert told == [("B", "B", None, ["The sea is deep and blue"]), ("C", "C, c.jsonl:7", 2, [])]
    assert {one.as_json()["share"] for one in found} == {None}
    unnumbered = AnswerSource.of_text(answer, passages, "", numbered=False)
    assert [one.known for one in unnumbered] == ["retrieved", "quoted", "retrieved"]
    assert name_of(Passage(0, "d", "a\x1b[2J\u202e", "x")) == "a\\x1b[2J\\u202e"
