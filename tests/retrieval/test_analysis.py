"""Analysis: Lucene's own answers, and examples worked out by hand; where the words of a query are in a text."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Final
from unicodedata import normalize

import pytest
import Stemmer
from hypothesis import given, settings, strategies as st

from ralm.errors import RalmWarning
from ralm.retrieval import analysis
from ralm.retrieval.analysis import (
    ENGLISH,
    LANGUAGES,
    Analyser,
    Mark,
    Marker,
    analysers,
    analysis_as_recorded,
    analysis_by_name,
    best_window,
    spans_of,
)
from ralm.retrieval.analysis.analysers import lower_case, words
from ralm.retrieval.build import build_index
from ralm.retrieval.index import open_index
from tests.fakes import passages_of
from tests.shared_data import shared


def test_lucenes_terms_of_every_golden_text() -> None:
    analyse = Analyser(analysis_by_name("lucene"))
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
        ("A\u266d \u2605", ["A", "\u266d", "\u2605"]),
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
    """Runs with many terms are not remembered: sentences without spaces would fill the cache and never come again."""
    texts = ["running runs", "ran running", "runs. (runs) runs 一二三四五"] * 3
    expected = [Analyser(ENGLISH)(text) for text in texts]
    monkeypatch.setattr(analysis, "_CACHED_RUNS", 2)
    monkeypatch.setattr(analysis, "_MAX_CACHED_TERMS", 3)
    forgetful = Analyser(ENGLISH)
    assert [forgetful(text) for text in texts] == expected
    assert "一二三四五" not in forgetful._cache


@settings(max_examples=500)
@given(st.text(alphabet=[chr(i) for i in range(128)], max_size=20) | st.text(alphabet="aB12_.,:;' ", max_size=20))
def test_the_fast_path_for_ascii_agrees_with_the_whole(text: str) -> None:
    assert words(text) == analysers._unicode_words().findall(text)


# ruff: noqa: RUF001


DATA = Path(__file__).parent / "data"
SNOWBALL_3 = int(version("PyStemmer").split(".")[0]) >= 3


def terms(name: str, text: str) -> list[str]:
    return Analyser(analysis_by_name(name))(text)


def test_lucenes_terms() -> None:
    rows = [json.loads(line) for line in (DATA / "lucene_terms.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 570
    analysers = {name: Analyser(analysis_by_name(f"lucene-{name}")) for name in {row["analyser"] for row in rows}}
    assert len(analysers) == 29
    assert [row for row in rows if analysers[row["analyser"]](row["text"]) != row["tokens"]] == []


def test_the_stems_of_snowballs_vocabularies() -> None:
    rows = [line.split("\t") for line in (DATA / "snowball_words.tsv").read_text("utf-8").splitlines()]
    analysers = {name: Analyser(analysis_by_name(name)) for name in {row[0] for row in rows}}
    assert {"german", "french", "spanish", "russian", "arabic", "hindi"} <= set(analysers)
    wrong = [row for row in rows if analysers[row[0]](row[1]) != [row[-1] if SNOWBALL_3 else row[2]]]
    assert len(rows) > 2000
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("一二三四五六七八九十", ["一二", "二三", "三四", "四五", "五六", "六七", "七八", "八九", "九十"]),
        ("あいうえおabんcかきくけ こ", ["あい", "いう", "うえ", "えお", "ab", "ん", "c", "かき", "きく", "くけ", "こ"]),
        ("一 رُوبرت موير", ["一", "رُوبرت", "موير"]),
        ("𩬅艱鍟䇹愯瀛", ["𩬅艱", "艱鍟", "鍟䇹", "䇹愯", "愯瀛"]),
        ("Ｔｅｓｔ １２３４", ["test", "1234"]),
        ("ｶﾀｶﾅ", ["カタ", "タカ", "カナ"]),
        ("ｳﾞｨｯﾂ ﾊﾟﾅｿﾆｯｸ", ["ヴィ", "ィッ", "ッツ", "パナ", "ナソ", "ソニ", "ニッ", "ック"]),
        ("the 猫 is at www", ["猫"]),
        ("한국어 말", ["한국", "국어", "말"]),
        ("中、文。中!文", ["中", "文", "中", "文"]),
        ("か\u3099き", ["か\u3099", "\u3099き"]),
    ],
)
def test_cjk(text: str, expected: list[str]) -> None:
    """The inputs and outputs of TestCJKAnalyzer.java in apache/lucene; then widths, stop words and neighbours."""
    assert terms("lucene-cjk", text) == expected


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("polish", ["książka", "książki"]),
        ("german", ["Häuser", "Hauses", "ha\u0308user", "HÄUSER"]),
        ("french", ["avion", "l'avion", "L\u2019AVIONS", "d'avion,"]),
        ("italian", ["amico", "l'amici", "Dell\u2019amico"]),
        ("catalan", ["absoluta", "l'absolutes"]),
        ("irish", ["athair", "nAthair", "d'athair"]),
        ("turkish", ["Ankara", "Ankara'da", "ANKARA\u2019YA"]),
        ("turkish", ["kitap", "kitaplar", "KİTAP", "KI\u0307TAPLAR"]),
        ("turkish", ["ışık", "IŞIK"]),
        ("romanian", ["oraşul", "orașul", "ORAȘUL"]),
        ("russian", ["книга", "книги", "КНИГУ"]),
        ("spanish", ["canción", "canciones", "cancio\u0301n"]),
        ("arabic", ["مكتبة", "المكتبة", "مَكتَبة"]),
        ("hindi", ["लड़का", "लड़के", "लड़कों"]),
        ("greek", ["ιστός", "ιστός,"]),
    ],
)
def test_forms_of_a_word_are_one_term(name: str, texts: list[str]) -> None:
    assert len({tuple(terms(name, text)) for text in texts}) == 1
    assert len(terms(name, texts[0])) == 1


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("The \ufb01eld, e\ufb03cient, o\ufb04ine \ufb00", "field efficient offline ff"),
        ("\uff26\uff55\uff4c\uff4c \uff11\uff12\uff13 \U0001d400\U0001d401\U0001d402 \u210b", "full 123 abc h"),
        ("Henry \u2167 \u2460First 5\u338f UNIX\u2122 \u2116\u202f7", "henry VIII first kg unix no 7"),
        ("H\u2082O 3\u202fkm\u00b2 10\u2076 footnote\u00b9 2\u00bd", "h2o km km2 10 footnote 2"),
        ("\ufefa \ufee1\ufea4\ufee4\ufeaa", "\u0644\u0625 \u0645\u062d\u0645\u062f"),
        ("Zu\u0308rich caf\u00e9 \u1112\u1161\u11ab\u1100\u116e\u11a8", "z\u00fcrich cafe\u0301 \ud55c\uad6d"),
        ("Ge\u00adsamt\u00adkon\u00adzept \u845b\U000e0100\u57ce", "gesamtkonzept \u845b\u57ce"),
        ("Goo\u200bgle wo\u2060rd pa\u200css \ufeffstart end\u200e", "google word pass start end"),
        ("don\u2019t O\u02bcNeill", "don't o'neill"),
        ("เขากำลังกินข้าว", "กินข้าว"),
        ("ใช้Python3ในปี 2567", "python3 ในปี 2567"),
        ("ລາວເວົ້າພາສາ", "ພາສາ"),
        ("ខ្ញុំស្រឡាញ់ភាសាខ្មែរ ខ្មែរ\u200bភាសា", "ភាសាខ្មែរ ភាសា"),
        ("မြန်မာစကား", "စကား"),
        ("བོད་ཡིག༌མཛེས", "ཡིག"),
    ],
)
@pytest.mark.parametrize("name", ["english", "cjk"])
def test_what_people_type_finds_what_a_text_has(name: str, text: str, query: str) -> None:
    assert {*terms(name, query)} <= {*terms(name, text)}
    marker = Marker(analysis_by_name(name))
    assert {mark.term for mark in marker.marks(text, marker.terms(query))} == {*terms(name, query)}


def test_every_language_of_the_library_has_a_name() -> None:
    for language in set(Stemmer.algorithms()) - {"porter", "dutch_porter"}:
        for name in (language, f"lucene-{language}"):
            analysis = analysis_by_name(name)
            assert analysis_as_recorded(analysis.recorded) is analysis
        assert all(isinstance(term, str) and term for term in Analyser(analysis)("Don't stop 1st, a b c d'x l'x 2.5"))


def test_lower_case_is_that_of_each_character() -> None:
    characters = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x110000))]
    found = lower_case("".join(f"A{character} " for character in characters))
    assert found == "".join(f"a{character.lower()[0]} " for character in characters)


SCRIPTS = (
    "aZ9 _.,'\u2019-lL\u0301\u0308\u0307"
    "Iİıßßé한국가カﾊﾟｳﾞー々一二三〇あいか\u3099\u200d،كتابكِदिनѝйЙΣς\u0e01𠀀\ufeff\u3000"
)


@settings(max_examples=300)
@given(
    st.sampled_from(["cjk", "standard", "french", "irish", "turkish", "lucene-cjk", "lucene-arabic"]),
    st.text(SCRIPTS, max_size=25),
)
def test_any_text_has_the_terms_of_its_runs(name: str, text: str) -> None:
    """No term goes beyond white space: a text analysed as a whole has the same."""
    analysis = analysis_by_name(name)
    expected = list(analysis.prepare()(text))
    assert Analyser(analysis)(text) == expected
    assert all(expected)
    assert not any(character.isspace() for term in expected for character in term)


@settings(max_examples=200)
@given(
    st.sampled_from(["english", "standard", "cjk", "german", "russian", "lucene-hindi"]), st.text(SCRIPTS, max_size=25)
)
def test_decomposed_characters_are_those_that_they_make(name: str, text: str) -> None:
    assert terms(name, normalize("NFD", text)) == terms(name, normalize("NFC", text))


@pytest.mark.parametrize(
    ("name", "texts", "query", "expected"),
    [
        (
            "german",
            ["Der Hund lief über die Wiese", "Viele Häuser stehen am Fluss", "Die Katze schläft"],
            "Hauses",
            [1],
        ),
        ("cjk", ["私は東京都に住んでいます", "京都は古い町です", "犬が走る"], "東京", [0]),
    ],
)
def test_retrieval_finds_other_forms(
    tmp_path: Path, name: str, texts: list[str], query: str, expected: list[int]
) -> None:
    build_index(passages_of(*texts), tmp_path / "index", analyser=name)
    opened = open_index(tmp_path / "index")
    assert [number for number, _ in opened.bm25.retrieve([query], 3).of(0)] == expected
    assert opened.bm25.config["analysis"] == analysis_by_name(name).recorded


def test_another_stemming_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = build_index(passages_of("Viele Häuser"), tmp_path / "index", analyser="german")
    library = f"PyStemmer {version('PyStemmer')}"
    assert manifest.settings["bm25"] == {"analysis": "plain-german", "stemmer": library, "k1": 0.9, "b": 0.4}
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1.3.0")
    with pytest.warns(RalmWarning, match=f"built with {library}, and PyStemmer 1.3.0 is installed"):
        bm25 = open_index(tmp_path / "index").bm25
    assert bm25.retrieve(["Haus"], 1).of(0)
    assert str(bm25.config["fingerprint"]).endswith(" searched with PyStemmer 1.3.0"), "its runs are others"


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
