"""PDF: a document per page, and one sentence for a file that is encrypted, scanned, damaged or none."""

import io
import logging
import re
from pathlib import Path

import pytest

from ralm.corpus.documents import BROKEN_FILES, BROKEN_LINES, NO_TEXT_PAGES
from ralm.corpus.sources import Fields, Skipped
from ralm.corpus.splitting import Splitting, make_passages
from ralm.errors import CorpusError
from ralm.records import Document
from tests.corpus.reading import read

pypdf = pytest.importorskip("pypdf")


def pdf(*pages: str, title: str = "", password: str | None = None, algorithm: str = "AES-256") -> bytes:
    """A PDF with a line of text on each page; none on a page of an empty string."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", ""]
    for page in pages:
        text = page.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if page else "0 0 10 10 re f"
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents "
            f"{len(objects) + 2} 0 R /Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica "
            "/Encoding /WinAnsiEncoding >> >> >> >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    kids = " ".join(f"{2 * place + 3} 0 R" for place in range(len(pages)))
    objects[1] = f"<< /Type /Pages /Count {len(pages)} /Kids [{kids}] >>"
    file = bytearray(b"%PDF-1.4\n")
    places = []
    for number, content in enumerate(objects, 1):
        places.append(len(file))
        file += f"{number} 0 obj\n{content}\nendobj\n".encode("cp1252")
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info << /Title ({title}) >> >>\n"
    file += f"{end}{trailer}startxref\n{len(file)}\n%%EOF\n".encode("cp1252")
    return bytes(file) if password is None else encrypted(bytes(file), password, algorithm)


def encrypted(file: bytes, password: str, algorithm: str) -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(file))
    writer.encrypt(user_password=password, owner_password="owner", algorithm=algorithm)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_a_document_per_page(tmp_path: Path) -> None:
    path = tmp_path / "x.pdf"
    path.write_bytes(pdf("First page", "", "Café (third)", title=" The  title "))
    skipped = Skipped()
    assert read(path, skipped=skipped) == [
        Document(id="x.pdf", title="The title", text="First page", metadata={"page": 1}),
        Document(id="x.pdf", title="The title", text="Café (third)", metadata={"page": 3}),
    ]
    assert skipped.as_json() == {NO_TEXT_PAGES: {"count": 1, "examples": [f"{path}, page 2"]}}
    path.write_bytes(pdf("First page"))
    [document] = read(path, fields=Fields(metadata=()))
    assert (document.title, document.metadata) == ("x", {})


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
def test_encrypted_files(algorithm: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pdf"
    path.write_bytes(pdf("secret", password="", algorithm=algorithm))
    assert [document.text for document in read(path)] == ["secret"], "whoever opens it needs no password"
    path.write_bytes(pdf("secret", password="word", algorithm=algorithm))
    with pytest.raises(CorpusError, match=r"x.pdf is encrypted and needs a password; decrypt it first\."):
        read(path)


def test_scanned_files(tmp_path: Path) -> None:
    path = tmp_path / "x.pdf"
    path.write_bytes(pdf("", ""))
    with pytest.raises(CorpusError, match=r"x.pdf has no text on any page; if it is scanned, run OCR on it\."):
        read(path)
    (tmp_path / "a.txt").write_text("one")
    skipped = Skipped()
    assert [document.text for document in read(tmp_path, skipped=skipped)] == ["one"]
    assert skipped.examples[BROKEN_FILES] == [f"{path} has no text on any page; if it is scanned, run OCR on it"]


@pytest.mark.parametrize("content", [b"\n", b"%PDF-1.4", b"PK\x03\x04", b"no pdf\n" * 99, pdf("x")[:-200]])
def test_files_that_are_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.pdf"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=f"{re.escape(str(path))} (is|holds|has) .*[.]$"):
        read(path)


def test_the_library_says_nothing_on_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    handlers = logging.getLogger().handlers[:]
    logging.getLogger().handlers[:] = []  # as in a program without logging; pytest has some
    try:
        (tmp_path / "x.pdf").write_bytes(b"%PDF-1.4\nnothing" + pdf("one")[9:])
        assert [document.text for document in read(tmp_path / "x.pdf")] == ["one"]
    finally:
        logging.getLogger().handlers[:] = handlers
    assert capfd.readouterr() == ("", "")


def test_a_broken_page_is_named_and_the_others_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.pdf").write_bytes(pdf("one", "two", "three"))
    extract = pypdf.PageObject.extract_text

    def broken(page: object) -> str:
        text: str = extract(page)
        if text == "two":
            raise RecursionError("a font of itself\nand more")
        return text

    monkeypatch.setattr(pypdf.PageObject, "extract_text", broken)
    with pytest.raises(CorpusError, match=r"x.pdf, page 2 cannot be read: a font of itself\.$"):
        read(tmp_path / "x.pdf")
    skipped = Skipped()
    assert [document.metadata["page"] for document in read(tmp_path, skipped=skipped)] == [1, 3]
    assert skipped.counts == {BROKEN_LINES: 1}


def test_the_outline_gives_the_headings(tmp_path: Path) -> None:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf("1.2 Radium", "glows in the dark", "Uses of it", title="Book")))
    part = writer.add_outline_item(title="Part One", page_number=0)
    writer.add_outline_item(title="Radium", page_number=0, parent=part)
    writer.add_outline_item(title="Uses", page_number=2, parent=part)
    writer.write(tmp_path / "x.pdf")
    splitting = Splitting(split="structure", words=20)
    passages = make_passages(read(tmp_path / "x.pdf"), splitting)
    assert [(one.title, one.text) for one in passages] == [
        ("Book > Part One > Radium", "1.2 Radium"),
        ("Book > Part One > Radium", "glows in the dark"),
        ("Book > Part One > Uses", "Uses of it"),
    ]
    broken = (tmp_path / "x.pdf").read_bytes().replace(b"/First", b"/Frist")
    (tmp_path / "x.pdf").write_bytes(broken)
    assert [document.headings for document in read(tmp_path / "x.pdf")] == [(), (), ()]
