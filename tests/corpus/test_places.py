"""Where a document is: the path and line of a record with an id of its own, links, and texts beside pages."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ralm.cli.output import document_name, passage_name
from ralm.corpus.documents import Fields
from ralm.corpus.folder import FileSelection, texts_beside_pages
from ralm.corpus.sources import Skipped, read_documents
from ralm.records import ORIGIN, Passage


def origins(source: Path, fields: Fields | None = None) -> list[tuple[str, object]]:
    return [(one.id, one.metadata.get(ORIGIN)) for one in read_documents(str(source), fields, skipped=Skipped())]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "sub").mkdir(parents=True)
    (made / "a.txt").write_text("text")
    (made / "sub" / "b.jsonl").write_text('\n{"id": "b", "text": "one"}\n{"text": "two"}\n')
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
    assert origins(folder / "a.txt") == [("a.txt", None)]


@pytest.mark.parametrize(
    ("fields", "origin"),
    [(Fields(), "x.jsonl:1"), (Fields(metadata=("url",)), "x.jsonl:1"), (Fields(metadata=()), None)],
)
def test_fields_that_are_kept(fields: Fields, origin: str | None, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"id": "x", "text": "text", "url": "u"}')
    assert origins(tmp_path / "x.jsonl", fields) == [("x", origin)]


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
    ("include", "exclude", "ids"),
    [
        ((), (), ["real.txt"]),
        ((), ("real.txt",), ["link.txt"]),
        (("link*",), (), ["link.txt"]),
        ((), ("link.txt",), ["real.txt"]),
    ],
)
def test_a_link_to_a_file_that_is_read(
    include: tuple[str, ...], exclude: tuple[str, ...], ids: list[str], tmp_path: Path
) -> None:
    (tmp_path / "real.txt").write_text("text")
    (tmp_path / "link.txt").symlink_to("real.txt")
    found = read_documents(str(tmp_path), selection=FileSelection(include=include, exclude=exclude), skipped=Skipped())
    assert [one.id for one in found] == ids


@pytest.mark.parametrize(
    ("paths", "patterns"),
    [
        (["f/index.html", "f/_sources/index.rst.txt", "f/_sources/other.rst.txt"], {"_sources/": 1}),
        (["f/a/b.html", "f/_sources/a/b.md.txt", "f/_sources/a/b.ipynb"], {"_sources/": 1}),
        (["f/a.html", "f/a.md", "f/b.md", "f/c.htm", "f/c.md"], {"*.md": 2}),
        (["f/a.html", "f/b.txt", "f/sub/a.txt"], {}),
    ],
)
def test_texts_beside_pages(paths: list[str], patterns: dict[str, int]) -> None:
    assert texts_beside_pages(paths) == patterns
