"""Reading documents: every format, and one clear sentence where a source cannot be read."""

import csv
import gzip
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from ralm.corpus import sources
from ralm.corpus.documents import BROKEN_FILES, BROKEN_LINES
from ralm.corpus.sources import Fields, RepeatedIds, Skipped, read_documents
from ralm.errors import CorpusError, RalmWarning
from ralm.records import Document
from tests.corpus.reading import read

ROWS = [{"id": "a", "title": "A", "text": "one"}, {"id": "b", "title": "B", "text": "two\nlines"}]
DOCUMENTS = [Document(id="a", title="A", text="one"), Document(id="b", title="B", text="two\nlines")]


def write_jsonl(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.ndjson", "X.JSONL"])
def test_jsonl(name: str, tmp_path: Path) -> None:
    assert read(write_jsonl(tmp_path / name, ROWS)) == DOCUMENTS
    content = b'\xef\xbb\xbf{"id": 1, "text": "one"}\n\n  \n{"text": "two"}\r\n'
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert read(tmp_path / name) == [Document("1", "", "one"), Document("4", "", "two")]


def test_other_field_names_and_empty_texts(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"name": "A", "body": "one", "text": "no"},
        {"name": None, "body": " \n"},
        {"body": None},
        {"key": 7, "body": "x"},
    ]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    fields = Fields(id="key", title="name", text="body")
    first = Document(id="1", title="A", text="one", metadata={"text": "no"})
    assert read(path, fields) == [first, Document(id="7", title="", text="x")]


BROKEN: dict[str, tuple[bytes, bytes, Sequence[tuple[bytes, str]]]] = {
    "x.jsonl": (
        b'{"text": "one"}\n',
        b'{"text": "three"}\n{"text": "four"}\n',
        [
            (b'{"text": "x"', "line 2 is not JSON"),
            (b'["text"]', "line 2 is JSON but not an object"),
            (b'{"body": "x", "id": 1}', "line 2 has no field 'text'; its fields are body, id"),
            (b'{"text": 3}', "line 2: the field 'text' is not text but int"),
            ('{"a": "\u00e9", '.encode() + b'"text": "\xe9"}', "line 2 is not UTF-8: it has the byte 0xe9"),
            (b'{"text": "\\ud800"}', "line 2 holds a lone surrogate"),
            (b"[" * 100_000, "line 2 cannot be read as JSON"),
            (b'{"text": "x", "n": ' + b"9" * 5000 + b"}", "line 2 cannot be read as JSON"),
        ],
    ),
    "x.tsv": (
        b"1\tone\tA\n",
        b'3\tthree\tC\n4\t"four"\tD\n',
        [
            (b"2\ttwo\tB\tmore", "line 2 has 4 tab-separated fields where id, text, title are expected"),
            (b"alone", "line 2 has 1 tab-separated fields"),
            (b'2\t"said" she\tB', "line 2 is not quoted like CSV"),
            (b"2\t\x81\tB", "line 2 is not UTF-8: it has the byte 0x81"),
        ],
    ),
    "x.csv": (
        b"id,text,title\n1,one,A\n",
        b'3,three,C\n4,"four",D\n',
        [
            (b"2,two,B,more", "line 3 has 4 comma-separated fields where id, text, title are expected"),
            (b"alone", "line 3 has 1 comma-separated fields"),
            (b'2,"said" she,B', "line 3 is not quoted like CSV"),
        ],
    ),
}


@pytest.mark.parametrize(
    ("name", "line", "message"), [(name, *one) for name, (_, _, broken) in BROKEN.items() for one in broken]
)
def test_a_broken_line_is_named_or_skipped_alone(name: str, line: bytes, message: str, tmp_path: Path) -> None:
    before, after, _ = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(before + line + b"\n" + after)
    with pytest.raises(CorpusError, match=re.escape(f"{path}, {message}")):
        read(path)
    for source in (path, tmp_path):
        skipped = Skipped()
        assert [document.text for document in read(source, skipped=skipped, skip_bad=True)] == ["one", "three", "four"]
        assert skipped.counts == {BROKEN_LINES: 1}
        assert message in skipped.examples[BROKEN_LINES][0]


