"""The fields of a record that are kept beside id, title and text: what each format gives, as JSON."""

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

from ralm.corpus.documents import NOT_JSON, json_value, metadata_from_json, metadata_to_json
from ralm.corpus.sources import Fields, Skipped, read_documents
from ralm.corpus.splitting import Splitting, make_passages
from ralm.errors import CorpusError
from ralm.records import Metadata
from tests.corpus.reading import read

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
