"""Reads spreadsheets (.xlsx) and slides (.pptx). Needs the extra `files`.

A small file may unpack to any size: a file whose parts say that they have more than a limit is not read.
"""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

from ralm.corpus import documents, files
from ralm.corpus.structure import plain_markdown
from ralm.errors import CorpusError, RalmError, short_message
from ralm.records import Document

_MAX_UNPACKED: Final = 1 << 28
_FALSE: Final = ("0", "false")
_FOREIGN: Final = {".xlsx": "an Excel file", ".pptx": "a PowerPoint file"}


def sheet_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield the file as a document: each shown sheet under its name, a line a row, with formulas' values as saved."""
    from openpyxl import load_workbook

    lines: list[str] = []
    with _opened(file) as stream:
        book = load_workbook(stream, read_only=True, data_only=True)
        for sheet in (sheet for sheet in book.worksheets if sheet.sheet_state == "visible"):
            rows = [_row(row) for row in sheet.iter_rows(values_only=True)]
            if any(rows):
                lines += [f"# {sheet.title}", plain_markdown("\n".join(row for row in rows if row))]
        title = book.properties.title or file.title
        book.close()
    yield builder.markdown(file, title, "\n".join(lines))


def slide_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield the file as a document: the text of its shown slides, each under its title, with tables and notes."""
    from pptx import Presentation

    lines: list[str] = []
    with _opened(file) as stream:
        show = Presentation(stream)
        for slide in (slide for slide in show.slides if slide.element.get("show") not in _FALSE):
            heading = slide.shapes.title
            if heading is not None and heading.text_frame.text.strip():
                lines.append(f"# {' '.join(heading.text_frame.text.split())}")
            for shape in slide.shapes:
                if heading is None or shape.shape_id != heading.shape_id:
                    lines += map(plain_markdown, _shape_lines(shape))
            if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
                lines += plain_markdown(slide.notes_slide.notes_text_frame.text).split("\n")
        title = show.core_properties.title
    yield builder.markdown(file, title, "\n".join(line for line in lines if line.strip()))


@contextmanager
def _opened(file: files.File) -> Iterator[BinaryIO]:
    """Open a file for reading; CorpusError if it unpacks to too much, or for whatever its reader raises."""
    try:
        with files.open_file(file.path) as stream:
            with zipfile.ZipFile(stream) as archive:
                unpacked = sum(part.file_size for part in archive.infolist())
            if unpacked > _MAX_UNPACKED:
                raise CorpusError(f"{file.path} unpacks to more than {_MAX_UNPACKED >> 20:,} MiB; split it.")
            stream.seek(0)
            yield stream
    except RalmError:
        raise
    except Exception as error:  # noqa: BLE001  # the packages raise many kinds
        kind = _FOREIGN[file.suffix]
        raise CorpusError(f"{file.path} is not {kind}, or damaged or encrypted: {short_message(error)}.") from None


def _row(values: tuple[Any, ...]) -> str:
    """Return the cells of a row up to its last value, each on one line, with tabs between them."""
    cells = [" ".join(str(value).split()) if value is not None else "" for value in values]
    return "\t".join(cells).rstrip("\t") if any(cells) else ""


def _shape_lines(shape: Any) -> list[str]:
    """Return the lines of a shape: paragraphs, rows of its table, or lines of its shapes; none if it is hidden."""
    if shape._element.xpath("./*/p:cNvPr[@hidden='1' or @hidden='true']"):
        return []
    if shape.has_text_frame:
        return [paragraph.text for paragraph in shape.text_frame.paragraphs]
    if getattr(shape, "has_table", False):
        return [_row(tuple(cell.text for cell in row.cells)) for row in shape.table.rows]
    return [line for part in getattr(shape, "shapes", ()) for line in _shape_lines(part)]
