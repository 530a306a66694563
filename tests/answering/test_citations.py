"""Which passages an answer cites, and for which words: the rule by hand, and what holds of any answer."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.answering.answerer import Answerer
from ralm.answering.citations import CREDITED, AnswerSource, citations
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
