"""A folder as users have them, through the command line: every document is in the index, or named with the reason."""

import gzip
import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ralm.records import Passage
from ralm.retrieval.index import check_index, open_index
from tests.cli.program import done, printed
from tests.corpus.test_pdf import pdf

pytest.importorskip("turbohtml")
docx = pytest.importorskip("docx")


def word_file(text: str) -> bytes:
    document = docx.Document()
    document.add_paragraph(text)
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of eleven kinds: two of them are broken, one is of an unknown kind, one is empty, one a link to itself."""
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    files: dict[str, bytes] = {
        "a.txt": b"plain whale",
        "b.md": b"# Heading\nmarkdown whale",
        "c.rst": b"Title\n=====\nstructured whale",
        "d.jsonl.gz": gzip.compress(b'{"id": "own", "text": "lines whale", "url": "https://d"}\n'),
        "e.json": b'[{"text": "array whale", "date": "2024-02-29"}]',
        "f.csv": b"text,url\ncomma whale,https://f\n",
        "g.tsv": b"8\ttab whale\tTitle\n",
        "i.html": b'<link rel=canonical href="https://i"><title>Page</title><p>web whale',
        "j.pdf": pdf("page whale", "second whale", title="Paper"),
        "k.docx": word_file("word whale"),
        "broken.pdf": b"%PDF-1.7 nothing",
        "broken.txt": b"caf\xe9",
        "unknown.xyz": b"whale",
        "empty.txt": b"",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    rows = {"text": ["column whale"], "page": [7], "picture": [b"x"]}
    pq.write_table(pa.table(rows), folder / "sub" / "h.parquet")
    (folder / "loop.txt").symlink_to(folder / "loop.txt")
    return folder


EXPECTED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a.txt": ("a", "plain whale", {}),
    "b.md": ("Heading", "# Heading\nmarkdown whale", {}),
    "c.rst": ("Title", "Title\n=====\nstructured whale", {}),
    "own": ("", "lines whale", {"url": "https://d", "_origin": "d.jsonl.gz:1"}),
    "e.json:1": ("", "array whale", {"date": "2024-02-29"}),
    "f.csv:2": ("", "comma whale", {"url": "https://f"}),
    "8": ("Title", "tab whale", {"_origin": "g.tsv:1"}),
    "i.html": ("Page", "web whale", {"url": "https://i"}),
    "j.pdf": ("Paper", "page whale", {"page": 1}),
    "k.docx": ("k", "word whale", {}),
    "sub/h.parquet:0": ("", "column whale", {"page": 7}),
}
"""By id, the title, text and metadata of the first passage."""


def first_passages(index: Path) -> dict[str, tuple[str, str, Any]]:
    passages: list[Passage] = sorted(open_index(index).passages, key=lambda passage: -passage.number)
    return {p.document_id: (p.title, p.text, p.metadata) for p in passages}


def test_every_document_is_there_or_named(folder: Path, tmp_path: Path) -> None:
    answer = done("index", folder, "--out", tmp_path / "index")
    assert first_passages(tmp_path / "index") == EXPECTED
    assert [passage.document_id for passage in open_index(tmp_path / "index").passages] == [
        *["a.txt", "b.md", "c.rst", "own", "e.json:1", "f.csv:2", "8", "i.html", "j.pdf", "j.pdf", "k.docx"],
        "sub/h.parquet:0",
    ]
    assert open_index(tmp_path / "index").manifest.counts["documents"] == 11, "a PDF of two pages is one"
    assert check_index(tmp_path / "index") == []
    for line in (
        rf"left out: files that cannot be read: 2, such as {folder}/broken.pdf is not a PDF file, or damaged: .*; "
        rf"{folder}/broken.txt is not UTF-8: byte 3 is 0xe9, so name its encoding, such as --encoding cp1252\n",
        rf"left out: files of an unknown kind: 1 \(.xyz 1\), such as {folder}/unknown.xyz; --read-as .xyz=.txt reads",
        rf"left out: empty files: 1, such as {folder}/empty.txt\n",
        rf"left out: links that lead to nothing new: 1, such as {folder}/loop.txt \(a link to itself\)\n",
        r"left out: fields of metadata that JSON cannot hold: 1, such as picture \(bytes\)\n",
    ):
        assert re.search(line, answer.out), answer.out
    assert answer.out.count("left out:") == 5
    skipped = open_index(tmp_path / "index").manifest.settings["skipped"]
    assert isinstance(skipped, dict)
    assert skipped["files of an unknown kind"] == {
        "count": 1,
        "examples": [f"{folder}/unknown.xyz"],
        "kinds": {".xyz": 1},
    }
    assert answer.err.strip().count("\n") == 0, "the libraries that read files say nothing"
    hits = printed("search", tmp_path / "index", "whale", "-k", 20)["hits"]
    assert [hit["metadata"] for hit in hits if hit["document_id"] == "j.pdf"] == [{"page": 1}, {"page": 2}]
