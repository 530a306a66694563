"""Files as users have them: of other encodings, of odd types and names, damaged, or no files at all.

Each is read correctly or is named in one error or warning. Texts to evaluate are read as they are in the file.
"""

import datetime
import gzip
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ralm.corpus.decontamination import read_titles
from ralm.corpus.documents import BROKEN_FILES
from ralm.corpus.files import read_text
from ralm.corpus.sources import Skipped, read_documents
from ralm.corpus.store import PassageStore, write_passages
from ralm.errors import CorpusError, InputError, RalmWarning, TextError
from ralm.records import Document, Passage
from ralm.retrieval.retrieval_file import read_retrieval_file
from tests.corpus.reading import read

READERS: list[Callable[[Path], object]] = [read, read_text, read_titles, read_retrieval_file]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_what_is_no_file_is_refused_and_not_waited_for(
    reader: Callable[[Path], object], name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    with pytest.raises(InputError, match=f"{name} is a pipe or a device, not a file"):
        reader(path)
    for target, says in (
        ("/dev/zero", "is a pipe or a device, not a file"),
        (tmp_path / "gone", "does not exist"),
        (path, "(cannot be read: Too many levels|does not exist)"),
    ):
        path.unlink()
        path.symlink_to(target)
        with pytest.raises(InputError, match=f"{name} {says}"):
            reader(path)


def test_a_folder_leaves_out_no_file_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / ".hidden.txt").symlink_to(tmp_path / "gone")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone")
    with pytest.warns(RalmWarning, match=r"skipped in .*: hidden files and folders: 1, such as .*; links that lead"):
        assert len(list(read_documents(str(tmp_path)))) == 1


def test_a_folder_that_vanishes_while_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b").mkdir()
    scan = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("b"):
            (tmp_path / "b").rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    skipped = Skipped()
    assert [document.text for document in read(tmp_path, skipped=skipped)] == ["one"]
    assert skipped.examples == {BROKEN_FILES: [f"{tmp_path}/b cannot be read: No such file or directory"]}


@pytest.mark.parametrize(
    ("name", "shown", "title"),
    [(b"caf\xe9.txt", r"caf\xe9", r"caf\xe9"), ("é.txt".encode(), "é", "é"), (b"a\nb.txt", "a\nb", "a b")],
)
def test_any_name_of_a_file_can_be_stored(name: bytes, shown: str, title: str, tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("one")
    [document] = read(tmp_path)
    assert document == Document(id=f"{shown}.txt", title=title, text="one")
    passages = [Passage(number=0, document_id=document.id, title=document.title, text=document.text)]
    list(write_passages(tmp_path / "passages.arrow", passages))
    assert PassageStore(tmp_path / "passages.arrow")[0] == passages[0]


def invalid_utf8() -> pa.Array:
    offsets, content = pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, content])


READABLE = {
    "dictionary": (pa.array(["one"]).dictionary_encode(), "one"),
    "large string": (pa.array(["one"], pa.large_string()), "one"),
    "zero bytes": (pa.array(["o\0ne"]), "o\0ne"),
}