@pytest.mark.parametrize(
    ("after", "lines", "texts"), [('3,"three",C\n4,four,D\n', "3 to 4", ["four"]), ("3,three,C\n", "3 to 4", [])]
)
def test_the_lines_that_an_unclosed_quote_takes_with_it_are_named(
    after: str, lines: str, texts: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f'id,text,title\n1,one,A\n2,"never closed,B\n{after}')
    message = f"{path}, lines {lines} are not quoted like CSV"
    with pytest.raises(CorpusError, match=re.escape(message)):
        read(path)
    skipped = Skipped()
    assert [document.text for document in read(path, skipped=skipped, skip_bad=True)] == ["one", *texts]
    assert message in skipped.examples[BROKEN_LINES][0]


def test_only_the_first_few_broken_lines_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("broken\n" * 1000 + '{"text": "one"}\n')
    skipped = Skipped()
    assert len(read(path, skipped=skipped, skip_bad=True)) == 1
    assert (skipped.counts[BROKEN_LINES], len(skipped.examples[BROKEN_LINES])) == (1000, 5)
    says = r"x.jsonl holds no document; skipped: broken lines, objects or pages: 1,001, such as .*;"
    with pytest.raises(CorpusError, match=says):
        read(path, Fields(text="body"), skip_bad=True)


def test_a_damaged_gzip_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    whole = gzip.compress(b"".join(b'{"text": "%d"}\n' % number for number in range(9999)))
    for damaged in (whole[:-500], b"no gzip at all", whole[:2000] + b"\xff" * 100 + whole[2100:]):
        path.write_bytes(damaged)
        with pytest.raises(CorpusError, match="is damaged"):
            read(path)


def write_tsv(path: Path, rows: list[list[str]]) -> Path:
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as stream:
        csv.writer(stream, delimiter="\t", lineterminator="\n").writerows(rows)
    return path


@pytest.mark.parametrize("header", [[], [["id", "text", "title"]]])
@pytest.mark.parametrize("name", ["x.tsv", "x.tsv.gz"])
def test_tsv_as_dpr_writes_it(name: str, header: list[list[str]], tmp_path: Path) -> None:
    rows = [["1", 'Aaron ( or ; ""Ahärôn"") is "a prophet"', "Aaron"], ["2", "text", "It's"], ["3", "x\ny\tz", ""]]
    documents = read(write_tsv(tmp_path / name, header + rows))
    assert documents == [Document(id=row[0], title=row[2], text=row[1]) for row in rows]


def test_tsv_with_other_columns(tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "x.tsv", [["name", "body", "key"], ["A", "one", "7"]])
    assert read(path, Fields(id="key", title="name", text="body")) == [Document(id="7", title="A", text="one")]
    assert read(write_tsv(tmp_path / "x.tsv", [["1", "one"]])) == [Document(id="1", title="", text="one")]
    path = write_tsv(tmp_path / "y.tsv", [["id", "text", "title"], ["1", "one", "A"]])
    with pytest.raises(CorpusError, match="has no field 'body'; its fields are id, text, title"):
        read(path, Fields(text="body"))


