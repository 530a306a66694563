"""Reads office files as Markdown: DOCX, spreadsheets (.xlsx) and slides (.pptx). Needs the extra `files`.

Headers, footers, footnotes, comments, deletions and what is hidden are left out. A small file may unpack to any size:
one whose parts say that they have more than a limit is not read, nor is one with other methods of packing, which
unpack all at once.
"""

import posixpath
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO, Final

from lxml import etree

from ralm.corpus import documents, files
from ralm.corpus.structure import plain_markdown
from ralm.errors import CorpusError, RalmError, short_message
from ralm.records import Document

_MAX_UNPACKED: Final = 1 << 28
_MAX_XML: Final = 1 << 26
"""Bytes of a part of a DOCX file; its tree takes many times as many."""
_MAX_ROWS: Final = 1 << 20
"""Rows of a sheet in Excel."""
_FALSE: Final = ("0", "false", "off")
_KINDS: Final = {".docx": "a DOCX file", ".xlsx": "an Excel file", ".pptx": "a PowerPoint file"}
_WORD: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_PARAGRAPH, _TABLE, _ROW, _CELL, _NAME, _STYLE, _VALUE = (
    _WORD + name for name in ("p", "tbl", "tr", "tc", "name", "pStyle", "val")
)
_RELATION: Final = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"
_TITLE: Final = "{http://purl.org/dc/elements/1.1/}title"
_TEXTS: Final = frozenset({f"{_WORD}t", "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"})
_HIDDEN: Final = f"{_WORD}rPr/{_WORD}vanish"
_CHARACTERS: Final = {f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n", f"{_WORD}noBreakHyphen": "-"}
_NOT_SHOWN: Final = frozenset(
    # properties, moved or deleted text; `Fallback` repeats its neighbour for older programs
    [_WORD + name for name in ("pPr", "rPr", "tblPr", "trPr", "tcPr", "sdtPr", "del", "moveFrom")]
    + ["{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"]
)


@contextmanager
def _opened(file: files.File) -> Iterator[BinaryIO]:
    """Open a file for reading; CorpusError if it unpacks to too much, or for whatever its reader raises."""
    try:
        with files.open_file(file.path) as stream:
            with zipfile.ZipFile(stream) as archive:
                parts = archive.infolist()
            if sum(part.file_size for part in parts) > _MAX_UNPACKED:
                raise CorpusError(f"{file.path} unpacks to more than {_MAX_UNPACKED >> 20:,} MiB; split it.")
            if any(part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for part in parts):
                raise CorpusError(f"{file.path} is packed in a way that office files are not; save it again.")
            stream.seek(0)
            yield stream
    except RalmError:
        raise
    except Exception as error:  # noqa: BLE001  # the packages raise many kinds
        kind = _KINDS[file.suffix]
        raise CorpusError(f"{file.path} is not {kind}, or damaged or encrypted: {short_message(error)}.") from None


def docx_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield the paragraphs and tables, titled by its properties, its first heading or its name."""
    with _opened(file) as stream, zipfile.ZipFile(stream) as archive:
        package = _related(archive, "")
        main = package["officeDocument"]
        body = _part(archive, main).find(f"{_WORD}body")
        properties = package.get("core-properties")
        title = (_part(archive, properties).findtext(_TITLE) or "").strip() if properties else ""
        text = "\n".join(_blocks(body, _styles(archive, main)))
    yield builder.markdown(file, title, text)


def _part(archive: zipfile.ZipFile, name: str) -> Any:
    """Return the root of a part, which is read as far as the limit allows; KeyError if there is no such part."""
    with archive.open(name) as part:
        content = part.read(_MAX_XML + 1)
    if len(content) > _MAX_XML:
        raise CorpusError(f"{archive.filename} unpacks to more than {_MAX_XML >> 20:,} MiB of XML; split it.")
    return etree.fromstring(content, etree.XMLParser(resolve_entities=False, no_network=True))


def _related(archive: zipfile.ZipFile, name: str) -> dict[str, str]:
    """Return the names of the parts that a part refers to, by the kind of reference; the empty name is the file."""
    folder, file = posixpath.split(name)
    names = {}
    for relation in _part(archive, posixpath.join(folder, "_rels", f"{file}.rels")).iter(_RELATION):
        if relation.get("TargetMode") != "External":
            target = posixpath.join("/", folder, relation.get("Target", ""))
            names[relation.get("Type", "").rpartition("/")[2]] = posixpath.normpath(target).lstrip("/")
    return names


def _styles(archive: zipfile.ZipFile, main: str) -> dict[str, str]:
    """Return the names of the styles of the main part, by id; those of headings are English in any language."""
    try:
        styles = _part(archive, _related(archive, main)["styles"])
    except KeyError:  # a file needs no styles
        return {}
    names = ((style, style.find(_NAME)) for style in styles.iterchildren(f"{_WORD}style"))
    return {style.get(f"{_WORD}styleId"): name.get(_VALUE, "") for style, name in names if name is not None}


def _level(paragraph: Any, styles: dict[str, str]) -> int:
    """Return the level of a paragraph in the style of a heading or title; 0 if it is none."""
    style = paragraph.find(f"{_WORD}pPr/{_STYLE}")
    name = ("" if style is None else styles.get(style.get(_VALUE), "")).lower()
    if not name.startswith(("heading", "title")):
        return 0
    return int(name[-1]) if name[-1] in "123456" else 6 if name[-1] in "789" else 1


def _blocks(element: Any, styles: dict[str, str]) -> Iterator[str]:
    """Yield the paragraphs of an element, and the rows of its tables, at any depth, as Markdown."""
    for child in element:
        if child.tag == _PARAGRAPH:
            text = "".join(_pieces(child))
            level = _level(child, styles) if text.strip() else 0
            yield f"{'#' * level} {' '.join(text.split())}" if level else plain_markdown(text)
        elif child.tag == _TABLE:
            yield from _table_rows(child)
        elif child.tag not in _NOT_SHOWN:
            yield from _blocks(child, styles)


def _table_rows(table: Any) -> Iterator[str]:
    for row in table.iter(_ROW):
        if next(row.iterancestors(_TABLE)) is table:  # tables within cells come with their cells
            cells = (cell for cell in row.iter(_CELL) if next(cell.iterancestors(_ROW)) is row)
            yield "\t".join(" ".join(block for block in _blocks(cell, {}) if block) for cell in cells)


def _pieces(element: Any) -> Iterator[str]:
    """Yield the texts within a paragraph; paragraphs within it, such as those of a text box, begin lines."""
    for child in element:
        if child.tag in _TEXTS:
            yield child.text or ""
        elif child.tag in _CHARACTERS:
            yield _CHARACTERS[child.tag]
        elif child.tag not in _NOT_SHOWN and not _is_hidden(child):
            if child.tag == _PARAGRAPH:
                yield "\n"
            yield from _pieces(child)


def _is_hidden(run: Any) -> bool:
    hidden = run.find(_HIDDEN)
    return hidden is not None and hidden.get(_VALUE) not in _FALSE


def sheet_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield the file as a document: each shown sheet under its name, a line a row, with formulas' values as saved."""
    from openpyxl import load_workbook

    lines, room = list[str](), _MAX_UNPACKED
    with _opened(file) as stream:
        book = load_workbook(stream, read_only=True, data_only=True)
        for sheet in (sheet for sheet in book.worksheets if sheet.sheet_state == "visible"):
            sheet.reset_dimensions()  # a file may say that it has any size
            rows: list[str] = []
            for row in filter(None, map(_row, islice(sheet.iter_rows(values_only=True), _MAX_ROWS))):
                rows.append(row)
                room -= len(row)
                if room < 0:
                    raise CorpusError(f"{file.path} has sheets of more than {_MAX_UNPACKED >> 20:,} MiB; split it.")
            if rows:
                lines += [f"# {sheet.title}", plain_markdown("\n".join(rows))]
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
