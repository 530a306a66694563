"""DOCX: paragraphs and tables in order, and one sentence for a file that is damaged, none, or a bomb."""

import io
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ralm.errors import CorpusError
from ralm.records import Document, Heading
from tests.corpus.reading import only, read

docx = pytest.importorskip("docx")


def saved(document: Any) -> bytes:
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def repacked(file: bytes, changes: dict[str, bytes]) -> bytes:
    """The file with other contents for some of its parts."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(file)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in dict.fromkeys([*old.namelist(), *changes]):
            new.writestr(name, changes[name] if name in changes else old.read(name))
    return out.getvalue()


def with_body(body: str) -> bytes:
    """A file with this XML as its body."""
    names = (
        'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
        'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    )
    content = f'<?xml version="1.0" encoding="UTF-8"?><w:document {names}><w:body>{body}</w:body></w:document>'
    return repacked(saved(docx.Document()), {"word/document.xml": content.encode()})


def test_paragraphs_and_tables_in_order(tmp_path: Path) -> None:
    document = docx.Document()
    document.add_paragraph("Before the heading")
    document.add_heading("The  Heading", level=1)
    paragraph = document.add_paragraph("One ")
    paragraph.add_run("bold").bold = True
    paragraph.add_run("\tword\nnext line")
    table = document.add_table(rows=2, cols=2)
    for place, cell in enumerate(table._cells):
        cell.text = f"cell {place}"
    table.cell(1, 1).add_table(rows=1, cols=2).cell(0, 1).text = "inner"
    document.add_paragraph("After")
    (tmp_path / "x.docx").write_bytes(saved(document))
    text = "Before the heading\n# The Heading\nOne bold\tword\nnext line\ncell 0\tcell 1\ncell 2\tcell 3 \tinner\nAfter"
    heading = Heading(19, 33, 1, "The Heading")
    assert only(tmp_path / "x.docx") == Document("x.docx", "The Heading", text, headings=(heading,))
    document.core_properties.title = "The title"
    (tmp_path / "x.docx").write_bytes(saved(document))
    assert only(tmp_path / "x.docx").title == "The title"


def test_what_stands_deeper_and_what_is_not_shown(tmp_path: Path) -> None:
    def run(text: str) -> str:
        return f"<w:r><w:t>{text}</w:t></w:r>"

    body = (
        f"<w:sdt><w:sdtPr/><w:sdtContent><w:p>{run('control')}</w:p></w:sdtContent></w:sdt>"
        f"<w:p>{run('kept ')}<w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:ins>{run('added')}</w:ins></w:p>"
        f"<w:p><w:hyperlink>{run('link')}</w:hyperlink><w:r><mc:AlternateContent><mc:Choice><w:txbxContent>"
        f"<w:p>{run('box')}</w:p></w:txbxContent></mc:Choice><mc:Fallback><w:p>{run('box again')}</w:p></mc:Fallback>"
        "</mc:AlternateContent></w:r></w:p>"
    )
    (tmp_path / "x.docx").write_bytes(with_body(body))
    document = only(tmp_path / "x.docx")
    assert document.text == "control\nkept added\nlink\nbox"
    assert document.title == "x"


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x.docx"
    whole = saved(docx.Document())
    for content, says in (
        (b"PK\x03\x04 no zip", "is not a DOCX file, or damaged or encrypted: it is no zip archive"),
        (b"\xd0\xcf\x11\xe0" + b"\0" * 600, "is not a DOCX file, or damaged or encrypted: it is no zip archive"),
        (whole[: len(whole) // 2], "is not a DOCX file, or damaged"),
        (repacked(whole, {"word/document.xml": b"<broken"}), "is not a DOCX file, or damaged: "),
        (repacked(whole, {"_rels/.rels": b"<Relationships/>"}), "is not a DOCX file, or damaged: it lacks 'officeD"),
        (repacked(whole, {"word/document.xml": b"<other/>"}), "is not a DOCX file, or damaged: it lacks 'w:body'"),
        (whole, "holds no document; skipped: documents without text: 1, such as x.docx"),
    ):
        path.write_bytes(content)
        with pytest.raises(CorpusError, match=re.escape(f"{path} {says}")):
            read(path)


def test_bombs(tmp_path: Path) -> None:
    path = tmp_path / "x.docx"
    whole = saved(docx.Document())
    document = docx.Document()
    document.add_paragraph("text")
    path.write_bytes(repacked(saved(document), {"word/media/picture.xml": b"<w:t>" + b" " * (65 << 20) + b"</w:t>"}))
    assert only(path).text == "text", "what is not read is not unpacked"
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_BZIP2) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    path.write_bytes(out.getvalue())
    with pytest.raises(CorpusError, match="x.docx is packed in a way that DOCX files are not; save it again"):
        read(path)
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "boom"}">' for n in range(12))
    content = (
        f'<?xml version="1.0"?><!DOCTYPE x [{entities}]><w:document xmlns:w="http://schemas.openxmlformats.org/'
        'wordprocessingml/2006/main"><w:body><w:p><w:r><w:t>a &e11;</w:t></w:r></w:p></w:body></w:document>'
    )
    path.write_bytes(repacked(saved(docx.Document()), {"word/document.xml": content.encode()}))
    with pytest.raises(CorpusError, match="x.docx is not a DOCX file, or damaged: Maximum entity amplification"):
        read(path)
