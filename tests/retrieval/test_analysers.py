"""Analysers of other languages: Lucene's own answers, Snowball's vocabularies, and retrieval with them."""

# ruff: noqa: RUF001

import json
import multiprocessing
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from unicodedata import normalize

import pytest
import Stemmer
from hypothesis import given, settings, strategies as st

from ralm.errors import OtherAnalyserError, UsageError
from ralm.records import Passage
from ralm.retrieval import analysis
from ralm.retrieval.analysis import Analyser, analysis_as_recorded, analysis_by_name, snowball
from ralm.retrieval.analysis.lucene import lower_case
from ralm.retrieval.bm25 import build
from ralm.retrieval.bm25.build import BM25Builder
from ralm.retrieval.bm25.formula import BuildOptions
from ralm.retrieval.build import build_index
from ralm.retrieval.index import open_index
from ralm.storage.manifest import manifest_checksum
from ralm.storage.outputs import MANIFEST

DATA = Path(__file__).parent / "data"
SNOWBALL_3 = int(version("PyStemmer").split(".")[0]) >= 3


def terms(name: str, text: str) -> list[str]:
    return Analyser(analysis_by_name(name))(text)


def test_lucenes_terms() -> None:
    rows = [json.loads(line) for line in (DATA / "lucene_terms.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 570
    analysers = {name: Analyser(analysis_by_name(name)) for name in {row["analyser"] for row in rows}}
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
        ("一 二三四 五六七八九 十", ["一", "二三", "三四", "五六", "六七", "七八", "八九", "十"]),
        ("abc defgh ijklmn opqrstu vwxy z", ["abc", "defgh", "ijklmn", "opqrstu", "vwxy", "z"]),
        ("あい   ", ["あい"]),
        ("あいtest", ["あい", "test"]),
        ("testあい    ", ["test", "あい"]),
        ("あいうえおabcかきくけこ", ["あい", "いう", "うえ", "えお", "abc", "かき", "きく", "くけ", "けこ"]),
        ("あいうえおabんcかきくけ こ", ["あい", "いう", "うえ", "えお", "ab", "ん", "c", "かき", "きく", "くけ", "こ"]),
        ("一 روبرت موير", ["一", "روبرت", "موير"]),
        ("一 رُوبرت موير", ["一", "رُوبرت", "موير"]),
        ("𩬅艱鍟䇹愯瀛", ["𩬅艱", "艱鍟", "鍟䇹", "䇹愯", "愯瀛"]),
        ("一丁丂", ["一丁", "丁丂"]),
        ("一", ["一"]),
        ("", []),
    ],
)
def test_lucenes_own_tests_of_cjk(text: str, expected: list[str]) -> None:
    """The inputs and outputs of TestCJKAnalyzer.java in apache/lucene."""
    assert terms("cjk", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ｔｅｓｔ １２３４", ["test", "1234"]),
        ("ｶﾀｶﾅ", ["カタ", "タカ", "カナ"]),
        ("ｳﾞｨｯﾂ ﾊﾟﾅｿﾆｯｸ", ["ヴィ", "ィッ", "ッツ", "パナ", "ナソ", "ソニ", "ニッ", "ック"]),
        ("the 猫 is at www", ["猫"]),
        ("한국어 말", ["한국", "국어", "말"]),
        ("中、文。中!文", ["中", "文", "中", "文"]),
        ("か\u3099き", ["か\u3099", "\u3099き"]),
    ],
)
def test_widths_stop_words_and_neighbours(text: str, expected: list[str]) -> None:
    assert terms("cjk", text) == expected


@pytest.mark.parametrize(
    ("name", "texts"),
    [
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
    ],
)
def test_forms_of_a_word_are_one_term(name: str, texts: list[str]) -> None:
    assert len({tuple(terms(name, text)) for text in texts}) == 1
    assert len(terms(name, texts[0])) == 1


