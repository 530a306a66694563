"""Reads the text of PDF files, page by page, with the headings that their outline lists. Needs the extra `files`.

pypdf may raise almost any error for a damaged file; each becomes a CorpusError.
"""

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import pypdf
from pypdf.errors import DependencyError

from ralm.corpus import documents, files
from ralm.errors import CorpusError, MissingExtraError, short_message
from ralm.records import Document, Heading

_LINE: Final = re.compile(r"[^\n]+")
_NUMBER: Final = 12
"""Characters that may stand before a title on its line, such as the number of a chapter."""

# pypdf logs oddities of files; without a handler of the user's own they would appear on the terminal
logging.getLogger("pypdf").addHandler(logging.NullHandler())


def pdf_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield a document for each page with text, with the id and title of the file; the metadata `page` counts from 1.

    Raises CorpusError if the file is damaged, encrypted (unless an empty password opens it), or has no text at all.
    """
    with files.open_file(file.path) as stream:
        with _errors(f"{file.path} is not a PDF file, or damaged"):
            reader = pypdf.PdfReader(stream)
        with _errors(f"{file.path} is encrypted and cannot be read"):
            if reader.is_encrypted and not reader.decrypt(""):
                raise CorpusError(f"{file.path} is encrypted and needs a password; decrypt it first.")
        with _errors(f"{file.path} is damaged"):
            pages = range(1, len(reader.pages) + 1)
        title, outline = _title(reader) or file.title, _outline(reader)
        has_text = False
        blank: list[int] = []
        for page in pages:
            text = None
            with builder, _errors(f"{file.path}, page {page} cannot be read"):
                text = _valid(reader.pages[page - 1].extract_text()).strip()
            if text:
                has_text = True
                yield builder.whole(file.id, title, text, {"page": page}, _headings(text, page, outline))
            elif text is not None:
                blank.append(page)
        if not has_text:
            raise CorpusError(f"{file.path} has no text on any page; if it is scanned, run OCR on it.")
        for page in blank:
            builder.skipped.add(documents.NO_TEXT_PAGES, f"{file.path}, page {page}")


class _Entry(NamedTuple):
    """An entry of an outline: its page (from 1), its level (from 1) and its title."""

    page: int
    level: int
    title: str


def _outline(reader: pypdf.PdfReader) -> list[_Entry]:
    """Return the entries of the outline, in the order of their pages; none if it is damaged."""
    with suppress(CorpusError), _errors(""):
        return sorted(_entries(reader, reader.outline, 1), key=lambda entry: entry.page)
    return []


def _entries(reader: pypdf.PdfReader, outline: list[Any], level: int) -> Iterator[_Entry]:
    for node in outline:
        if isinstance(node, list):
            yield from _entries(reader, node, level + 1)
        elif (page := reader.get_destination_page_number(node)) is not None and (title := _one_line(node.title)):
            yield _Entry(page + 1, level, title)


def _headings(text: str, page: int, outline: Sequence[_Entry]) -> list[Heading]:
    """Return the headings that a page begins under, then its own.

    A heading is where a line has the title of its entry, or ends with it after a number, else where the last one ends.
    """
    above, on_page, end = list[Heading](), list[Heading](), 0
    for entry in outline:
        if entry.page < page:
            outer = [heading for heading in above if heading.level < entry.level]
            above = [*outer, Heading(0, 0, entry.level, entry.title)]
        elif entry.page == page:
            begin = end
            for line in _LINE.finditer(text, end):
                shown = " ".join(line.group().split())
                if shown.endswith(entry.title) and len(shown) <= len(entry.title) + _NUMBER:
                    begin, end = line.span()
                    break
            on_page.append(Heading(begin, end, entry.level, entry.title))
    return [*above, *on_page]


def _title(reader: pypdf.PdfReader) -> str:
    """Return the title in the properties; empty if there is none, or they are damaged."""
    with suppress(CorpusError), _errors(""):
        return _one_line(reader.metadata and reader.metadata.title)
    return ""


def _one_line(text: object) -> str:
    return " ".join(_valid(str(text or "")).split())


def _valid(text: str) -> str:
    """Return the text with line feeds, without halves of characters, which fonts of PDF files may map to."""
    return files.line_feeds(text.encode("utf-8", "replace").decode())


@contextmanager
def _errors(wrong: str) -> Iterator[None]:
    """Turn any error of the library into one that begins with `wrong`, and hide its warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except CorpusError:
        raise
    except DependencyError as error:
        raise MissingExtraError(f"{wrong}: {error}. Install it with pip install 'ralm[files]'.") from None
    except MemoryError:
        raise CorpusError(f"{wrong}: it does not fit into memory.") from None
    except Exception as error:
        raise CorpusError(f"{wrong}: {short_message(error)}.") from error
