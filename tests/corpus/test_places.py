"""Records and where they are: their ids, titles and fields, paths and lines, links, and texts beside pages."""

import datetime
import json
import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Features, Image, Value
from pydantic import JsonValue

from ralm.cli.output import document_name, passage_name
from ralm.corpus.documents import NOT_JSON, json_value, metadata_from_json, metadata_to_json
from ralm.corpus.sources import Fields, Skipped, read_documents
from ralm.corpus.splitting import Splitting, make_passages
from ralm.errors import CorpusError, UsageError
from ralm.records import ORIGIN, Metadata, Passage
from ralm.retrieval.build import build_index
from tests.corpus.reading import only, read


def origins(source: Path, fields: Fields | None = None) -> list[tuple[str, object]]:
    return [(one.id, one.metadata.get(ORIGIN)) for one in read_documents(str(source), fields, skipped=Skipped())]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "sub").mkdir(parents=True)
    (made / "a.txt").write_text("text")
    (made / "sub" / "b.jsonl").write_text('\n{"id": "b", "text": "one", "url": "u"}\n{"text": "two"}\n')
    (made / "sub" / "c.json").write_text('[{"id": "c", "text": "one"}, {"text": "two"}]')
    (made / "sub" / "d.csv").write_text("id,text\nd,one\n,two\n")
    (made / "sub" / "e.tsv").write_text("e\tone\ttitle\n")
    pq.write_table(pa.table({"id": ["f", None], "text": ["one", "two"]}), made / "sub" / "f.parquet")
    return made


def test_records_in_a_folder(folder: Path) -> None:
    assert origins(folder) == [
        ("a.txt", None),
        ("b", "sub/b.jsonl:2"),
        ("sub/b.jsonl:3", None),
        ("c", "sub/c.json:1"),
        ("sub/c.json:2", None),
        ("d", "sub/d.csv:2"),
        ("sub/d.csv:3", None),
        ("e", "sub/e.tsv:1"),
        ("f", "sub/f.parquet:0"),
        ("sub/f.parquet:1", None),
    ]


def test_records_of_a_single_file(folder: Path) -> None:
    assert origins(folder / "sub" / "b.jsonl") == [("b", "b.jsonl:2"), ("3", "b.jsonl:3")]
    assert origins(folder / "sub" / "b.jsonl", Fields(metadata=("url",))) == [("b", "b.jsonl:2"), ("3", "b.jsonl:3")]
    assert origins(folder / "sub" / "b.jsonl", Fields(metadata=())) == [("b", None), ("3", None)]
    assert origins(folder / "a.txt") == [("a.txt", None)]


@pytest.mark.parametrize("own", ["theirs", 3, {"a": True}])
def test_metadata_of_users_stays(own: object, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"id": "x", "text": "text", ORIGIN: own, "origin": own}))
    [document] = read_documents(str(tmp_path / "x.jsonl"))
    assert document.metadata == {ORIGIN: own, "origin": own}


@pytest.mark.parametrize(
    ("passage", "hit", "source"),
    [
        (Passage(3, "b", "B", "text", metadata={ORIGIN: "x:1"}), "b, x:1  B", "B (passage 3; b, x:1)"),
        (Passage(3, "b", "", "text", metadata={ORIGIN: "x:1", "ok": True}), "b, x:1", "b, x:1 (passage 3; ok: true)"),
        (Passage(3, "a.pdf", "A", "text", metadata={"page": 2}), "a.pdf  A", "A (passage 3; a.pdf; page: 2)"),
        (Passage(3, "a.txt", "a", "text"), "a.txt", "a (passage 3; a.txt)"),
        (Passage(3, "a", "a", "text"), "a", "a (passage 3)"),
        (Passage(3, "a", "a", "text", metadata={ORIGIN: 3}), "a", "a (passage 3)"),
    ],
)
def test_places_are_shown(passage: Passage, hit: str, source: str) -> None:
    assert document_name(passage.document_id, passage.title, passage.place) == hit
    assert passage_name(passage) == source


