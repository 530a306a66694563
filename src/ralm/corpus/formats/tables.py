"""Reads CSV, and TSV in the format of DPR's passages: a row is a document.

Quotes are read strictly: in the lenient default mode of `csv`, an unclosed quote would swallow the rest of the file.
"""

import csv
from collections.abc import Iterator
from itertools import chain
from typing import Final

from ralm.corpus.documents import SKIP_ADVICE, DocumentBuilder, check_columns, some_names
from ralm.corpus.files import File, decode, lines_of
from ralm.errors import CorpusError
from ralm.records import Document
from ralm.storage.remote import FilePath

_DPR_COLUMNS: Final = ["id", "text", "title"]
_MAX_FIELD: Final = 1 << 25
_SEPARATORS: Final = {"\t": "tab", ",": "comma"}


def tsv_documents(file: File, builder: DocumentBuilder) -> Iterator[Document]:
    """One document per row: id, text and title separated by tabs, quoted as in CSV.

    If the first line is a header, `fields` names the columns to use; without a header the columns are DPR's.
    """
    fields = builder.fields
    rows = _rows(file.path, "\t", builder)
    number, columns = first = next(rows, (0, []))
    named = fields.text in columns and (fields.id in columns or fields.title in columns)
    if not named and (len(columns) < 2 or columns != _DPR_COLUMNS[: len(columns)]):
        rows = chain([first] if number else [], rows)
        columns = [fields.id, fields.text, fields.title]
    yield from _documents(rows, columns, file, builder, "\t")


def csv_documents(file: File, builder: DocumentBuilder) -> Iterator[Document]:
    """One document per row; the first row names the columns.

    Raises CorpusError if two columns have one name, or if there is no column with text.
    """
    rows = _rows(file.path, ",", builder)
    _, columns = next(rows, (0, []))
    if builder.fields.text not in columns:
        raise builder.no_text(str(file.path), columns)
    check_columns(columns, str(file.path))
    yield from _documents(rows, columns, file, builder, ",")


def _documents(
    rows: Iterator[tuple[int, list[str]]], columns: list[str], file: File, builder: DocumentBuilder, separator: str
) -> Iterator[Document]:
    expected = some_names(columns)
    for line, row in rows:
        where = f"{file.path}, line {line}"
        with builder:
            if not min(2, len(columns)) <= len(row) <= len(columns):
                raise CorpusError(
                    f"{where} has {len(row)} {_SEPARATORS[separator]}-separated fields where {expected} are "
                    f"expected.{SKIP_ADVICE}"
                )
            yield builder.document(dict(zip(columns, row, strict=False)), where, f"{file.prefix}{line}")


def _rows(path: FilePath, separator: str, builder: DocumentBuilder) -> Iterator[tuple[int, list[str]]]:
    """The non-blank rows of a file, each with the number of its first line.

    A row with broken quotes is broken up to where the quotes tell: an unclosed one takes lines after it with it.
    """
    rows = csv.reader(_decoded_lines(path, builder), delimiter=separator, strict=True)
    while True:
        number = rows.line_num + 1
        try:
            row = next_row(rows)
        except StopIteration:
            return
        except csv.Error as error:
            last = rows.line_num
            lines = f"line {number} is" if last == number else f"lines {number} to {last} are"
            message = f"{lines} not quoted like CSV ({error}): a quote within quotes must be doubled.{SKIP_ADVICE}"
            with builder:
                raise CorpusError(f"{path}, {message}") from None
        else:
            if row:
                yield number, row


def next_row(rows: Iterator[list[str]]) -> list[str]:
    """The next row. The field size limit of `csv` applies to the whole process, so it is raised only for this call."""
    allowed = csv.field_size_limit(_MAX_FIELD)
    try:
        return next(rows)
    finally:
        csv.field_size_limit(allowed)


def _decoded_lines(path: FilePath, builder: DocumentBuilder) -> Iterator[str]:
    """The lines of a file as text; a skipped line that is not UTF-8 becomes blank."""
    for number, offset, line in lines_of(path):
        text = "\n"
        with builder:
            text = decode(line, f"{path}, line {number}", offset=offset)
        yield text
