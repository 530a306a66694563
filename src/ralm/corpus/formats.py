"""Readers for document formats: text, JSONL, DPR's TSV, Parquet. Each reads a stream.

Knows records and which of their fields make a document; knows nothing of where files are. Holds one record in memory
(for Parquet, one batch of records).
"""

import csv
import gzip
import json
import math
import os
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ralm.controls import path_text
from ralm.corpus.fields import Fields
from ralm.corpus.headings import title_of
from ralm.corpus.text import decode, open_file, read_utf8
from ralm.errors import CorpusError
from ralm.records import Document

_EXAMPLES_KEPT: Final = 5
_DPR_COLUMNS: Final = ["id", "text", "title"]
_LONGEST_TSV_FIELD: Final = 1 << 27
_ROWS_A_BATCH: Final = 1024
_LINE_BREAKS: Final = re.compile(r"[\r\n]+")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NOT_NAMES: Final = (bytes, list, dict, tuple, set)
_MEND: Final = "Fix it, or skip such lines with `skipped=SkippedLines()`."


@dataclass(slots=True)
class SkippedLines:
    """Counts skipped broken lines (in a folder of text: files), and keeps the first few error messages."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, error: CorpusError) -> None:
        """Count a skipped line."""
        self.count += 1
        if len(self.examples) < _EXAMPLES_KEPT:
            self.examples.append(str(error))


def text_documents(files: Iterable[Path], root: Path, skipped: SkippedLines | None) -> Iterator[Document]:
    """One document per file: the path below `root` is the id, the first heading or file name the title (`title_of`)."""
    for file in files:
        try:
            text = read_utf8(file)
        except CorpusError as error:
            _pass_over(error, skipped)
            continue
        title = title_of(text, file.suffix.lower(), _LINE_BREAKS.sub(" ", path_text(file.stem)))
        yield Document(id=path_text(file.relative_to(root).as_posix()), title=title, text=text)


def jsonl_documents(path: Path, fields: Fields, skipped: SkippedLines | None) -> Iterator[Document]:
    """One document per line, each a JSON object; blank lines are ignored."""
    for number, offset, line in _lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            document = to_document(_json_record(line, where, offset), fields, where, str(number))
        except CorpusError as error:
            _pass_over(error, skipped)
            continue
        yield document


def tsv_documents(path: Path, fields: Fields, skipped: SkippedLines | None) -> Iterator[Document]:
    """DPR's passages: id, text and title separated by tabs, quoted as in CSV.

    If the first line is a header, `fields` names the columns to use; without a header the columns are DPR's. Quotes are
    read strictly: in the lenient default mode of `csv`, one unclosed quote would silently swallow the rest of the file.
    """
    columns: list[str] | None = None
    for line, row in _tsv_rows(path, skipped):
        if columns is None:
            is_header = _is_header(row, fields)
            columns = row if is_header else [fields.id, fields.text, fields.title]
            if is_header:
                continue
        try:
            document = _tsv_document(row, columns, fields, f"{path}, line {line}", str(line))
        except CorpusError as error:
            _pass_over(error, skipped)
            continue
        yield document


def parquet_documents(files: Iterable[Path], fields: Fields) -> Iterator[Document]:
    """One document per row; row numbers continue from file to file, so that default ids are unique."""
    row = 0
    for file in files:
        for record in _parquet_records(file, fields):
            yield to_document(record, fields, f"{file}, row {row}", str(row))
            row += 1


def to_document(record: Mapping[str, object], fields: Fields, where: str, place: str) -> Document:
    """The document in a record, with `place` as id if it has none; a null text counts as empty.

    Raises CorpusError, naming `where` and the existing fields, if the text is missing or not a string.
    """
    if fields.text not in record:
        raise CorpusError(_no_text(where, fields, list(record)))
    identifier, title, text = record.get(fields.id), record.get(fields.title), record[fields.text]
    if text is not None and not isinstance(text, str):
        raise CorpusError(f"{where}: the field {fields.text!r} is not text but {type(text).__name__}.")
    name = _name(identifier, fields.id, where)
    return Document(id=place if name is None else name, title=_name(title, fields.title, where) or "", text=text or "")


def _name(value: object, field_name: str, where: str) -> str | None:
    """An id or a title as text; None if it is missing, which tables may express as NaN."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, _NOT_NAMES):
        raise CorpusError(f"{where}: the field {field_name!r} must be text or a number, not {type(value).__name__}.")
    return str(value)