@given(st.lists(st.tuples(*[st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"))] * 3)))
def test_tsv_gives_back_whatever_csv_wrote(tmp_path: Path, rows: list[tuple[str, str, str]]) -> None:
    rows = [(f"id{number}", text, title) for number, (_, text, title) in enumerate(rows)]
    rows = [*rows, ("last", "text", "")]
    path = tmp_path / "x.tsv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, delimiter="\t", lineterminator="\n").writerows(rows)
    expected = [Document(id=row[0], title=row[2], text=row[1]) for row in rows if row[1].strip()]
    assert read(path) == expected


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'\xef\xbb\xbfurl,text,id,title\r\nu,"one, ""two""\nthree",7,A\r\n\r\nv,four\r\n')
    assert read(path) == [
        Document(id="7", title="A", text='one, "two"\nthree', metadata={"url": "u"}),
        Document(id="5", title="", text="four", metadata={"url": "v"}),
    ]
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"text\none\ntwo\n"))
    assert [(document.id, document.text) for document in read(tmp_path / "x.csv.gz")] == [("2", "one"), ("3", "two")]


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("id,body\n1,x", "x.csv has no field 'text'; its fields are id, body"),
        ("id;body\n1;x", "x.csv has no field 'text'; its fields are id, body"),
        ("text,url,url\nx,y,z", "x.csv has two columns with the name 'url'"),
        ("\n", "x.csv has no field 'text'; its fields are none"),
    ],
)
def test_csv_needs_a_header(header: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(header)
    with pytest.raises(CorpusError, match=says):
        read(tmp_path / "x.csv")


def test_parquet_file_and_folder(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet") == DOCUMENTS
    pq.write_table(pa.table({"text": ["a", None, "b"]}), tmp_path / "x.parquet")
    assert [(document.id, document.text) for document in read(tmp_path)] == [("x.parquet:0", "a"), ("x.parquet:2", "b")]


def test_parquet_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(CorpusError, match="is not a Parquet file, or damaged"):
        read(path)


def test_a_text_file_that_is_not_utf8_is_named_or_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    (tmp_path / "b.txt").write_text("good")
    message = f"{tmp_path}/a.txt is not UTF-8: byte 3 is 0xe9"
    with pytest.raises(CorpusError, match=re.escape(message)):
        read(tmp_path / "a.txt")
    skipped = Skipped()
    assert [document.id for document in read(tmp_path, skipped=skipped)] == ["b.txt"]
    assert skipped.counts == {BROKEN_FILES: 1}
    assert skipped.examples[BROKEN_FILES][0].startswith(message)


def test_sources_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"PNG")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=r"nowhere does not exist; a dataset .* hf:NAME"):
        read(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=r"holds no document\.$"):
        read(tmp_path / "empty")
    (tmp_path / "y.txt").touch()
    with pytest.raises(CorpusError, match="y.txt is empty"):
        read(tmp_path / "y.txt")
    said = r"no document; skipped: files of an unknown kind: 1 \(.png 1\), such as .*; empty files: 1, such as"
    with pytest.raises(CorpusError, match=said):
        read(tmp_path)
    with pytest.raises(CorpusError, match="x.png is of an unknown type; give a folder, a file that ends in .txt"):
        read(tmp_path / "x.png")
    write_jsonl(tmp_path / "blank.jsonl", [{"text": " "}])
    with pytest.raises(
        CorpusError, match="blank.jsonl holds no document; skipped: documents without text: 1, such as 1$"
    ):
        read(tmp_path / "blank.jsonl")


@given(st.lists(st.sampled_from("abcdefgh"), max_size=30), st.sampled_from([3, 100]))
def test_shared_ids_are_those_of_a_plain_loop_among_the_first_ones(names: Sequence[str], kept: int) -> None:
    parts = [name for name, before in zip(names, ["", *names], strict=False) if name != before]
    counted = [*dict.fromkeys(parts)][:kept]
    expected = [name for place, name in enumerate(parts) if name in parts[:place] and name in counted]
    repeated = RepeatedIds()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        patch.setattr(sources, "_IDS_KEPT", kept)
        for name in names:
            repeated.add(Document(name, "", ""))
        repeated.warn()
    assert (repeated.count, len(warned)) == (len(expected), bool(expected))
    assert list(repeated.examples) == list(dict.fromkeys(expected))[:3]


def test_two_files_with_the_same_ids_are_kept_and_said(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        rows = [{"id": number, "text": f"{name} {number}"} for number in range(4)]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents = read_documents(str(tmp_path), skipped=Skipped())
    with pytest.warns(
        RalmWarning,
        match=r"share an id, such as 0 \(again at b.jsonl:1\); 1 .again at b.jsonl:2.; 2 .* .4 have that",
    ):
        assert [document.id for document in documents] == ["0", "1", "2", "3"] * 2
