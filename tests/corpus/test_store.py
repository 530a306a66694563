"""The store on disk: what was written comes back, in flat memory, and damage is one sentence."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from ralm.corpus import store
from ralm.corpus.store import ROWS_A_BATCH, PassageStore, join_passages, write_passages
from ralm.errors import DamagedFolderError, UsageError
from ralm.records import Metadata, Passage

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXT, values, max_size=3),
    max_leaves=5,
)
SEVERAL_METADATA = st.lists(st.dictionaries(TEXT, JSON, max_size=3) | st.just({}), min_size=1, max_size=3)


def some_passages(count: int) -> Iterator[Passage]:
    for n in range(count):
        yield Passage(number=n, document_id=f"d{n}", title=f"é{n % 7}" if n % 3 else "", text=f"text 中😀 {n}")


def written(path: Path, passages: Iterator[Passage]) -> PassageStore:
    for _ in write_passages(path, passages):
        pass
    return PassageStore(path)


@pytest.mark.parametrize("count", [0, 1, ROWS_A_BATCH, 2 * ROWS_A_BATCH + 5])
def test_what_was_written_comes_back(count: int, tmp_path: Path) -> None:
    passages = list(some_passages(count))
    assert list(write_passages(tmp_path / "x.arrow", iter(passages))) == passages
    opened = PassageStore(tmp_path / "x.arrow")
    assert len(opened) == count
    assert list(opened) == passages
    for number in np.random.default_rng(0).integers(0, count, 50) if count else []:
        assert opened[number] == passages[number]
    assert opened[2:7:2] == passages[2:7:2]


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=12))
def test_any_strings_come_back(tmp_path: Path, rows: list[tuple[str, str, str]]) -> None:
    passages = [Passage(n, *row) for n, row in enumerate(rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "ROWS_A_BATCH", 4)
        assert list(written(tmp_path / "x.arrow", iter(passages))) == passages


@given(SEVERAL_METADATA, st.lists(st.integers(0, 2), max_size=14), st.randoms(use_true_random=False))
def test_any_metadata_comes_back_in_any_order(
    tmp_path: Path, several: list[Metadata], chosen: list[int], random: Random
) -> None:
    """Equal metadata in a row is stored once; batches of four rows begin anew."""
    passages = [Passage(n, "d", "", "x", metadata=several[row % len(several)]) for n, row in enumerate(chosen)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "ROWS_A_BATCH", 4)
        opened = written(tmp_path / "x.arrow", iter(passages))
        opened.check()
        for number in random.choices(range(len(passages)), k=30) if passages else []:
            assert repr(opened[number]) == repr(passages[number])  # as values, 1 equals true


def test_metadata_of_a_document_is_stored_once(tmp_path: Path) -> None:
    first: Metadata = {"url": "a"}
    rows: list[Metadata] = [{}, first, first, {"url": "a"}, {"url": "b", "page": 2}, {}, {}, first]
    passages = [Passage(n, "d", "", "x", metadata=metadata) for n, metadata in enumerate(rows)]
    assert list(written(tmp_path / "x.arrow", iter(passages))) == passages
    with pa.ipc.open_file(str(tmp_path / "x.arrow")) as file:
        stored = file.read_all()["metadata"].to_pylist()
    assert stored == ["", '{"url":"a"}', "", "", '{"url":"b","page":2}', "{}", "", '{"url":"a"}']


def test_metadata_does_not_hinder_hashing() -> None:
    assert len({Passage(0, "d", "", "x", metadata={"tags": ["a"]}), Passage(0, "d", "", "x")}) == 2


@pytest.mark.parametrize("value", [b"bytes", float("nan"), "\ud800", {1, 2}])
def test_metadata_that_is_not_json_is_refused(value: object, tmp_path: Path) -> None:
    passages = iter([Passage(0, "d7", "", "x", metadata={"field": value})])  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="the metadata of the document 'd7' is not JSON: "):
        written(tmp_path / "x.arrow", passages)


@pytest.mark.parametrize("stored", ["{", "[]", "1", '{"a":' * 100_000])
def test_damaged_metadata_is_one_sentence(stored: str, tmp_path: Path) -> None:
    columns = {"document_id": ["a"] * 3, "title": [""] * 3, "text": ["x"] * 3, "metadata": ["", stored, ""]}
    table = pa.table(columns, schema=store._SCHEMA)
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(table)
    opened = PassageStore(tmp_path / "x.arrow")
    assert opened[0].metadata == {}
    for damaged in (lambda: opened[1], lambda: opened[2], opened.check):
        with pytest.raises(DamagedFolderError, match="the metadata of passage 1 is not a JSON object; build the index"):
            damaged()


def test_numbers_that_are_no_passage(tmp_path: Path) -> None:
    opened = written(tmp_path / "x.arrow", some_passages(3))
    for number in (-1, 3, np.int64(-1)):
        with pytest.raises(IndexError, match="the corpus has 3"):
            opened[int(number)]
    with pytest.raises(IndexError):
        written(tmp_path / "none.arrow", some_passages(0))[0]


def test_a_passage_is_plain_python(tmp_path: Path) -> None:
    passage = written(tmp_path / "x.arrow", some_passages(3))[np.int64(1)]  # type: ignore[call-overload]
    assert type(passage.number) is int
    assert passage.contents == "é1\ntext 中😀 1"


def test_files_that_are_no_store(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    with pytest.raises(DamagedFolderError, match=r"x.arrow is missing; build the index again"):
        PassageStore(path)
    whole = written(path, some_passages(ROWS_A_BATCH + 1))
    del whole
    content = path.read_bytes()
    for damaged in (
        b"",
        content[:100],
        content[: len(content) // 2],
        content[:-1],
        content.replace(b"title", b"\xfftitl"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFolderError, match=r"is truncated or not a store of passages .*; build the index"):
            PassageStore(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "ROWS_A_BATCH", 5)
        written(path, some_passages(12))
    with pytest.raises(DamagedFolderError, match="batches have an unexpected size"):
        PassageStore(path)


def test_columns_that_are_stored_in_another_way(tmp_path: Path) -> None:
    """Files with nulls, compression, other types, or bytes that are not UTF-8 are rejected."""
    columns = {
        "document_id": pa.array(["a", "b"]),
        "title": pa.array(["", "B"]),
        "text": pa.array(["one", "zwei" * 99], pa.large_string()),
        "metadata": pa.array(["", ""], pa.large_string()),
    }
    invalid = pa.py_buffer(b"\xff\xfe")
    title = pa.StringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 2], np.int32)), invalid)
    text = pa.LargeStringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 2], np.int64)), invalid)
    compressed = pa.ipc.IpcWriteOptions(compression="zstd")
    for change, options, message in (
        ({"title": pa.array(["", None])}, None, "a column has an unexpected layout"),
        ({}, compressed, "a column has an unexpected layout"),
        ({"text": text}, None, "passage 0 is not UTF-8"),
        ({"title": title}, None, "the title of passage 0 is not UTF-8"),
        ({"text": columns["text"].dictionary_encode()}, None, "its columns are"),
        ({"text": columns["text"].cast(pa.string())}, None, r"text \(string\)"),
        ({"more": columns["text"]}, None, "its columns are .*more"),
    ):
        table = pa.table({**columns, **change})
        with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema, options=options) as writer:
            writer.write_table(table)
        with pytest.raises(DamagedFolderError, match=message):
            opened = PassageStore(tmp_path / "x.arrow")
            list(opened.origins())
            list(opened)


def test_writing_takes_the_same_memory_however_many_there_are(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        pool = pa.default_memory_pool()
        before = pool.bytes_allocated()
        tracemalloc.start()
        for _ in write_passages(tmp_path / "x.arrow", some_passages(count)):
            assert pool.bytes_allocated() - before < 8 << 20
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    few = peak(ROWS_A_BATCH + 1)
    assert peak(4 * ROWS_A_BATCH) < 1.2 * few


@given(
    parts=st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=20), min_size=1, max_size=2),
    rows=st.sampled_from([1, 4, 50]),
    data=st.data(),
)
def test_joined_passages_are_those_that_are_written_at_once(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[tuple[int, int]]], rows: int, data: st.DataObject
) -> None:
    """In any order, with batches of so many rows; documents are runs of passages with one id."""
    folder = tmp_path_factory.mktemp("joined")
    several: list[Metadata] = [{}, {"a": 1}, {"a": [1, "é"]}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "ROWS_A_BATCH", rows)
        stores, pieces = [], list[tuple[int, range]]()
        for place, part in enumerate(parts):
            passages = (
                Passage(n, f"d{name}", "", "x" * n, metadata=several[kind]) for n, (name, kind) in enumerate(part)
            )
            stores.append(written(folder / str(place), passages))
            cuts = sorted({0, len(part), *data.draw(st.lists(st.integers(0, len(part)), max_size=4))})
            pieces += [(place, range(begin, end)) for begin, end in pairwise(cuts)]
        pieces = data.draw(st.permutations(pieces))
        join_passages(folder / "joined", ((stores[place], numbers) for place, numbers in pieces))
        every = [stores[place][number] for place, numbers in pieces for number in numbers]
        at_once = written(folder / "at-once", (replace(one, number=n) for n, one in enumerate(every)))
        assert (folder / "joined").read_bytes() == (folder / "at-once").read_bytes()
        documents = groupby(at_once.origins(), itemgetter(1))
        expected = [(document, len([*numbers])) for document, numbers in documents]
        assert [(document, len(numbers)) for document, numbers in at_once.documents()] == expected
