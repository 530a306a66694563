"""The formats in which documents come, each read as a stream: text, JSONL, DPR's TSV, Parquet.

Knows what a record is and which of its fields make a document; knows nothing of where files are looked for. Holds
in memory no more than the record at hand (of Parquet, a batch of them).
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
_MEND: Final = "Mend it, or pass over such lines with --skip-bad."


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Which fields of a record hold a document's id, title and text. Only the text must be there: without an id a
    document is called by its line (from 1) or row (from 0), without a title it has none."""

    id: str = "id"
    title: str = "title"
    text: str = "text"


@dataclass(slots=True)
class SkippedLines:
    """The broken lines (in a folder of text, files) passed over: how many, and what was wrong with the first few."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, error: CorpusError) -> None:
        """Count one more."""
        self.count += 1
        if len(self.examples) < _EXAMPLES_KEPT:
            self.examples.append(str(error))


def text_documents(files: Iterable[Path], root: Path, skipped: SkippedLines | None) -> Iterator[Document]:
    """A document a file: its path below `root` as id, its first heading or its name as title (see `title_of`)."""
    for file in files:
        try:
            text = read_utf8(file)
        except CorpusError as error:
            _pass_over(error, skipped)
            continue
        title = title_of(text, file.suffix.lower(), _LINE_BREAKS.sub(" ", path_text(file.stem)))
        yield Document(id=path_text(file.relative_to(root).as_posix()), title=title, text=text)


def jsonl_documents(path: Path, fields: Fields, skipped: SkippedLines | None) -> Iterator[Document]:
    """A document a line, each line a JSON object; blank lines are nothing."""
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
    """DPR's passages: id, text and title between tabs, quoted as in CSV.

    Where the first line names columns, `fields` says which are meant; without such a line the columns are DPR's.
    Quotes are read strictly: read as leniently as `csv` does by default, one quote that is never closed would
    swallow the rest of the file without a word.
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
    """A document a row; rows are numbered on from file to file, so that no two get the same number for an id."""
    row = 0
    for file in files:
        for record in _parquet_records(file, fields):
            yield to_document(record, fields, f"{file}, row {row}", str(row))
            row += 1


def to_document(record: Mapping[str, object], fields: Fields, where: str, place: str) -> Document:
    """The document in a record, called `place` where it has no id; a text that is null counts as empty.

    Raises CorpusError, naming `where` and the fields there are, where the text is missing or is no text.
    """
    if fields.text not in record:
        raise CorpusError(_no_text(where, fields, list(record)))
    identifier, title, text = record.get(fields.id), record.get(fields.title), record[fields.text]
    if text is not None and not isinstance(text, str):
        raise CorpusError(f"{where}: the field {fields.text!r} is not text but {type(text).__name__}.")
    name = _name(identifier, fields.id, where)
    return Document(id=place if name is None else name, title=_name(title, fields.title, where) or "", text=text or "")


def _name(value: object, field_name: str, where: str) -> str | None:
    """An id or a title as text; None where there is none, for which tables have NaN too."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, _NOT_NAMES):
        raise CorpusError(f"{where}: the field {field_name!r} is no name or number but {type(value).__name__}.")
    return str(value)


def _pass_over(error: CorpusError, skipped: SkippedLines | None) -> None:
    if skipped is None:
        raise error
    skipped.add(error)


def _no_text(where: str, fields: Fields, names: list[str]) -> str:
    there = ", ".join(names) or "none"
    return f"{where} has no field {fields.text!r}; its fields are {there}. Name the right one with --text-field."


def _json_record(line: bytes, where: str, offset: int) -> Mapping[str, object]:
    text = decode(line, where, offset=offset)
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise CorpusError(f"{where} is not JSON: {error.msg} at column {error.colno}. {_MEND}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets nested as deep
        raise CorpusError(f"{where} cannot be read as JSON: {error}. {_MEND}") from None
    if not isinstance(record, dict):
        raise CorpusError(f"{where} is JSON but not an object with fields. {_MEND}")
    if b"\\u" in line and any(isinstance(value, str) and _SURROGATE.search(value) for value in record.values()):
        raise CorpusError(f"{where} holds half of a character (a lone surrogate), which is no text. {_MEND}")
    return record


def _is_header(row: list[str], fields: Fields) -> bool:
    named = fields.text in row and (fields.id in row or fields.title in row)
    return named or (len(row) > 1 and row == _DPR_COLUMNS[: len(row)])


def _tsv_document(row: list[str], columns: list[str], fields: Fields, where: str, place: str) -> Document:
    if not 2 <= len(row) <= len(columns):
        raise CorpusError(
            f"{where} has {len(row)} fields between tabs where {', '.join(columns)} are expected. {_MEND}"
        )
    return to_document(dict(zip(columns, row, strict=False)), fields, where, place)


def _tsv_rows(path: Path, skipped: SkippedLines | None) -> Iterator[tuple[int, list[str]]]:
    """The rows of a TSV file that are not blank, each with the number of its first line.

    After a row that is not quoted well reading goes on in the line after its first, wherever the quote had led.
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
            message = f"{where} is not quoted as CSV is ({error}): a quote within quotes must stand twice. {_MEND}"
            _pass_over(CorpusError(message), skipped)
            lines.go_back()
            continue
        if row:
            yield lines.number, row


def _next_row(rows: Iterator[list[str]]) -> list[str]:
    """The next row; the length that `csv` allows for a field holds for the whole process, so it is ours only here."""
    allowed = csv.field_size_limit(_LONGEST_TSV_FIELD)
    try:
        return next(rows)
    finally:
        csv.field_size_limit(allowed)


class _LinesOfARow(Iterator[str]):
    """Lines, of which those read since the row began can be read again, all but its first."""

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
        """Say that the next line is the first of a row."""
        self.number += len(self._row)
        self._row.clear()

    def go_back(self) -> None:
        """Go back to the second line of the row."""
        self._again.extendleft(reversed(self._row[1:]))
        del self._row[1:]


def _decoded_lines(path: Path, skipped: SkippedLines | None) -> Iterator[str]:
    """The lines of a file as text; one that is not UTF-8 and may be passed over becomes blank."""
    for number, offset, line in _lines(path):
        try:
            text = decode(line, f"{path}, line {number}", offset=offset)
        except CorpusError as error:
            _pass_over(error, skipped)
            text = "\n"
        yield text


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """The lines of a file, each with its number from 1 and the byte it begins at, unpacked where it is gzipped."""
    offset = 0
    with _opened(path) as stream:
        try:
            for number, line in enumerate(stream, 1):
                yield number, offset, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                offset += len(line)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorpusError(f"{path} is damaged, it cannot be unpacked to its end: {error}") from None
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
        except (ValueError, OverflowError) as error:  # text that is not UTF-8, a date that Python has not
            raise CorpusError(f"{file} holds a value that cannot be read: {error}.") from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
