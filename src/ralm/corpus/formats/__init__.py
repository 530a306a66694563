"""The formats of files with documents: which module reads a file, by its suffix.

A new format is a module with a function of the type `DocumentReader`, and a line in `_FORMATS`.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Final, NamedTuple, TypeAlias

from ralm.corpus.documents import DocumentBuilder
from ralm.corpus.files import File
from ralm.errors import extra
from ralm.records import Document

DocumentReader: TypeAlias = Callable[[File, DocumentBuilder], Iterator[Document]]
"""Yields the documents of a file."""


class _Format(NamedTuple):
    """A format: the function that reads it, and the package of the extra `files` that this needs."""

    suffixes: tuple[str, ...]
    module: str
    function: str
    gzip: bool = True
    package: str | None = None


JSON_LINES: Final = (".jsonl", ".ndjson")
_FORMATS: Final = (
    _Format((".txt", ".text", ".md", ".markdown", ".rst", ".yaml", ".yml"), "text", "text_documents"),
    _Format(JSON_LINES, "records", "jsonl_documents"),
    _Format((".json",), "records", "json_documents"),
    _Format((".tsv",), "records", "tsv_documents"),
    _Format((".csv",), "records", "csv_documents"),
    _Format((".parquet",), "arrow", "parquet_documents", gzip=False),
    _Format((".html", ".htm", ".xhtml"), "html", "html_documents", package="turbohtml"),
    _Format((".pdf",), "pdf", "pdf_documents", gzip=False, package="pypdf"),
    _Format((".docx",), "office", "docx_documents", gzip=False, package="lxml"),
    _Format((".xlsx",), "office", "sheet_documents", gzip=False, package="openpyxl"),
    _Format((".pptx",), "office", "slide_documents", gzip=False, package="pptx"),
    _Format((".ipynb",), "text", "notebook_documents"),
)
_BY_SUFFIX: Final = {suffix: form for form in _FORMATS for suffix in form.suffixes}
_PACKAGES: Final = tuple(form.package for form in _FORMATS if form.package)
SUFFIXES: Final = tuple(_BY_SUFFIX)
"""The suffixes of all known formats. Most may be followed by .gz."""


def is_known(suffix: str, *, gzipped: bool) -> bool:
    """Return whether a suffix is that of a known format, which may be gzipped if `gzipped`."""
    form = _BY_SUFFIX.get(suffix)
    return form is not None and (form.gzip or not gzipped)


def document_reader(suffix: str) -> DocumentReader:
    """Return the reader of files with a known suffix; MissingExtraError if its package is not installed."""
    form = _BY_SUFFIX[suffix]
    with extra("files", f"reading {suffix} files needs", _PACKAGES):
        if form.package is not None:
            import_module(form.package)
        reader: DocumentReader = getattr(import_module(f"{__name__}.{form.module}"), form.function)
    return reader