@pytest.mark.parametrize(
    ("record", "identifier", "title"),
    [
        ({"id": ""}, "1", ""),
        ({"id": None}, "1", ""),
        ({"id": "  "}, "1", ""),
        ({"id": float("nan")}, "1", ""),
        ({"id": 0}, "0", ""),
        ({"id": True, "title": False}, "true", "false"),
        ({"id": "True", "title": None}, "True", ""),
    ],
)
def test_ids_and_titles(record: dict[str, object], identifier: str, title: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({**record, "text": "text"}))
    (tmp_path / "x.json").write_text(json.dumps([{**record, "text": "text"}]))
    for name in ("x.jsonl", "x.json"):
        document = only(tmp_path / name)
        assert (document.id, document.title) == (identifier, title)


def test_ids_that_are_none_in_tables_and_folders(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id,text\n,one\n \t,two\nb,three\n")
    assert [document.id for document in read(tmp_path / "x.csv")] == ["2", "3", "b"]
    assert [document.id for document in read(tmp_path)] == ["x.csv:2", "x.csv:3", "b"]
    (tmp_path / "x.tsv").write_text("\tone\ttitle\n")
    assert only(tmp_path / "x.tsv").id == "1"


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"text": "a\ud800b"}, "passage 0, of the document 'bad', holds a lone surrogate"),
        ({"title": "\udfff"}, "passage 0, of the document 'bad', holds a lone surrogate"),
        ({"document_id": "\ud800"}, r"passage 0, of the document '\\ud800', holds a lone surrogate"),
        ({"metadata": {"key": "\ud800"}}, "the metadata of the document 'bad' is not JSON"),
        ({"metadata": {"\ud800": 1}}, "the metadata of the document 'bad' is not JSON"),
    ],
)
def test_passages_with_half_of_a_character(bad: dict[str, object], says: str, tmp_path: Path) -> None:
    given: dict[str, object] = {"number": 0, "document_id": "bad", "title": "title", "text": "text", **bad}
    with pytest.raises(UsageError, match=says):
        build_index([Passage(**given)], tmp_path / "new")  # type: ignore[arg-type]


VALUES: list[tuple[object, JsonValue]] = [
    (None, None),
    (float("nan"), None),
    (Decimal("NaN"), None),
    (True, True),
    (7, 7),
    (2.5, 2.5),
    ("é\n", "é\n"),
    (datetime.date(2024, 2, 29), "2024-02-29"),
    (datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC), "2024-02-29T12:30:00+00:00"),
    (datetime.time(12, 30), "12:30:00"),
    (datetime.timedelta(days=1, seconds=2), "1 day, 0:00:02"),
    (Decimal("1.50"), 1.5),
    (Decimal("17"), 17),
    (Decimal("0.1234567890123456789"), "0.1234567890123456789"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (np.float32(0.5), 0.5),
    (np.int64(3), 3),
    (np.bool_(True), True),
    (np.array([[1, 2]]), [[1, 2]]),
    (np.datetime64("2024-02-29"), "2024-02-29"),
    ({"a": [1, {"b": None}], 2: (3,)}, {"a": [1, {"b": None}], "2": [3]}),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=lambda value: type(value).__name__)
def test_values_as_json(value: object, expected: JsonValue) -> None:
    found = json_value(value)
    assert (found, type(found)) == (expected, type(expected))
    assert metadata_from_json(metadata_to_json({"field": found})) == {"field": expected}


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", [b"x", {"a": b"x"}, [float("inf")], {1, 2}, object(), nested(101), Decimal("-inf")])
def test_values_that_json_lacks(value: object) -> None:
    with pytest.raises(TypeError, match="JSON has no"):
        json_value(value)
    json_value(nested(100))


def metadata(path: Path, fields: Fields | None = None, skipped: Skipped | None = None) -> Sequence[Metadata]:
    return [document.metadata for document in read(path, fields, skipped)]


