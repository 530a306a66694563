"""The formats of files with documents: which module reads a file, by its suffix.

A new format is a module with a function of the type `DocumentReader`, and a line in `_FORMATS`.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Final, NamedTuple, TypeAlias

from ralm.corpus.documents import DocumentBuilder
from ralm.corpus.files import File
from ralm.errors import MissingExtraError
from ralm.records import Document

DocumentReader: TypeAlias = Callable[[File, DocumentBuilder], Iterator[Document]]
"""Yields the documents of a file."""


class _Format(NamedTuple):
    """A format: the function that reads it, and the package that this needs, with its name in Python."""

    suffixes: tuple[str, ...]
    module: str
    function: str
    gzip: bool = True
    package: tuple[str, str] | None = None


JSON_LINES: Final = (".jsonl", ".ndjson")
_FORMATS: Final = (
    _Format((".txt", ".text", ".md", ".markdown", ".rst", ".yaml", ".yml"), "text", "text_documents"),
    _Format(JSON_LINES, "json_records", "jsonl_documents"),
    _Format((".json",), "json_records", "json_documents"),
    _Format((".tsv",), "tables", "tsv_documents"),
    _Format((".csv",), "tables", "csv_documents"),
    _Format((".parquet",), "arrow", "parquet_documents", gzip=False),
    _Format((".html", ".htm", ".xhtml"), "html", "html_documents", package=("turbohtml", "turbohtml")),
    _Format((".pdf",), "pdf", "pdf_documents", gzip=False, package=("pypdf", "pypdf")),
    _Format((".docx",), "docx", "docx_documents", gzip=False, package=("lxml", "lxml")),
    _Format((".xlsx",), "office", "sheet_documents", gzip=False, package=("openpyxl", "openpyxl")),
    _Format((".pptx",), "office", "slide_documents", gzip=False, package=("python-pptx", "pptx")),
    _Format((".ipynb",), "text", "notebook_documents"),
    _Format((".eml",), "mail", "mail_documents", package=("turbohtml", "turbohtml")),
)
_BY_SUFFIX: Final = {suffix: form for form in _FORMATS for suffix in form.suffixes}
SUFFIXES: Final = tuple(_BY_SUFFIX)
"""The suffixes of all known formats. Most may be followed by .gz."""


def is_known(suffix: str, *, gzipped: bool) -> bool:
    """Return whether a suffix is that of a known format, which may be gzipped if `gzipped`."""
    form = _BY_SUFFIX.get(suffix)
    return form is not None and (form.gzip or not gzipped)


def document_reader(suffix: str) -> DocumentReader:
    """Return the reader of files with a known suffix; MissingExtraError if its package is not installed."""
    form = _BY_SUFFIX[suffix]
    try:
        if form.package is not None:
            import_module(form.package[1])
        reader: DocumentReader = getattr(import_module(f"{__name__}.{form.module}"), form.function)
    except ModuleNotFoundError as error:
        if form.package is None or error.name != form.package[1]:
            raise
        raise MissingExtraError(
            f"reading {suffix} files needs the package {form.package[0]}: pip install 'ralm[files]'."
        ) from None
    return reader