def test_a_word_that_is_stemmed_to_nothing_stays() -> None:
    assert Stemmer.Stemmer("greek", 0).stemWord("ιστός") == ""
    assert terms("greek", "ιστός") == ["ιστός"]


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("polish", ["książka", "książki"]),
        ("czech", ["kniha", "knihy"]),
        ("persian", ["کتاب", "کتابها"]),
        ("estonian", ["raamat", "raamatud"]),
        ("esperanto", ["libro", "libroj"]),
        ("sesotho", ["motho"]),
    ],
)
def test_languages_of_newer_stemming_libraries(name: str, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if name in Stemmer.algorithms():
        assert len({tuple(terms(name, text)) for text in texts}) == 1
    monkeypatch.setattr(Stemmer, "algorithms", lambda: ["german"])
    with pytest.raises(UsageError, match=f"'{name}' needs a newer stemming library than PyStemmer"):
        terms(name, "x")


def test_every_language_of_the_library_has_a_name() -> None:
    for language in set(Stemmer.algorithms()) - {"porter", "dutch_porter"}:
        analysis = analysis_by_name(language)
        assert analysis_as_recorded(analysis.recorded) is analysis
        assert all(isinstance(term, str) and term for term in Analyser(analysis)("Don't stop 1st, a b c d'x l'x 2.5"))


def test_lower_case_is_that_of_each_character() -> None:
    for code in (*range(0xD800), *range(0xE000, 0x110000)):
        character = chr(code)
        assert lower_case(f"A{character}") == f"a{character.lower()[0]}"


SCRIPTS = (
    "aZ9 _.,'\u2019-lL\u0301\u0308\u0307"
    "Iİıßßé한국가カﾊﾟｳﾞー々一二三〇あいか\u3099\u200d،كتابكِदिनѝйЙΣς\u0e01𠀀\ufeff\u3000"
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["cjk", "standard", "french", "irish", "turkish", "greek", "arabic"]), st.text(SCRIPTS, max_size=25)
)
def test_any_text_has_the_terms_of_its_runs(name: str, text: str) -> None:
    """No term goes beyond white space: a text analysed as a whole has the same."""
    analysis = analysis_by_name(name)
    expected = list(analysis.prepare()(text))
    assert Analyser(analysis)(text) == expected
    assert all(expected)
    assert not any(character.isspace() for term in expected for character in term)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["french", "german", "russian", "hindi"]), st.text(SCRIPTS, max_size=25))
def test_decomposed_characters_are_those_that_they_make(name: str, text: str) -> None:
    assert terms(name, normalize("NFD", text)) == terms(name, normalize("NFC", text))


