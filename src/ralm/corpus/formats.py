"""Readers for document formats: text, JSONL, DPR's TSV, Parquet. Each reads a stream.

Knows records and which of their fields make a document; knows nothing of where files are. Holds one record in memory
(for Parquet, one batch of records).
"""

import csv
import gzip
import json
import os
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ralm.controls import path_text
from ralm.corpus.fields import Fields
from ralm.corpus.headings import title_of
from ralm.corpus.maker import MEND, DocumentMaker
from ralm.corpus.text import decode, open_file, read_utf8
from ralm.errors import CorpusError
from ralm.records import Document

_DPR_COLUMNS: Final = ["id", "text", "title"]
_LONGEST_TSV_FIELD: Final = 1 << 27
_ROWS_A_BATCH: Final = 1024
_LINE_BREAKS: Final = re.compile(r"[\r\n]+")
_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_BYTES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def text_documents(files: Iterable[Path], root: Path, maker: DocumentMaker) -> Iterator[Document]:
    """One document per file: the path below `root` is the id, the first heading or file name the title (`title_of`)."""
    for file in files:
        try:
            text = read_utf8(file)
        except CorpusError as error:
            maker.broken_line(error)
            continue
        title = title_of(text, file.suffix.lower(), _LINE_BREAKS.sub(" ", path_text(file.stem)))
        yield Document(id=path_text(file.relative_to(root).as_posix()), title=title, text=text)


def jsonl_documents(path: Path, maker: DocumentMaker) -> Iterator[Document]:
    """One document per line, each a JSON object; blank lines are ignored."""
    for number, offset, line in _lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            document = maker.document(_json_record(line, where, offset), where, str(number))
        except CorpusError as error:
            maker.broken_line(error)
            continue
        yield document


def tsv_documents(path: Path, maker: DocumentMaker) -> Iterator[Document]:
    """DPR's passages: id, text and title separated by tabs, quoted as in CSV.

    If the first line is a header, `fields` names the columns to use; without a header the columns are DPR's. Quotes are
    read strictly: in the lenient default mode of `csv`, one unclosed quote would silently swallow the rest of the file.
    """
    columns: list[str] | None = None
    for line, row in _tsv_rows(path, maker):
        if columns is None:
            is_header = _is_header(row, maker.fields)
            columns = row if is_header else [maker.fields.id, maker.fields.text, maker.fields.title]
            if is_header:
                continue
        try:
            document = _tsv_document(row, columns, maker, f"{path}, line {line}", str(line))
        except CorpusError as error:
            maker.broken_line(error)
            continue
        yield document


def parquet_documents(files: Iterable[Path], maker: DocumentMaker) -> Iterator[Document]:
    """One document per row; row numbers continue from file to file, so that default ids are unique."""
    row = 0
    for file in files:
        for record in _parquet_records(file, maker):
            yield maker.document(record, f"{file}, row {row}", str(row))
            row += 1


def needed_columns(schema: pa.Schema, maker: DocumentMaker, where: str) -> list[str]:
    """The columns of a table that documents are made of; metadata of bytes, such as pictures, is not even read.

    Raises CorpusError, naming `where`, if there is no column with text.
    """
    if maker.fields.text not in schema.names:
        raise maker.no_text(where, schema.names)
    needed = []
    for name in maker.fields.needed(schema.names):
        if _has_bytes(schema.field(name).type) and name in maker.fields.metadata_of([name]):
            maker.no_json(name, "bytes")
        else:
            needed.append(name)
    return needed


def _has_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_bytes(kind.field(place).type) for place in range(kind.num_fields))
    value = getattr(kind, "value_type", None) or getattr(kind, "item_type", None)
    return _has_bytes(value) if value is not None else any(is_bytes(kind) for is_bytes in _BYTES)


def _json_record(line: bytes, where: str, offset: int) -> Mapping[str, object]:
    text = decode(line, where, offset=offset)
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise CorpusError(f"{where} is not JSON: {error.msg} at column {error.colno}.{MEND}") from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or brackets nested too deeply
        raise CorpusError(f"{where} cannot be read as JSON: {error}.{MEND}") from None
    if not isinstance(record, dict):
        raise CorpusError(f"{where} is JSON but not an object with fields.{MEND}")
    if _SURROGATE_ESCAPE.search(line) and _SURROGATE.search(json.dumps(record, ensure_ascii=False)):
        raise CorpusError(f"{where} holds a lone surrogate (half of a character), which is not valid text.{MEND}")
    return record


