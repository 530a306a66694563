"""DOCX, spreadsheets and slides, made with the packages of others; what is hidden is no text; bombs are refused."""

import io
import re
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from ralm.corpus.formats import office
from ralm.corpus.splitting import Splitting, make_passages
from ralm.errors import CorpusError
from ralm.records import Document, Heading
from tests.corpus.reading import only

docx = pytest.importorskip("docx")
openpyxl = pytest.importorskip("openpyxl")
pptx = pytest.importorskip("pptx")


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


def test_a_spreadsheet(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Prices"
    sheet.append(["animal", "price", None, "since"])
    sheet.append(["dog\nRex", 120, None, date(2024, 1, 2)])
    sheet.append([None, None])
    sheet.append(["=1+1", 0.5, True])
    book.create_sheet("Empty")
    book.create_sheet("More").append(["goat"])
    book.properties.title = "The  Farm"
    book.save(tmp_path / "farm.xlsx")
    found = only(tmp_path / "farm.xlsx")
    text = "# Prices\nanimal\tprice\t\tsince\ndog Rex\t120\t\t2024-01-02 00:00:00\n\t0.5\tTrue\n# More\ngoat"
    assert (found.id, found.title, found.text) == ("farm.xlsx", "The Farm", text)
    assert [one.title for one in found.headings] == ["Prices", "More"]
    pieces = [*make_passages([found], Splitting(split="structure", words=8))]
    assert [(one.title, one.text.split("\n")[0]) for one in pieces][:2] == [
        ("The Farm > Prices", "# Prices"),
        ("The Farm > Prices", "animal\tprice\t\tsince"),
    ]


def test_a_spreadsheet_that_says_it_is_larger_than_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet["A1"], sheet["XFD300000"] = "whale", "far"
    path = tmp_path / "x.xlsx"
    path.write_bytes(saved(book))
    assert only(path).text == "# Sheet\nwhale\n" + "\t" * 16383 + "far"
    rows = '<row r="1"><c r="A1"><v>7</v></c></row><row r="999999999999"><c r="A999999999999"><v>8</v></c></row>'
    head = '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
    content = f"{head}{rows}</sheetData></worksheet>".encode()
    path.write_bytes(repacked(saved(book), {"xl/worksheets/sheet1.xml": content}))
    assert only(path).text == "# Sheet\n7"
    for row in range(1, 100):
        sheet.cell(row, 16384, "far")
    path.write_bytes(saved(book))
    monkeypatch.setattr(office, "_MAX_UNPACKED", 1 << 20)
    with pytest.raises(CorpusError, match="x.xlsx has sheets of more than 1 MiB; split it"):
        only(path)


def test_slides(tmp_path: Path) -> None:
    show = pptx.Presentation()
    first = show.slides.add_slide(show.slide_layouts[1])
    first.shapes.title.text = "The Farm"
    first.placeholders[1].text = "Rex keeps the sheep.\nAnna keeps Rex."
    first.notes_slide.notes_text_frame.text = "Say it slowly."
    second = show.slides.add_slide(show.slide_layouts[6])
    cells = second.shapes.add_table(2, 2, 0, 0, 99, 99).table
    for number, text in enumerate(["animal", "price", "dog", "120"]):
        cells.cell(number // 2, number % 2).text = text
    show.save(tmp_path / "farm.pptx")
    found = only(tmp_path / "farm.pptx")
    lines = ["# The Farm", "Rex keeps the sheep.", "Anna keeps Rex.", "Say it slowly.", "animal\tprice", "dog\t120"]
    assert (found.title, found.text.split("\n")) == ("The Farm", lines)
    assert [one.title for one in found.headings] == ["The Farm"]


def test_hidden_runs_of_a_document(tmp_path: Path) -> None:
    runs = "".join(
        f"<w:r><w:rPr>{properties}</w:rPr><w:t>{text}</w:t></w:r>"
        for properties, text in [
            ("<w:vanish/>", "no"),
            ('<w:vanish w:val="true"/>', "no"),
            ('<w:vanish w:val="0"/>', "a"),
            ("<w:b/>", "b"),
        ]
    )
    (tmp_path / "x.docx").write_bytes(with_body(f"<w:p>{runs}</w:p>"))
    assert only(tmp_path / "x.docx").text == "ab"


def test_hidden_sheets(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for state in ("visible", "hidden", "veryHidden"):
        sheet = book.create_sheet(state)
        sheet.append([f"of {state}"])
        sheet.sheet_state = state
    book.save(tmp_path / "x.xlsx")
    assert only(tmp_path / "x.xlsx").text == "# visible\nof visible"


def test_hidden_slides_and_shapes(tmp_path: Path) -> None:
    show = pptx.Presentation()
    for text, hides in (("shown", None), ("no slide", "0"), ("no shape", "shape")):
        slide = show.slides.add_slide(show.slide_layouts[6])
        shape = slide.shapes.add_textbox(0, 0, 99, 99)
        shape.text_frame.text = text
        if hides == "0":
            slide.element.set("show", "0")
        elif hides:
            shape._element.nvSpPr.cNvPr.set("hidden", "1")
    show.save(tmp_path / "x.pptx")
    assert only(tmp_path / "x.pptx").text == "shown"


DOCUMENT = saved(docx.Document())
NAMES = {".docx": "a DOCX", ".xlsx": "an Excel", ".pptx": "a PowerPoint"}
DAMAGED = [
    *((name, content) for name in NAMES for content in (b"no", b"PK\x03\x04 damaged", DOCUMENT[: len(DOCUMENT) // 2])),
    *(
        (".docx", repacked(DOCUMENT, changes))
        for changes in (
            {"word/document.xml": b"<broken"},
            {"word/document.xml": b"<other/>"},
            {"_rels/.rels": b"<Relationships/>"},
        )
    ),
]


@pytest.mark.parametrize(("name", "content"), DAMAGED)
def test_damaged_files_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"x{name}"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=re.escape(f"{path} is not {NAMES[name]} file, or damaged or encrypted: ")):
        only(path)


@pytest.mark.parametrize("name", NAMES)
def test_files_that_unpack_to_too_much_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "_MAX_UNPACKED", 1 << 20)
    path = tmp_path / f"x{name}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("huge.xml", b"0" * ((1 << 20) + 1))
    with pytest.raises(CorpusError, match="unpacks to more than 1 MiB"):
        only(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.xml", b"0")
    with pytest.raises(CorpusError, match="is packed in a way that office files are not; save it again"):
        only(path)


def test_parts_of_a_document_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "_MAX_XML", 1 << 20)
    path = tmp_path / "x.docx"
    document = docx.Document()
    document.add_paragraph("text")
    path.write_bytes(repacked(saved(document), {"word/media/picture.xml": b" " * (2 << 20)}))
    assert only(path).text == "text", "what is not read is not unpacked"
    path.write_bytes(repacked(saved(document), {"word/document.xml": b" " * (2 << 20)}))
    with pytest.raises(CorpusError, match=r"x.docx unpacks to more than 1 MiB of XML; split it\."):
        only(path)
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "boom"}">' for n in range(12))
    content = (
        f'<?xml version="1.0"?><!DOCTYPE x [{entities}]><w:document xmlns:w="http://schemas.openxmlformats.org/'
        'wordprocessingml/2006/main"><w:body><w:p><w:r><w:t>a &e11;</w:t></w:r></w:p></w:body></w:document>'
    )
    path.write_bytes(repacked(DOCUMENT, {"word/document.xml": content.encode()}))
    with pytest.raises(CorpusError, match="x.docx is not a DOCX file, or damaged or encrypted: Maximum entity amplif"):
        only(path)