def test_long_runs_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences without white space would fill the caches and never come again."""
    monkeypatch.setattr(analysis, "MAX_CACHED_TERMS", 3)
    analyse = Analyser(analysis_by_name("cjk"))
    assert [len(analyse(text)) for text in ("一二三四", "一二三四五", "一二三四五")] == [3, 4, 4]
    assert list(analyse._cache) == ["一二三四"]


GERMAN = ["Der Hund lief über die Wiese", "Viele Häuser stehen am Fluss", "Die Katze schläft auf dem Dach"]


def german_passages() -> list[Passage]:
    return [Passage(number, f"d{number}", "", text) for number, text in enumerate(GERMAN)]


@pytest.mark.parametrize(
    ("name", "texts", "query", "expected"),
    [
        ("german", GERMAN, "Hauses", [1]),
        ("russian", ["Собака бежала по лугу", "Старые книги лежат на столе", "Река течёт"], "книгой", [1]),
        ("arabic", ["ذهب الولد إلى المدرسة", "الكتب على الطاولة", "يجري النهر"], "مدرسة", [0]),
        ("hindi", ["लड़कियाँ स्कूल जाती हैं", "नदी बहती है", "किताबें मेज पर हैं"], "किताब", [2]),
        ("cjk", ["私は東京都に住んでいます", "京都は古い町です", "犬が走る"], "東京", [0]),
        ("cjk", ["他們賦有理性和良心", "人人生而自由", "兄弟關係的精神"], "生而自由", [1]),
    ],
)
def test_retrieval_finds_other_forms(
    tmp_path: Path, name: str, texts: list[str], query: str, expected: list[int]
) -> None:
    passages = [Passage(number, f"d{number}", "", text) for number, text in enumerate(texts)]
    build_index(passages, tmp_path / "index", analyser=name)
    opened = open_index(tmp_path / "index")
    assert [number for number, _ in opened.bm25.retrieve([query], 3).of(0)] == expected
    assert opened.bm25.config["analysis"] == analysis_by_name(name).recorded


@pytest.mark.parametrize("name", ["french", "cjk"])
def test_the_same_arrays_with_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(build, "_PASSAGES_A_BATCH", 20)
    monkeypatch.setattr(build, "_BATCHES_ALONE", 1)
    texts = [f"l'avion{i % 7}s volaient 東京都{chr(0x4E00 + i % 90)}の町 mangeront d'{i}" for i in range(100)]
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        with BM25Builder(folder, BuildOptions(workers=workers), analysis_by_name(name)) as builder:
            for text in texts:
                builder.add(text)
            builder.finish()
    assert multiprocessing.active_children() == []
    for file in sorted(file.name for file in (tmp_path / "1").iterdir()):
        assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "2" / file).read_bytes()


def built_with_another_library(path: Path, monkeypatch: pytest.MonkeyPatch, stem: Callable[[str], str]) -> None:
    """An index whose words another version of the stemming library stemmed."""

    class Other:
        def __init__(self, *_: object) -> None:
            self.stemWord = stem

    with monkeypatch.context() as patch:
        patch.setattr(Stemmer, "Stemmer", Other)
        patch.setattr(snowball, "version", lambda _: "1.3.0")
        build_index(german_passages(), path, analyser="german")


@pytest.mark.parametrize(
    ("other_stems", "word"),
    [({"schläft": "schl"}, "schläft"), ({"fluss": "dach", "dach": "fluss"}, "Fluss")],
)
def test_another_stemming_library_with_other_stems_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_stems: dict[str, str], word: str
) -> None:
    """Also where the index has all terms, but of other passages."""
    stem = Stemmer.Stemmer("german", 0).stemWord
    built_with_another_library(tmp_path / "index", monkeypatch, lambda word: other_stems.get(word) or stem(word))
    opened = open_index(tmp_path / "index")
    assert opened.manifest.settings["bm25"]["stemmer"] == "PyStemmer 1.3.0"  # type: ignore[index, call-overload]
    with pytest.raises(OtherAnalyserError, match=f"PyStemmer 1.3.0; .* differently, such as '{word}'"):
        _ = opened.bm25


def test_another_stemming_library_with_the_same_stems_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built_with_another_library(tmp_path / "index", monkeypatch, Stemmer.Stemmer("german", 0).stemWord)
    assert open_index(tmp_path / "index").bm25.retrieve(["Haus"], 1).of(0)[0][0] == 1


def test_the_manifest_names_the_stemming_library(tmp_path: Path) -> None:
    manifest = build_index(german_passages(), tmp_path / "index", analyser="german")
    library = f"PyStemmer {version('PyStemmer')}"
    assert manifest.settings["bm25"] == {"analysis": "snowball-german", "stemmer": library, "k1": 0.9, "b": 0.4}
    content = json.loads((tmp_path / "index" / MANIFEST).read_text())
    del content["settings"]["bm25"]["stemmer"]
    (tmp_path / "index" / MANIFEST).write_text(json.dumps(content | {"checksum": manifest_checksum(content)}))
    assert open_index(tmp_path / "index").bm25.retrieve(["Haus"], 1).of(0)[0][0] == 1
