"""Reads DOCX files: paragraphs and tables in the order of the document. Needs the extra `files`.

Headers, footers, notes, comments and tracked deletions are left out. Only parts that the text is made of are unpacked,
up to a limit: a small file may unpack to any size.
"""

import posixpath
import zipfile
from collections.abc import Iterator
from typing import Any, Final

from lxml import etree

from ralm.corpus import documents, files
from ralm.corpus.structure import plain_markdown
from ralm.errors import CorpusError, RalmError, short_message
from ralm.records import Document

_MAX_XML: Final = 1 << 26
_PACKED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The methods of packing that `zipfile` unpacks piece by piece."""
_WORD: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_PARAGRAPH, _TABLE, _ROW, _CELL, _NAME, _STYLE, _VALUE = (
    _WORD + name for name in ("p", "tbl", "tr", "tc", "name", "pStyle", "val")
)
_RELATION: Final = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"
_TITLE: Final = "{http://purl.org/dc/elements/1.1/}title"
_TEXTS: Final = frozenset({f"{_WORD}t", "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"})
_HIDDEN: Final = f"{_WORD}rPr/{_WORD}vanish"
_FALSE: Final = ("0", "false", "off")
_CHARACTERS: Final = {f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n", f"{_WORD}noBreakHyphen": "-"}
_NOT_SHOWN: Final = frozenset(
    # properties, moved or deleted text; `Fallback` repeats its neighbour for older programs
    [_WORD + name for name in ("pPr", "rPr", "tblPr", "trPr", "tcPr", "sdtPr", "del", "moveFrom")]
    + ["{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"]
)


def docx_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield the file as Markdown, titled by its properties, its first heading or its name; CorpusError if damaged."""
    try:
        with files.open_file(file.path) as stream, zipfile.ZipFile(stream) as archive:
            parts = _Parts(archive, str(file.path))
            package = parts.related("")
            main = package["officeDocument"]
            body = parts.read(main).find(f"{_WORD}body")
            if body is None:
                raise KeyError("w:body")
            properties = package.get("core-properties")
            title = (parts.read(properties).findtext(_TITLE) or "").strip() if properties else ""
            text = "\n".join(_blocks(body, _styles(parts, main)))
    except RalmError:
        raise
    except zipfile.BadZipFile:
        raise CorpusError(f"{file.path} is not a DOCX file, or damaged or encrypted: it is no zip archive.") from None
    except KeyError as error:
        raise CorpusError(f"{file.path} is not a DOCX file, or damaged: it lacks {error}.") from None
    except Exception as error:
        raise CorpusError(f"{file.path} is not a DOCX file, or damaged: {short_message(error)}.") from error
    yield builder.markdown(file, title, text)


class _Parts:
    """The XML parts of an archive, read as far as the limit allows."""

    def __init__(self, archive: zipfile.ZipFile, where: str) -> None:
        self._archive = archive
        self._where = where
        self._budget = _MAX_XML

    def read(self, name: str) -> Any:
        """Return the root of a part; CorpusError beyond the limit, KeyError if there is no such part."""
        if name not in self._archive.NameToInfo:
            raise KeyError(name)
        packed = self._archive.getinfo(name)
        if packed.compress_type not in _PACKED:
            raise CorpusError(f"{self._where} is packed in a way that DOCX files are not; save it again.")
        with self._archive.open(packed) as part:
            content = part.read(self._budget + 1)
        self._budget -= len(content)
        if self._budget < 0:
            raise CorpusError(f"{self._where} unpacks to more than {_MAX_XML >> 20:,} MiB of XML; split it.")
        return etree.fromstring(content, etree.XMLParser(resolve_entities=False, no_network=True))

    def related(self, name: str) -> dict[str, str]:
        """Return the names of the parts that a part refers to, by the kind of reference; the empty name is the file."""
        folder, file = posixpath.split(name)
        relations = self.read(posixpath.join(folder, "_rels", f"{file}.rels")).iter(_RELATION)
        names = {}
        for relation in relations:
            if relation.get("TargetMode") != "External":
                target = posixpath.join("/", folder, relation.get("Target", ""))
                names[relation.get("Type", "").rpartition("/")[2]] = posixpath.normpath(target).lstrip("/")
        return names


def _styles(parts: _Parts, main: str) -> dict[str, str]:
    """Return the names of the styles of the main part, by id; those of headings are English in any language."""
    try:
        styles = parts.read(parts.related(main)["styles"])
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
            yield from _rows(child)
        elif child.tag not in _NOT_SHOWN:
            yield from _blocks(child, styles)


def _rows(table: Any) -> Iterator[str]:
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