def _pass_over(error: CorpusError, skipped: SkippedLines | None) -> None:
    if skipped is None:
        raise error
    skipped.add(error)


def _no_text(where: str, fields: Fields, names: list[str]) -> str:
    there = ", ".join(names) or "none"
    return f"{where} has no field {fields.text!r}; its fields are {there}. Name the right one with `Fields.text`."


def _json_record(line: bytes, where: str, offset: int) -> Mapping[str, object]:
    text = decode(line, where, offset=offset)
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise CorpusError(f"{where} is not JSON: {error.msg} at column {error.colno}. {_MEND}") from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or brackets nested too deeply
        raise CorpusError(f"{where} cannot be read as JSON: {error}. {_MEND}") from None
    if not isinstance(record, dict):
        raise CorpusError(f"{where} is JSON but not an object with fields. {_MEND}")
    if b"\\u" in line and any(isinstance(value, str) and _SURROGATE.search(value) for value in record.values()):
        raise CorpusError(f"{where} holds a lone surrogate (half of a character), which is not valid text. {_MEND}")
    return record


def _is_header(row: list[str], fields: Fields) -> bool:
    named = fields.text in row and (fields.id in row or fields.title in row)
    return named or (len(row) > 1 and row == _DPR_COLUMNS[: len(row)])


def _tsv_document(row: list[str], columns: list[str], fields: Fields, where: str, place: str) -> Document:
    if not 2 <= len(row) <= len(columns):
        raise CorpusError(
            f"{where} has {len(row)} tab-separated fields where {', '.join(columns)} are expected. {_MEND}"
        )
    return to_document(dict(zip(columns, row, strict=False)), fields, where, place)


def _tsv_rows(path: Path, skipped: SkippedLines | None) -> Iterator[tuple[int, list[str]]]:
    """The non-blank rows of a TSV file, each with the number of its first line.

    After a row with broken quotes, reading resumes at the line after the row's first line.
    """
    lines = _LinesOfARow(_decoded_lines(path, skipped))
    rows = csv.reader(lines, delimiter="\t", strict=True)
    while True:
        lines.begin_row()
        try:
            row = _next_row(rows)
        except StopIteration:
            return
        except csv.Error as error:
            where = f"{path}, line {lines.number}"
            message = f"{where} is not quoted like CSV ({error}): a quote within quotes must be doubled. {_MEND}"
            _pass_over(CorpusError(message), skipped)
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


def _decoded_lines(path: Path, skipped: SkippedLines | None) -> Iterator[str]:
    """The lines of a file as text; a skipped line that is not UTF-8 becomes blank."""
    for number, offset, line in _lines(path):
        try:
            text = decode(line, f"{path}, line {number}", offset=offset)
        except CorpusError as error:
            _pass_over(error, skipped)
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


def _parquet_records(file: Path, fields: Fields) -> Iterator[Mapping[str, object]]:
    with open_file(file) as stream:
        try:
            with pq.ParquetFile(stream) as table:
                there = table.schema_arrow.names
                if fields.text not in there:
                    raise CorpusError(_no_text(str(file), fields, there))
                columns = [name for name in dict.fromkeys((fields.id, fields.title, fields.text)) if name in there]
                for batch in table.iter_batches(batch_size=_ROWS_A_BATCH, columns=columns):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{file} is not a Parquet file, or damaged: {_first_line(error)}") from None
        except (ValueError, OverflowError) as error:  # text that is not UTF-8, or a date that Python cannot represent
            raise CorpusError(f"{file} holds a value that cannot be read: {error}.") from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
