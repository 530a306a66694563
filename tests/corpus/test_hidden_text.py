"""What an author hides is no text of a document: comments of Markdown, hidden runs, sheets, slides and shapes."""

import json
from pathlib import Path

import pytest

from tests.corpus.reading import only
from tests.corpus.test_docx import with_body


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("x.md", "a<!-- no -->b\n", "ab\n"),
        ("x.markdown", "a\n<!-- no\n\nno --> b\n", "a\n b\n"),
        ("x.md", "a\n<!-- no\n\nno", "a\n"),
        ("x.md", "a <!-- b\n", "a <!-- b\n"),
        ("x.md", "[//]: # (no)\n[comment]: <> (no)\n[1]: http://a.b\n", "\n\n[1]: http://a.b\n"),
        ("x.md", "a `<!-- b -->` ``<!-- ` -->``", "a `<!-- b -->` ``<!-- ` -->``"),
        ("x.md", "```\n<!-- a -->\n```\n<!-- no -->b", "```\n<!-- a -->\n```\nb"),
        ("x.md", "> ~~~\n> <!-- a -->\n> ~~~\n", "> ~~~\n> <!-- a -->\n> ~~~\n"),
        ("x.txt", "a<!-- b -->c", "a<!-- b -->c"),
        ("x.rst", "a\n\n.. no\n\n   no\n.. no: no\n\nb", "a\n\n\n\n\nb"),
        ("x.rst", ".. note:: a\n\n   b\n\n.. _c:\n\n.. [1] d\n", ".. note:: a\n\n   b\n\n.. _c:\n\n.. [1] d\n"),
    ],
)
def test_comments_of_markup(name: str, content: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert only(tmp_path / name).text == text


def test_comments_of_a_notebook(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["<!-- no -->a"]},
        {"cell_type": "code", "source": ["x = '<!-- b -->'"]},
        {"cell_type": "markdown", "source": ["<!-- no -->"]},
    ]
    (tmp_path / "x.ipynb").write_text(json.dumps({"cells": cells}))
    assert only(tmp_path / "x.ipynb").text == "a\n\n```\nx = '<!-- b -->'\n```"


@pytest.mark.parametrize("part", ["<!-- ", "` `` ", "```\n", "```", ".. a\n\n\n", " \n", "[//]: "])
def test_comments_are_found_in_linear_time(part: str, tmp_path: Path) -> None:
    for name in ("x.md", "x.rst"):
        (tmp_path / name).write_text("]: a\n\n" + part * 300_000)
        only(tmp_path / name)


def test_hidden_runs_of_a_document(tmp_path: Path) -> None:
    pytest.importorskip("docx")
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
    book = pytest.importorskip("openpyxl").Workbook()
    for state in ("visible", "hidden", "veryHidden"):
        sheet = book.create_sheet(state)
        sheet.append([f"of {state}"])
        sheet.sheet_state = state
    book.save(tmp_path / "x.xlsx")
    assert only(tmp_path / "x.xlsx").text == "# visible\nof visible"


def test_hidden_slides_and_shapes(tmp_path: Path) -> None:
    show = pytest.importorskip("pptx").Presentation()
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
