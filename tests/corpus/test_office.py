"""Spreadsheets and slides, made with the packages that read them."""

import zipfile
from datetime import date
from pathlib import Path

import pytest

from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import Splitting, make_passages
from ralm.errors import CorpusError
from ralm.records import Document

openpyxl = pytest.importorskip("openpyxl")
pptx = pytest.importorskip("pptx")


def only(path: Path) -> Document:
    [document] = read_documents(str(path))
    return document


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


@pytest.mark.parametrize("name", ["x.xlsx", "x.pptx"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    for content in (b"no", b"PK\x03\x04 damaged"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CorpusError, match=r"is not an? (Excel|PowerPoint) file, or damaged or encrypted"):
            only(tmp_path / name)
    with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("huge.xml", b"0" * ((1 << 28) + 1))
    with pytest.raises(CorpusError, match="unpacks to more than 256 MiB"):
        only(tmp_path / name)