def _is_header(row: list[str], fields: Fields) -> bool:
    named = fields.text in row and (fields.id in row or fields.title in row)
    return named or (len(row) > 1 and row == _DPR_COLUMNS[: len(row)])


def _tsv_document(row: list[str], columns: list[str], maker: DocumentMaker, where: str, place: str) -> Document:
    if not 2 <= len(row) <= len(columns):
        raise CorpusError(f"{where} has {len(row)} tab-separated fields where {', '.join(columns)} are expected.{MEND}")
    return maker.document(dict(zip(columns, row, strict=False)), where, place)


def _tsv_rows(path: Path, maker: DocumentMaker) -> Iterator[tuple[int, list[str]]]:
    """The non-blank rows of a TSV file, each with the number of its first line.

    After a row with broken quotes, reading resumes at the line after the row's first line.
    """
    lines = _LinesOfARow(_decoded_lines(path, maker))
    rows = csv.reader(lines, delimiter="\t", strict=True)
    while True:
        lines.begin_row()
        try:
            row = _next_row(rows)
        except StopIteration:
            return
        except csv.Error as error:
            where = f"{path}, line {lines.number}"
            message = f"{where} is not quoted like CSV ({error}): a quote within quotes must be doubled.{MEND}"
            maker.broken_line(CorpusError(message))
            lines.go_back()
            continue
        if row:
            yield lines.number, row


def _next_row(rows: Iterator[list[str]]) -> list[str]:
    """The next row. The field size limit of `csv` applies to the whole process, so it is raised only for this call."""
    allowed = csv.field_size_limit(_LONGEST_TSV_FIELD)
    try:
        return next(rows)
    finally:
        csv.field_size_limit(allowed)


class _LinesOfARow(Iterator[str]):
    """An iterator of lines that can go back to the second line of the current row."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._again: deque[str] = deque()
        self._row: list[str] = []
        self.number = 1
        """The number of the first line of the row, from 1."""

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self._row.append(line)
        return line

    def begin_row(self) -> None:
        """Mark the next line as the first of a row."""
        self.number += len(self._row)
        self._row.clear()

    def go_back(self) -> None:
        """Go back to the second line of the row."""
        self._again.extendleft(reversed(self._row[1:]))
        del self._row[1:]


def _decoded_lines(path: Path, maker: DocumentMaker) -> Iterator[str]:
    """The lines of a file as text; a skipped line that is not UTF-8 becomes blank."""
    for number, offset, line in _lines(path):
        try:
            text = decode(line, f"{path}, line {number}", offset=offset)
        except CorpusError as error:
            maker.broken_line(error)
            text = "\n"
        yield text


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """The lines of a file, unpacked if it is gzipped, each with its number (from 1) and byte offset."""
    offset = 0
    with _opened(path) as stream:
        try:
            for number, line in enumerate(stream, 1):
                yield number, offset, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                offset += len(line)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorpusError(f"{path} is damaged and cannot be unpacked completely: {error}") from None
        except OSError as refused:
            raise CorpusError(f"{path} cannot be read: {refused.strerror}.") from None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    with open_file(path) as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            raise CorpusError(f"{path} is empty.")
        if path.suffix.lower() != ".gz":
            yield stream
        else:
            with gzip.GzipFile(fileobj=stream, mode="rb") as unpacked:
                yield unpacked


def _parquet_records(file: Path, maker: DocumentMaker) -> Iterator[Mapping[str, object]]:
    with open_file(file) as stream:
        try:
            with pq.ParquetFile(stream) as table:
                columns = needed_columns(table.schema_arrow, maker, str(file))
                for batch in table.iter_batches(batch_size=_ROWS_A_BATCH, columns=columns):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{file} is not a Parquet file, or damaged: {_first_line(error)}") from None
        except (ValueError, OverflowError) as error:  # text that is not UTF-8, or a date that Python cannot represent
            raise CorpusError(f"{file} holds a value that cannot be read: {error}.") from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