@pytest.mark.parametrize("kind", READABLE)
def test_parquet_texts_of_every_kind_of_string(kind: str, tmp_path: Path) -> None:
    column, text = READABLE[kind]
    pq.write_table(pa.table({"text": column}), tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet") == [Document(id="0", title="", text=text)]


def test_parquet_names_of_every_kind(tmp_path: Path) -> None:
    columns = {"id": pa.array([Decimal("1.50")]), "title": pa.array([datetime.date(2024, 2, 29)]), "text": ["one"]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet") == [Document(id="1.50", title="2024-02-29", text="one")]
    pq.write_table(pa.table({"id": [1.5, float("nan")], "text": ["one", "two"]}), tmp_path / "x.parquet")
    assert [document.id for document in read(tmp_path / "x.parquet")] == ["1.5", "1"]


NO_TEXT = [
    ({"body": ["x"], "n": [1]}, "has no field 'text'; its fields are body, n"),
    ({"text": [1]}, "row 0: the field 'text' is not text but int"),
    ({"text": pa.array([b"one"])}, "the field 'text' is not text but bytes"),
    ({"text": pa.array([["one"]])}, "the field 'text' is not text but list"),
    ({"text": pa.array([Decimal("1.0")])}, "the field 'text' is not text but Decimal"),
    ({"text": ["one"], "id": [b"\xff"]}, "the field 'id' must be text or a number, not bytes"),
    ({"text": ["one"], "title": [{"a": 1}]}, "the field 'title' must be text or a number, not dict"),
    ({"text": invalid_utf8()}, "holds a value that cannot be read: 'utf-8' codec can't decode"),
    ({"text": ["one"], "id": pa.array([2**62], pa.timestamp("us"))}, "holds a value that cannot be read"),
    ({"text": ["one"], "title": pa.array([2**30], pa.date32())}, "holds a value that cannot be read"),
    ({"text": pa.array([], pa.string())}, "holds no document"),
    ({}, "has no field 'text'; its fields are none"),
    ({f"c{n}": ["x"] for n in range(50)}, r"has no field 'text'; its fields are c0, .*, c39, \.\.\."),
    ([("text", ["one"]), ("text", ["two"])], "x.parquet has two columns with the name 'text'"),
    ([("text", ["one"]), ("url", ["a"]), ("url", ["b"])], "x.parquet has two columns with the name 'url'"),
]


@pytest.mark.parametrize(("columns", "says"), NO_TEXT)
def test_parquet_that_holds_no_text_is_refused(columns: Any, says: str, tmp_path: Path) -> None:
    named = columns.items() if isinstance(columns, dict) else columns
    table = pa.Table.from_arrays([pa.array(values) for _, values in named], names=[name for name, _ in named])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(CorpusError, match=says):
        read(tmp_path / "x.parquet")
    (tmp_path / "a.txt").write_text("one")
    assert [document.id for document in read(tmp_path)] == ["a.txt"], "one bad file does not end a folder"


def test_json_objects_as_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"id": {"a": 1}, "text": "one"}\n')
    with pytest.raises(CorpusError, match="line 1: the field 'id' must be text or a number, not dict"):
        read(tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl").write_text('{"id": NaN, "title": NaN, "text": "one"}\n{"id": -Infinity, "text": "two"}\n')
    assert [(document.id, document.title) for document in read(tmp_path / "x.jsonl")] == [("1", ""), ("-inf", "")]


def test_gzip_with_more_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    whole = gzip.compress(b'{"text": "one"}\n')
    path.write_bytes(whole + gzip.compress(b'{"text": "two"}\n'))
    assert [document.text for document in read(path)] == ["one", "two"]
    path.write_bytes(whole + b"garbage")
    with pytest.raises(CorpusError, match="x.jsonl.gz is damaged and cannot be unpacked completely"):
        read(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (" \r\n é\r\r".encode(), " \n é\n\n"),
        (b"\0one\0two\0\0", "\0one\0two\0\0"),
        ("\ufeffone\ufeff".encode(), "one\ufeff"),
        ("the thing".encode("utf-16"), "the thing"),
        ("the thing".encode("utf-32"), "the thing"),
        ("the thing".encode("utf-16-be"), "the thing"),
        (b" \n" * 1_000_000 + b"x", " \n" * 1_000_000 + "x"),
    ],
)
def test_a_text_is_read_as_it_is_but_for_line_ends(content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(content)
    assert read_text(tmp_path / "x.txt") == text


def test_texts_that_are_none(tmp_path: Path) -> None:
    for content, said in {
        b"": "x.txt is empty",
        b" \n" * 1_000_000: "x.txt is empty",
        "\ufeff \n".encode(): "x.txt is empty",
        b"\xff\xfea": "x.txt is not UTF-16: byte 2 is 0x61",
        b"x" * 1234 + b"\xff": "x.txt is not UTF-8: byte 1,234 is 0xff",
    }.items():
        (tmp_path / "x.txt").write_bytes(content)
        with pytest.raises(TextError, match=said):
            read_text(tmp_path / "x.txt")
    with pytest.raises(TextError, match="y.txt does not exist"):
        read_text(tmp_path / "y.txt")
    with pytest.raises(TextError, match="is a folder, not a file"):
        read_text(tmp_path)
