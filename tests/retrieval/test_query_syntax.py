"""Queries with phrases, titles, prefixes and typing errors, against plain loops over all passages and all terms."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import ralm
from ralm.errors import UsageError
from ralm.records import Passage
from ralm.retrieval.analysis import analysis_by_name
from ralm.retrieval.bm25.dictionary import terms_beginning_with, terms_near
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.query_syntax import QuerySearch
from tests.retrieval.searching import arrays_of

WORDS: Final = "sea seas seal season ship shape sheep hill hills harbour harbours lighthouse night 1810 é éa".split()
TYPOS: Final = "se sae hil shp lihgthouse lighhoue lighthouses harbuor zzzzzz nighty x é".split()


def edits(one: str, other: str) -> int:
    """The edits between two words, by trying all."""

    @cache
    def between(a: int, b: int) -> int:
        if not a or not b:
            return a + b
        found = [between(a - 1, b) + 1, between(a, b - 1) + 1, between(a - 1, b - 1) + (one[a - 1] != other[b - 1])]
        if a > 1 and b > 1 and one[a - 2 : a] == other[b - 1] + other[b - 2]:
            found.append(between(a - 2, b - 2) + 1)
        return min(found)

    return between(len(one), len(other))


@settings(max_examples=60)
@given(
    st.lists(st.sets(st.text("abc\u00e9", min_size=1, max_size=6), max_size=12), min_size=1, max_size=2),
    st.text("abc\u00e9", min_size=1, max_size=6),
    st.integers(0, 2),
)
def test_terms_that_are_near_or_begin_the_same(
    tmp_path_factory: pytest.TempPathFactory, vocabularies: list[set[str]], word: str, most: int
) -> None:
    folder = tmp_path_factory.mktemp("terms")
    standard = analysis_by_name("standard")
    segments = [
        arrays_of(folder / str(place), [" ".join(sorted(terms))], analysis=standard)
        for place, terms in enumerate(vocabularies)
    ]
    every = sorted(set().union(*vocabularies))
    expected = {term: edits(word, term) for term in every if edits(word, term) <= most}
    assert terms_near(segments, word, most) == expected
    for length in range(len(word) + 1):
        assert terms_beginning_with(segments, word[:length]) == [one for one in every if one.startswith(word[:length])]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> ralm.Index:
    """An index of several segments, from which documents were removed."""
    draw = np.random.default_rng(5)

    def passages(first: int, count: int) -> list[Passage]:
        titles, texts = draw.choice(WORDS, (count, 2)), draw.choice(WORDS, (count, 6))
        return [
            Passage(number, f"d{first + number}", " ".join(titles[number]), " ".join(texts[number]))
            for number in range(count)
        ]

    folder = tmp_path_factory.mktemp("syntax") / "index"
    ralm.build_index([*passages(0, 60), Passage(60, "gone", "", "zzzzzz lighthousen")], folder, analyser="standard")
    ralm.update_index(folder, passages(100, 5), remove=["gone", "d3", "d40"])
    return ralm.open_index(folder)


PARTS: Final = st.one_of(
    st.tuples(st.just("word"), st.sampled_from(WORDS + TYPOS)),
    st.tuples(st.just("prefix"), st.sampled_from(["s", "se", "sea", "h", "li", "zz", "é"])),
    st.tuples(st.just("phrase"), st.lists(st.sampled_from(WORDS + TYPOS[:2]), min_size=1, max_size=3).map(" ".join)),
    st.tuples(st.just("title"), st.sampled_from(WORDS + TYPOS)),
)
FORMS: Final = {"word": "{}", "prefix": "{}*", "phrase": '"{}"', "title": "title:{}"}


@settings(max_examples=150)
@given(
    parts=st.lists(PARTS, min_size=1, max_size=4),
    fuzzy=st.booleans(),
    k=st.sampled_from([1, 3, 100]),
    some=st.booleans(),
)
@example(parts=[("phrase", "sea"), ("phrase", "hill")], fuzzy=False, k=100, some=False)
def test_hits_as_by_loops_over_all_passages(
    index: ralm.Index, parts: list[tuple[str, str]], fuzzy: bool, k: int, some: bool
) -> None:
    passages = [*index.passages]
    bm25 = index.bm25.without(range(0, len(passages), 2)) if some else index.bm25
    known = {word for passage in passages for word in passage.contents.split()}

    def terms_for(word: str) -> list[str]:
        most = 2 if len(word) >= 8 else 1 if len(word) >= 3 else 0
        near = {one: edits(word, one) for one in known if edits(word, one) <= most}
        if word in known or not fuzzy or not most or not near:
            return [word]
        return sorted(one for one, count in near.items() if count == min(near.values()))

    def follow(terms: Sequence[str], phrase: Sequence[Sequence[str]]) -> bool:
        return any(
            all(term in slot for term, slot in zip(terms[at:], phrase, strict=False))
            for at in range(len(terms) - len(phrase) + 1)
        )

    terms: list[str] = []
    kept = passages
    for kind, text in parts:
        slots = [terms_for(word) for word in text.split()]
        if kind == "prefix":
            slots = [sorted({one for one in known if one.startswith(text)})]
        terms += [term for slot in slots for term in slot]
        if kind in ("phrase", "title"):
            kept = [one for one in kept if follow((one.title if kind == "title" else one.contents).split(), slots)]
    numbers = {one.number for one in kept}
    expected = [hit for hit in bm25.retrieve_words([terms], len(passages)).of(0) if hit[0] in numbers][:k]

    search = QuerySearch(bm25, index.passages, fuzzy=fuzzy)
    query = " ".join(FORMS[kind].format(text) for kind, text in parts)
    assert search.retrieve([query], k).of(0) == expected
    assert sorted(search.parse(query).terms) == sorted(terms)


def test_words_are_analysed_as_in_the_index(tmp_path: Path) -> None:
    texts = ["The ships of the sea sail.", "A ship sails to the sea.", "Happiness at sea", "Happy running"]
    ralm.build_index([Passage(n, f"d{n}", "", text) for n, text in enumerate(texts)], tmp_path / "i")
    index = ralm.open_index(tmp_path / "i")

    def found(query: str, **options: Any) -> set[int]:
        hits = QuerySearch(index.bm25, index.passages, **options).retrieve([query], 9).of(0)
        return {number for number, _ in hits}

    assert found('"ship of the SEA"') == {0}
    assert found('"ships sailing"') == {1}
    assert found("Happy*") == found("happi*") == {2, 3}
    assert found("running*") == {3}
    assert found('"ships sailing"', syntax=False) == {0, 1}
    assert found("sae", syntax=False, fuzzy=True) == {0, 1, 2}


def test_what_replaced_a_word_is_reported(index: ralm.Index) -> None:
    reports: list[tuple[str, tuple[str, ...]]] = []
    search = QuerySearch(index.bm25, index.passages, fuzzy=True, report=lambda *what: reports.append(what))
    search.retrieve(["hil zzzzzz"], 3)
    search.parse("hil zzzzzz")
    assert reports == [("hil", ("hill",)), ("zzzzzz", ())]


@pytest.mark.parametrize(
    ("query", "how"),
    [
        ('sea "hill', "the quote before 'hill' has no end"),
        ("sea title: hill", "nothing follows `title:`"),
        ('title:""', "nothing follows `title:`"),
        ('""', '"" has no word that is indexed'),
        ("title:...", "title:... has no word that is indexed"),
        ("s*a", "s*a must be letters or digits with one `*` at the end"),
        ("*", "* must be letters or digits"),
        ("a-b*", "a-b* must be letters or digits"),
    ],
)
def test_wrong_syntax(index: ralm.Index, query: str, how: str) -> None:
    with pytest.raises(UsageError, match="cannot be read") as raised:
        QuerySearch(index.bm25, index.passages).parse(query)
    assert how in str(raised.value)
    QuerySearch(index.bm25, index.passages, syntax=False).parse(query)


def test_too_many_words_begin_the_same(index: ralm.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ralm.retrieval.query_syntax._MAX_TERMS", 2)
    with pytest.raises(UsageError, match=r"4 terms begin as sea\*, and 2 at most are searched"):
        QuerySearch(index.bm25, index.passages).parse("sea*")


def test_a_hit_has_a_term_of_the_query(index: ralm.Index) -> None:
    assert isinstance(index.bm25, BM25)
    assert index.bm25.passages_with(["sea", "unknown"]).tolist() == [
        one.number for one in index.passages if "sea" in one.contents.split()
    ]
