"""Reads DOCX files: paragraphs and tables in the order of the document. Needs the extra `files`.

Reads only the body: no headers, footers, notes, comments or tracked deletions.
"""

import zipfile
from collections.abc import Iterator
from typing import Any, Final

import docx
from docx.oxml.ns import qn

from ralm.corpus import documents, files
from ralm.errors import CorpusError, short_message
from ralm.records import Document
from ralm.storage.remote import FilePath

_MAX_XML: Final = 1 << 27
_MAX_BYTES: Final = 1 << 30
_XML: Final = (".xml", ".rels")
_PARAGRAPH, _TABLE, _ROW, _CELL = (qn(f"w:{name}") for name in ("p", "tbl", "tr", "tc"))
_TEXTS: Final = frozenset({qn("w:t"), "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"})
_CHARACTERS: Final = {
    qn("w:tab"): "\t",
    qn("w:br"): "\n",
    qn("w:cr"): "\n",
    qn("w:noBreakHyphen"): "-",
}
_NOT_SHOWN: Final = frozenset(
    # properties, moved or deleted text; `Fallback` repeats its neighbour for older programs
    [qn(f"w:{name}") for name in ("pPr", "rPr", "tblPr", "trPr", "tcPr", "sdtPr", "del", "moveFrom")]
    + ["{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"]
)


def docx_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """The file as a document. The title is that of its properties, otherwise its first heading, otherwise its name.

    Raises CorpusError if the file is damaged, encrypted, or unpacks to more than a document should.
    """
    try:
        _check_size(file.path)
        with files.open_file(file.path) as stream:
            document = docx.Document(stream)
        title = document.core_properties.title.strip() or _heading(document) or file.title
        text = "\n".join(_blocks(document.element.body))
    except CorpusError:
        raise
    except zipfile.BadZipFile:
        raise CorpusError(f"{file.path} is not a DOCX file, or damaged or encrypted: it is no zip archive.") from None
    except Exception as error:
        raise CorpusError(f"{file.path} is not a DOCX file, or damaged: {short_message(error)}.") from error
    yield builder.whole(file.id, " ".join(title.split()), text)


def _check_size(path: FilePath) -> None:
    """Raise CorpusError if the file unpacks to too much: a small file may unpack to any size."""
    with files.open_file(path) as stream, zipfile.ZipFile(stream) as archive:
        sizes = [(part.filename.lower(), part.file_size) for part in archive.infolist()]
    xml = sum(size for name, size in sizes if name.endswith(_XML))
    for size, limit, what in ((xml, _MAX_XML, "XML"), (sum(size for _, size in sizes), _MAX_BYTES, "data")):
        if size > limit:
            raise CorpusError(
                f"{path} unpacks to {size >> 20:,} MiB of {what}, and ralm reads {limit >> 20:,} MiB at most."
            )


def _heading(document: Any) -> str:
    """The first paragraph in the style of a heading or title."""
    for paragraph in document.paragraphs:
        style = paragraph.style.name if paragraph.style is not None else None
        if style and style.startswith(("Heading", "Title")) and paragraph.text.strip():
            return str(paragraph.text)
    return ""


def _blocks(element: Any) -> Iterator[str]:
    """The paragraphs of an element, and the rows of its tables with tabs between cells, at any depth."""
    for child in element:
        if child.tag == _PARAGRAPH:
            yield "".join(_pieces(child))
        elif child.tag == _TABLE:
            yield from _rows(child)
        elif child.tag not in _NOT_SHOWN:
            yield from _blocks(child)


def _rows(table: Any) -> Iterator[str]:
    for row in table.iter(_ROW):
        if next(row.iterancestors(_TABLE)) is table:  # tables within cells come with their cells
            cells = (cell for cell in row.iter(_CELL) if next(cell.iterancestors(_ROW)) is row)
            yield "\t".join(" ".join(block for block in _blocks(cell) if block) for cell in cells)


def _pieces(element: Any) -> Iterator[str]:
    """The texts within a paragraph; paragraphs within it, such as those of a text box, begin lines."""
    for child in element:
        if child.tag in _TEXTS:
            yield child.text or ""
        elif child.tag in _CHARACTERS:
            yield _CHARACTERS[child.tag]
        elif child.tag not in _NOT_SHOWN:
            if child.tag == _PARAGRAPH:
                yield "\n"
            yield from _pieces(child)