def test_jsonl(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(
        '{"id": 1, "title": "A", "text": "one", "url": "https://a", "page": 2, "none": null, "empty": "", "n": NaN}\n'
        '{"text": "two", "big": Infinity, "tags": ["a", {"b": 1.5}]}\n'
    )
    skipped = Skipped()
    assert metadata(tmp_path / "x.jsonl", skipped=skipped) == [
        {"url": "https://a", "page": 2},
        {"tags": ["a", {"b": 1.5}]},
    ]
    assert skipped.as_json() == {NOT_JSON: {"count": 1, "examples": ["big (float)"]}}


def test_half_a_character_in_a_nested_value_is_a_broken_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "one", "tags": [{"\\ud83d\\ude00": "\\udc00"}]}\n')
    with pytest.raises(CorpusError, match="line 1 holds a lone surrogate"):
        metadata(tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl").write_text('{"text": "one", "tags": [{"\\ud83d\\ude00": "\\\\ud800"}]}\n')
    assert metadata(tmp_path / "x.jsonl") == [{"tags": [{"😀": "\\ud800"}]}]


def test_parquet_reads_only_the_columns_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {
        "text": ["one"],
        "date": [datetime.date(2024, 2, 29)],
        "price": pa.array([Decimal("1.50")]),
        "vector": pa.array([[0.5, 1.5]], pa.list_(pa.float32(), 2)),
        "picture": [{"bytes": b"x", "path": "p"}],
        "raw": pa.array([b"x"], pa.large_binary()),
        "pairs": pa.array([[("a", b"x")]], pa.map_(pa.string(), pa.binary())),
        "kind": pa.array(["k"]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    asked: list[list[str]] = []
    whole = pq.ParquetFile.iter_batches

    def iter_batches(self: pq.ParquetFile, *, batch_size: int, columns: list[str]) -> object:
        asked.append(columns)
        return whole(self, batch_size=batch_size, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    skipped = Skipped()
    everything = {"date": "2024-02-29", "price": 1.5, "vector": [0.5, 1.5], "kind": "k"}
    assert metadata(tmp_path / "x.parquet", skipped=skipped) == [everything]
    assert skipped.examples == {NOT_JSON: ["picture (bytes)", "raw (bytes)", "pairs (bytes)"]}
    assert metadata(tmp_path / "x.parquet", Fields(metadata=("kind", "date"))) == [{"kind": "k", "date": "2024-02-29"}]
    assert metadata(tmp_path / "x.parquet", Fields(metadata=())) == [{}]
    assert asked == [["text", "date", "price", "vector", "kind"], ["text", "date", "kind"], ["text"]]


def test_datasets_decode_no_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = {
        "text": ["one"],
        "at": [datetime.datetime(2024, 2, 29)],
        "picture": [{"bytes": b"no picture", "path": None}],
    }
    features = Features({"text": Value("string"), "at": Value("timestamp[s]"), "picture": Image()})
    Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    skipped = Skipped()
    assert metadata(tmp_path / "saved", skipped=skipped) == [{"at": "2024-02-29T00:00:00"}]
    assert skipped.examples == {NOT_JSON: ["picture (bytes)"]}


def test_a_named_field_that_no_record_has(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "one", "url": null}\n{"text": "two", "page": 1}\n')
    assert metadata(tmp_path / "x.jsonl", Fields(metadata=("url", "page"))) == [{}, {"page": 1}]
    with pytest.raises(CorpusError, match=r"no document has the field 'at', 'to', which `fields` metadata names"):
        metadata(tmp_path / "x.jsonl", Fields(metadata=("to", "url", "at")))
    pq.write_table(pa.table({"text": ["one"], "picture": [b"x"]}), tmp_path / "x.parquet")
    assert metadata(tmp_path / "x.parquet", Fields(metadata=("picture",))) == [{}], "it exists, but JSON cannot hold it"


def test_passages_have_the_metadata_of_their_document(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "one two three", "page": 1}) + "\n")
    passages = make_passages(read_documents(str(tmp_path / "x.jsonl")), Splitting(words=1))
    assert [passage.metadata for passage in passages] == [{"page": 1, "_origin": "x.jsonl:1"}] * 3
