"""JSON files with one object, several or an array: read piece by piece, with the result of reading them at once."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import JsonValue

from ralm.corpus.documents import BROKEN_FILES, BROKEN_LINES
from ralm.corpus.formats import json_records
from ralm.corpus.formats.json_records import _JsonText, _values
from ralm.corpus.sources import Skipped, read_documents
from ralm.errors import CorpusError
from ralm.records import Document
from tests.corpus.reading import read

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda values: st.lists(values, max_size=4) | st.dictionaries(TEXT, values, max_size=4),
    max_leaves=8,
)


def values_of(path: Path, piece: int) -> list[object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_records, "_PIECE", piece)
        return [value for value, _ in _values(_JsonText(path))]


@given(
    st.lists(VALUES, max_size=5),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([None, 0, 3]),
    st.sampled_from([(",", ":"), (" ,\n \r\t", " :\n ")]),
)
def test_an_array_in_pieces_is_the_array_at_once(
    tmp_path: Path,
    values: list[JsonValue],
    piece: int,
    ascii_only: bool,
    indent: int | None,
    separators: tuple[str, str],
) -> None:
    path = tmp_path / "x.json"
    written = json.dumps(values, ensure_ascii=ascii_only, indent=indent, separators=separators)
    path.write_text(f"\ufeff {written}\n", encoding="utf-8")
    assert repr(values_of(path, piece)) == repr(json.loads(written))


@settings(max_examples=300)
@given(st.lists(VALUES, min_size=1, max_size=3), st.integers(1, 40), st.data())
def test_an_array_that_is_cut_or_changed_is_refused_or_read_as_json_does(
    tmp_path: Path, values: list[JsonValue], piece: int, data: st.DataObject
) -> None:
    written = json.dumps(values)
    place = data.draw(st.integers(1, len(written) - 1))
    changed = data.draw(st.sampled_from([written[:place], written[:place] + "]," + written[place:], written + "{"]))
    path = tmp_path / "x.json"
    path.write_text(changed)
    try:
        expected = json.loads(changed)
    except json.JSONDecodeError:
        with pytest.raises(CorpusError, match=r"x\.json is not JSON: .* at character [\d,]+\."):
            values_of(path, piece)
    else:
        assert repr(values_of(path, piece)) == repr(expected)


@pytest.mark.parametrize("name", ["x.json", "x.json.gz", "X.JSON"])
def test_objects_are_documents(name: str, tmp_path: Path) -> None:
    path = tmp_path / name

    def write(text: str) -> None:
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())

    one = {"id": "a", "title": "A", "text": "one", "url": "u"}
    first = Document(id="a", title="A", text="one", metadata={"url": "u"})
    write(json.dumps(one, indent=2))
    assert read(path) == [first]
    write(json.dumps([one, {"text": "two"}]))
    assert read(path) == [first, Document(id="2", title="", text="two")]
    write(json.dumps(one) + "\n" + json.dumps({"text": "two"}))
    assert read(path) == [first, Document(id="2", title="", text="two")]


def test_elements_that_are_no_documents(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('[{"text": "one"}, 17, {"body": "x"}, {"text": "\\ud800"}, {"text": "five"}]')
    with pytest.raises(CorpusError, match="x.json, object 2 is JSON but not an object with fields. Fix it, or skip"):
        read(path)
    skipped = Skipped()
    assert [document.id for document in read(path, skipped=skipped, skip_bad=True)] == ["1", "5"]
    assert skipped.counts == {BROKEN_LINES: 3}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[{"text": "one"}, {"text": "two"]', "Expecting ',' delimiter at character 33"),
        ('[{"text": "one"} {"text": "two"}]', "Expecting ',' or ']' at character 18"),
        ('[{"text": "one"},]', "Expecting value at character 18"),
        ('[{"text": "one"}', "Expecting ',' or ']' at character 17"),
        ('[{"text": "one"}] more', "Extra data at character 19"),
        ('[{"text": "one"}, {"text": "tw', "Unterminated string starting at at character 28"),
        ('[{"text": "one"}, ' + "[" * 100_000, "recursion"),
        ('[{"text": "one"}, {"n": ' + "9" * 5000 + "}]", "digits"),
    ],
)
def test_where_an_array_is_broken(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    documents = read_documents(str(path), skipped=Skipped())
    assert next(documents).text == "one"
    with pytest.raises(CorpusError, match=f"x.json is not JSON: .*{says}"):
        list(documents)
    skipped = Skipped()
    assert [document.text for document in read(tmp_path, skipped=skipped)] == ["one"]
    assert skipped.counts == {BROKEN_FILES: 1}


def test_bytes_that_are_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_records, "_PIECE", 4)
    path = tmp_path / "x.json"
    for content, place in ((b'[{"text": "\xc3\xa9 \xe9"}]', 14), (b'[{"text": "\xc3\xa9"}] \xc3', 17)):
        path.write_bytes(content)
        with pytest.raises(CorpusError, match=f"x.json is not UTF-8: byte {place} is 0x"):
            read(path)


def test_an_array_takes_the_memory_of_its_largest_object(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    rows = 4000
    path.write_text(json.dumps([{"text": "word " * 1000}] * rows))
    assert path.stat().st_size > 16 << 20
    tracemalloc.start()
    count = sum(1 for _ in read_documents(str(path), skipped=Skipped()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == rows
    assert peak < 4 << 20


def test_an_object_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_records, "_MAX_VALUE", 1 << 20)
    path = tmp_path / "x.json"
    path.write_text('{"type": "map", "text": "' + "x" * (3 << 20) + '"}')
    with pytest.raises(CorpusError, match="x.json holds an object of more than 1 million characters"):
        read(path)
