"""Marks of query terms in texts, for every analyser; the part of a text that is shown, against all parts."""

from typing import Final

import pytest
from hypothesis import given, strategies as st

from ralm.retrieval.analysis import LANGUAGES, Analyser, Mark, Marker, analysis_by_name, best_window, spans_of

NAMES: Final = ["english", "standard", "cjk", *LANGUAGES, "lucene", "lucene-cjk", "lucene-greek"]
ALPHABET: Final = (
    "aZs19_.,:;'\"- \n\u2019\u00e9\u0130\u0301\u200d\u3042\u4e00\u56fd\u30ab\uff76\uff9e\uac00\u0645\U0001f600"
    "\u00ad\u200b\ufb01\u00b2\u2122\u0e01\u0e33\u0e49\u1100\u1161"
)
TEXTS: Final = st.text(ALPHABET, max_size=25) | st.text(max_size=15)


@given(st.sampled_from(NAMES), TEXTS)
def test_every_term_of_a_text_is_marked_in_it(name: str, text: str) -> None:
    analysis = analysis_by_name(name)
    marker, terms = Marker(analysis), {*Analyser(analysis)(text)}
    marks = marker.marks(text, terms)
    assert {one.term for one in marks} == terms == marker.terms(text)
    assert all(0 <= one.begin < one.end <= len(text) for one in marks)
    assert marks == sorted(marks, key=lambda one: one.begin)


@pytest.mark.parametrize(
    ("name", "query", "text", "marked"),
    [
        ("english", "singing ship", "Ships sang; she SINGS, ship's song.", ["Ships", "SINGS", "ship's"]),
        ("standard", "ships", "Ships, ship, ships", ["Ships", "ships"]),
        ("german", "Haus", "Die Häuser am Haus", ["Häuser", "Haus"]),
        ("french", "avion", "l'avion, deux avions", ["l'avion", "avions"]),
        ("cjk", "東京", "東京都 京東 ABC東京", ["東京", "東京"]),
        ("cjk", "ガス", "ｶﾞｽ", ["ｶﾞｽ"]),
        ("english", "field konzept", "The \ufb01eld: kon\u00adzept.", ["\ufb01eld", "kon\u00adzept"]),
        ("english", "กินข้าว", "เขากำลังกินข้าวอยู่", ["กินข้าว"]),
        ("german", "Zürich km2", "in Zu\u0308rich, 92 km\u00b2.", ["Zu\u0308rich", "km\u00b2"]),
    ],
)
def test_forms_of_a_word_are_marked(name: str, query: str, text: str, marked: list[str]) -> None:
    marker = Marker(analysis_by_name(name))
    marks = marker.marks(text, marker.terms(query))
    assert [text[begin:end] for begin, end in spans_of(marks)] == marked


@given(st.lists(st.sampled_from(["a", "bb", "cat", "x", "yyyy", "sheep"]), min_size=1, max_size=40), st.data())
def test_the_best_part_of_a_text(words: list[str], data: st.DataObject) -> None:
    text, width = " ".join(words), data.draw(st.integers(12, 40))
    marks = Marker(analysis_by_name("standard")).marks(text, {"bb", "cat", "sheep"})
    begin, end = best_window(text, marks, width)

    def quality(begin: int, end: int) -> tuple[int, int]:
        inside: list[Mark] = [one for one in marks if begin <= one.begin and one.end <= end]
        return len({one.term for one in inside}), len(inside)

    assert end - begin <= width
    assert begin == 0 or text[begin - 1] == " "
    assert end == len(text) or text[end] == " "
    assert quality(begin, end)[0] == max(quality(at, at + width)[0] for at in range(len(text)))
    assert best_window("w" * 50, Marker(None).marks("w" * 50, {"w" * 50}), 20) == (0, 20)
