"""Reads JSON Lines, JSON, CSV, and TSV in the format of DPR's passages: an object or a row is a document.

Quotes of tables are read strictly: in the lenient default mode of `csv`, an unclosed quote would swallow the rest of
the file.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from ralm.corpus import files
from ralm.corpus.documents import SKIP_ADVICE, DocumentBuilder, check_columns, some_names
from ralm.errors import CorpusError, InputError
from ralm.records import Document
from ralm.storage.remote import FilePath

_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()
_DPR_COLUMNS: Final = ["id", "text", "title"]
_SEPARATORS: Final = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_HEADER_LINES: Final = 100
csv.field_size_limit(max(csv.field_size_limit(), 1 << 25))  # of the whole process; passages may be whole books


def jsonl_documents(file: files.File, builder: DocumentBuilder) -> Iterator[Document]:
    """Yield one document per line, each a JSON object; blank lines are ignored."""
    for number, line in files.lines_of(file.path, file.encoding):
        where = f"{file.path}, line {number}"
        with builder:
            if line.strip():
                yield builder.document(record_of_line(line, where), where, file, number)


def json_documents(file: files.File, builder: DocumentBuilder) -> Iterator[Document]:
    """Yield one document per object, of an array or one after another, from 1 on; CorpusError if it is not JSON."""
    text = files.whole_text(file.path, encoding=file.encoding, most=files.MAX_JSON)
    may_be_invalid = _has_surrogates(text)
    for number, value in enumerate(values_of(text, str(file.path)), 1):
        where = f"{file.path}, object {number}"
        with builder:
            yield builder.document(_record(value, where, may_be_invalid=may_be_invalid), where, file, number)


def values_of(text: str, where: str) -> Iterator[object]:
    """Yield the elements of the array in a JSON text, or the values in it one after another; CorpusError if broken."""
    place = _after_space(text, 0)
    is_array = text.startswith("[", place)
    if is_array:
        place = _after_space(text, place + 1)
    is_open = is_array and not text.startswith("]", place)
    while is_open or (place < len(text) and not is_array):
        value, place = _value(text, place, where)
        yield value
        if is_array and not text.startswith((",", "]"), place):
            raise _wrong(where, "Expecting ',' or ']'", place)
        is_open = is_array and text.startswith(",", place)
        if is_open:
            place = _after_space(text, place + 1)
    if is_array and (end := _after_space(text, place + 1)) < len(text):
        raise _wrong(where, "Extra data", end)


def _value(text: str, place: int, where: str) -> tuple[object, int]:
    """Return the JSON value at a place, and the place after it and white space."""
    try:
        value, end = _DECODER.raw_decode(text, place)
    except json.JSONDecodeError as error:
        raise _wrong(where, error.msg, error.pos) from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or brackets nested too deeply
        raise _wrong(where, str(error), place) from None
    return value, _after_space(text, end)


def _after_space(text: str, place: int) -> int:
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]  # it matches nothing, too


def _wrong(where: str, what: str, place: int) -> CorpusError:
    return CorpusError(f"{where} is not JSON: {what} at character {place + 1:,}.")


def records_of_lines(path: FilePath) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the objects on the lines of JSON Lines, each with a name for its place; blank lines are ignored."""
    for number, line in files.lines_of(path):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, record_of_line(line, where, InputError)


