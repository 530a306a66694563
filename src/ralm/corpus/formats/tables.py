"""Reads CSV, and TSV in the format of DPR's passages: a row is a document. Excel's ways to write them are understood.

Quotes are read strictly: in the lenient default mode of `csv`, an unclosed quote would swallow the rest of the file.
"""

import csv
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from ralm.corpus.documents import SKIP_ADVICE, DocumentBuilder, check_columns, some_names
from ralm.corpus.files import WESTERN, File, decode, likely_encoding, lines_of
from ralm.errors import CorpusError, RalmWarning
from ralm.records import Document

_DPR_COLUMNS: Final = ["id", "text", "title"]
_MAX_FIELD: Final = 1 << 25
_SEPARATORS: Final = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_NAMED_SEPARATOR: Final = re.compile(r'"?sep=(.)"?;*\s*')
"""A first line for Excel."""
_HEADER_LINES: Final = 100
_LINES_GUESSED: Final = 1000


def tsv_documents(file: File, builder: DocumentBuilder) -> Iterator[Document]:
    """Yield one document per row; the columns are DPR's (id, text, title) unless a header has those of `fields`."""
    fields = builder.fields
    rows = _rows(_decoded_lines(file, builder), "\t", file, builder)
    number, columns = first = next(rows, (0, []))
    named = fields.text in columns and (fields.id in columns or fields.title in columns)
    if not named and (len(columns) < 2 or columns != _DPR_COLUMNS[: len(columns)]):
        rows = chain([first] if number else [], rows)
        columns = [fields.id, fields.text, fields.title]
    yield from _documents(rows, columns, file, builder, "\t")


def csv_documents(file: File, builder: DocumentBuilder) -> Iterator[Document]:
    """Yield one document per row; the columns are separated by that sign by which the header has a column with text."""
    lines = _decoded_lines(file, builder)
    first = [*islice(lines, _HEADER_LINES)]
    named = _NAMED_SEPARATOR.fullmatch(first[0]) if first else None
    if named is not None:
        first[0] = "\n"
    separators = [named[1]] if named is not None else [*_SEPARATORS]
    headers = {separator: _header(first, separator) for separator in separators}
    separator = max(headers, key=lambda sign: (builder.fields.text in headers[sign], len(headers[sign])))
    rows = _rows(chain(first, lines), separator, file, builder)
    _, columns = next(rows, (0, []))
    if builder.fields.text not in columns:
        raise builder.no_text(str(file.path), columns)
    check_columns(columns, str(file.path))
    yield from _documents(rows, columns, file, builder, separator)


def _header(lines: Sequence[str], separator: str) -> list[str]:
    """Return the first row of lines; empty if its quotes are broken."""
    try:
        return next(filter(None, csv.reader(lines, delimiter=separator, strict=True)), [])
    except csv.Error:
        return []


def _documents(
    rows: Iterator[tuple[int, list[str]]], columns: list[str], file: File, builder: DocumentBuilder, separator: str
) -> Iterator[Document]:
    expected, kind = some_names(columns), _SEPARATORS.get(separator, repr(separator))
    for line, row in rows:
        where = f"{file.path}, line {line}"
        with builder:
            if not min(2, len(columns)) <= len(row) <= len(columns):
                raise CorpusError(
                    f"{where} has {len(row)} {kind}-separated fields where {expected} are expected.{SKIP_ADVICE}"
                )
            yield builder.document(dict(zip(columns, row, strict=False)), where, file, line)


def _rows(
    lines: Iterator[str], separator: str, file: File, builder: DocumentBuilder
) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-blank rows of a file, each with the number of its first line.

    A row with broken quotes is broken up to where the quotes tell: an unclosed one takes lines after it with it.
    """
    rows = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        number = rows.line_num + 1
        try:
            row = next_row(rows)
        except StopIteration:
            return
        except csv.Error as error:
            last = rows.line_num
            place = f"line {number} is" if last == number else f"lines {number} to {last} are"
            message = f"{place} not quoted like CSV ({error}): a quote within quotes must be doubled.{SKIP_ADVICE}"
            with builder:
                raise CorpusError(f"{file.path}, {message}") from None
        else:
            if row:
                yield number, row


def next_row(rows: Iterator[list[str]]) -> list[str]:
    """Return the next row, with a limit of field sizes for this call, since `csv` has one for the whole process."""
    allowed = csv.field_size_limit(_MAX_FIELD)
    try:
        return next(rows)
    finally:
        csv.field_size_limit(allowed)


def _decoded_lines(file: File, builder: DocumentBuilder) -> Iterator[str]:
    """Yield the lines of a file as text; the first that is not ASCII decides whether it seems to be Windows-1252."""
    encoding, is_ascii = file.encoding, True
    for number, offset, line in lines_of(file.path, encoding):
        if is_ascii and not line.isascii():
            is_ascii = False
            if encoding is None and _is_western(file, line):
                encoding = WESTERN
                warnings.warn(
                    f"{file.path} is not UTF-8 and is read as {WESTERN} (Windows-1252); name its `encoding` if it is "
                    "another.",
                    RalmWarning,
                    stacklevel=2,
                )
        text = "\n"
        with builder:
            text = decode(line, f"{file.path}, line {number}", offset=offset, encoding=encoding)
        yield text


def _is_western(file: File, line: bytes) -> bool:
    """Return whether a file with this line seems to be Windows-1252 and no UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError:
        not_ascii = (line for _, _, line in lines_of(file.path) if not line.isascii())
        return likely_encoding(b"".join(islice(not_ascii, _LINES_GUESSED))) == WESTERN
    return False
