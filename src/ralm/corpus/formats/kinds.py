"""Which reader reads a file, by its suffix. The readers that need the extra `files` are loaded when they are needed."""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from ralm.corpus.formats.file import GZIP, File, suffix_of
from ralm.corpus.formats.json_records import json_documents, jsonl_documents
from ralm.corpus.formats.parquet import parquet_documents
from ralm.corpus.formats.tables import csv_documents, tsv_documents
from ralm.corpus.formats.text import text_documents
from ralm.corpus.headings import MARKDOWN_SUFFIXES, RST_SUFFIXES
from ralm.corpus.maker import DocumentMaker
from ralm.errors import MissingExtraError
from ralm.records import Document

Reader: TypeAlias = Callable[[File, DocumentMaker], Iterator[Document]]


def _html() -> Reader:
    from ralm.corpus.formats.html import html_documents

    return html_documents


def _pdf() -> Reader:
    from ralm.corpus.formats.pdf import pdf_documents

    return pdf_documents


def _docx() -> Reader:
    from ralm.corpus.formats.docx import docx_documents

    return docx_documents


_READERS: Final[dict[str, Reader]] = {
    **dict.fromkeys((".txt", ".text", *MARKDOWN_SUFFIXES, *RST_SUFFIXES), text_documents),
    ".jsonl": jsonl_documents,
    ".ndjson": jsonl_documents,
    ".json": json_documents,
    ".tsv": tsv_documents,
    ".csv": csv_documents,
    ".parquet": parquet_documents,
}
_OF_THE_EXTRA: Final[dict[str, Callable[[], Reader]]] = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), _html),
    ".pdf": _pdf,
    ".docx": _docx,
}
_PACKAGES: Final = {"lxml": "lxml", "pypdf": "pypdf", "docx": "python-docx"}
_NEVER_PACKED: Final = (".parquet", ".pdf", ".docx")
SUFFIXES: Final = (*_READERS, *_OF_THE_EXTRA)
"""The suffixes of all kinds that are known. Most may be followed by .gz."""


def is_known(name: str) -> bool:
    """Whether a file with this name is of a known kind."""
    suffix = suffix_of(name)
    return suffix in SUFFIXES and not (suffix in _NEVER_PACKED and name.lower().endswith(GZIP))


def reader_of(suffix: str) -> Reader:
    """The reader for files of a known kind, by suffix.

    Raises MissingExtraError if it needs a package that is not installed.
    """
    if suffix in _READERS:
        return _READERS[suffix]
    try:
        return _OF_THE_EXTRA[suffix]()
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise MissingExtraError(
            f"reading {suffix} files needs the package {_PACKAGES[error.name]}: pip install 'ralm[files]'."
        ) from None