def records_of_json(path: FilePath) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the objects of a JSON file, of an array or one after another, each with a name for its place."""
    text = files.whole_text(path, InputError, most=files.MAX_JSON)
    may_be_invalid = _has_surrogates(text)
    for number, value in enumerate(values_of(text, str(path)), 1):
        where = f"{path}, object {number}"
        yield where, _record(value, where, may_be_invalid=may_be_invalid)


def record_of_line(line: str, where: str, error: type[InputError] = CorpusError) -> Mapping[str, object]:
    """Return the object on a line of JSON Lines; CorpusError, naming `where`, if it is none, `error` if not UTF-8."""
    text = files.utf8_line(line, where, error)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as bad:
        raise CorpusError(f"{where} is not JSON: {bad.msg} at column {bad.colno}.{SKIP_ADVICE}") from None
    except (ValueError, RecursionError) as bad:
        raise CorpusError(f"{where} cannot be read as JSON: {bad}.{SKIP_ADVICE}") from None
    return _record(value, where, may_be_invalid=_has_surrogates(text))


def _record(value: object, where: str, *, may_be_invalid: bool) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise CorpusError(f"{where} is JSON but not an object with fields.{SKIP_ADVICE}")
    if may_be_invalid and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise CorpusError(
            f"{where} holds a lone surrogate (half of a character), which is not valid text.{SKIP_ADVICE}"
        )
    return value


def _has_surrogates(text: str) -> bool:
    """Return whether JSON text may hold halves of characters."""
    return _SURROGATE_ESCAPE.search(text) is not None


def tsv_documents(file: files.File, builder: DocumentBuilder) -> Iterator[Document]:
    """Yield one document per row; the columns are DPR's (id, text, title) unless a header has those of `fields`."""
    fields = builder.fields
    rows = _rows(_checked_lines(file, builder), "\t", file, builder)
    number, columns = first = next(rows, (0, []))
    named = fields.text in columns and (fields.id in columns or fields.title in columns)
    if not named and (len(columns) < 2 or columns != _DPR_COLUMNS[: len(columns)]):
        rows = chain([first] if number else [], rows)
        columns = [fields.id, fields.text, fields.title]
    yield from _documents(rows, columns, file, builder, "\t")


def csv_documents(file: files.File, builder: DocumentBuilder) -> Iterator[Document]:
    """Yield one document per row; the columns are separated by that sign by which the header has a column with text."""
    lines = _checked_lines(file, builder)
    first = [*islice(lines, _HEADER_LINES)]
    headers = {separator: _header(first, separator) for separator in _SEPARATORS}
    separator = max(headers, key=lambda sign: (builder.fields.text in headers[sign], len(headers[sign])))
    rows = _rows(chain(first, lines), separator, file, builder)
    _, columns = next(rows, (0, []))
    if builder.fields.text not in columns:
        raise builder.no_text(str(file.path), columns)
    check_columns(columns, str(file.path))
    yield from _documents(rows, columns, file, builder, separator)


def _checked_lines(file: files.File, builder: DocumentBuilder) -> Iterator[str]:
    """Yield the lines of a file; one that is not UTF-8 is empty."""
    for number, line in files.lines_of(file.path, file.encoding):
        text = "\n"
        with builder:
            text = files.utf8_line(line, f"{file.path}, line {number}")
        yield text


def _header(lines: Sequence[str], separator: str) -> list[str]:
    """Return the first row of lines; empty if its quotes are broken."""
    try:
        return next(filter(None, csv.reader(lines, delimiter=separator, strict=True)), [])
    except csv.Error:
        return []


def _rows(
    lines: Iterator[str], separator: str, file: files.File, builder: DocumentBuilder
) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-blank rows of a file, each with the number of its first line.

    A row with broken quotes is broken up to where the quotes tell: an unclosed one takes lines after it with it.
    """
    rows = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        number = rows.line_num + 1
        try:
            row = next(rows)
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


def _documents(
    rows: Iterator[tuple[int, list[str]]],
    columns: list[str],
    file: files.File,
    builder: DocumentBuilder,
    separator: str,
) -> Iterator[Document]:
    expected = some_names(columns)
    for line, row in rows:
        where = f"{file.path}, line {line}"
        with builder:
            if not min(2, len(columns)) <= len(row) <= len(columns):
                raise CorpusError(
                    f"{where} has {len(row)} {_SEPARATORS[separator]}-separated fields where {expected} are expected."
                    f"{SKIP_ADVICE}"
                )
            yield builder.document(dict(zip(columns, row, strict=False)), where, file, line)
