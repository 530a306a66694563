"""JSON files with one object, several or an array: read object by object, as `json` reads them at once."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from pydantic import JsonValue

from ralm.corpus.documents import BROKEN_FILES, BROKEN_LINES
from ralm.corpus.formats.records import values_of
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


@given(st.lists(VALUES, min_size=1, max_size=3), st.sampled_from([None, 0, 3]), st.data())
def test_an_array_is_read_as_json_reads_it_also_if_it_is_cut_or_changed(
    values: list[JsonValue], indent: int | None, data: st.DataObject
) -> None:
    written = json.dumps(values, indent=indent)
    place = data.draw(st.integers(1, len(written) - 1))
    inserted = f"{written[:place]}],{written[place:]}"
    for text in (f" {written}\n", data.draw(st.sampled_from([written[:place], inserted, written + "{"]))):
        try:
            expected = json.loads(text)
        except json.JSONDecodeError:
            with pytest.raises(CorpusError, match=r"x\.json is not JSON: .* at character [\d,]+\."):
                list(values_of(text, "x.json"))
        else:
            assert repr(list(values_of(text, "x.json"))) == repr(expected)


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
