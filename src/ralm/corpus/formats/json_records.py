"""Reads JSON Lines, and JSON files with one object or an array of objects: each object is a document.

An array may be larger than memory: it is read piece by piece, and decoded object by object.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn

from ralm.corpus import documents, files
from ralm.errors import CorpusError
from ralm.records import Document
from ralm.storage.remote import FilePath

_PIECE: Final = 1 << 18
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()
_MAX_TOKEN: Final = 16
"""More characters than any name, sign or escape of JSON that the end of a piece may cut."""
_MAX_VALUE: Final = 1 << 25
_CUT_STRING: Final = "Unterminated string"


def jsonl_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield one document per line, each a JSON object; blank lines are ignored."""
    for number, offset, line in files.lines_of(file.path, file.encoding):
        where = f"{file.path}, line {number}"
        with builder:
            if line.strip():
                yield builder.document(record_of_line(line, where, offset), where, file, number)


def json_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield one document per object, of an array or one after another, from 1 on; CorpusError if it is not JSON."""
    for number, (value, text) in enumerate(_values(_JsonText(file.path, file.encoding)), 1):
        where = f"{file.path}, object {number}"
        with builder:
            yield builder.document(_record(value, text, where), where, file, number)


def records_of_lines(path: FilePath) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the objects on the lines of JSON Lines, each with a name for its place; blank lines are ignored."""
    for number, offset, line in files.lines_of(path):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, record_of_line(line, where, offset)


def records_of_json(path: FilePath) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the objects of a JSON file, of an array or one after another, each with a name for its place."""
    for number, (value, text) in enumerate(_values(_JsonText(path)), 1):
        where = f"{path}, object {number}"
        yield where, _record(value, text, where)


def record_of_line(line: bytes, where: str, offset: int) -> Mapping[str, object]:
    """Return the object on a line of JSON Lines from byte `offset` on; CorpusError, naming `where`, if it is none."""
    text = files.decode(line, where, offset=offset)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise CorpusError(f"{where} is not JSON: {error.msg} at column {error.colno}.{documents.SKIP_ADVICE}") from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or brackets nested too deeply
        raise CorpusError(f"{where} cannot be read as JSON: {error}.{documents.SKIP_ADVICE}") from None
    return _record(value, text, where)


def _record(value: object, text: str, where: str) -> Mapping[str, object]:
    """Return a JSON value as a record; `text` is the JSON that it was decoded from."""
    if not isinstance(value, dict):
        raise CorpusError(f"{where} is JSON but not an object with fields.{documents.SKIP_ADVICE}")
    if has_surrogates(text):
        check_surrogates(value, where)
    return value


def has_surrogates(text: str) -> bool:
    """Return whether JSON text may hold halves of characters."""
    return _SURROGATE_ESCAPE.search(text) is not None


def check_surrogates(value: object, where: str) -> None:
    """Raise CorpusError, naming `where`, if a string in a JSON value is not valid Unicode."""
    if _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise CorpusError(
            f"{where} holds a lone surrogate (half of a character), which is not valid text.{documents.SKIP_ADVICE}"
        )


class _JsonText:
    """The text of a file, read as far as it is needed; `at` is the place of the next character in `buffer`."""

    def __init__(self, path: FilePath, encoding: str | None = None) -> None:
        self.path = path
        self.buffer = ""
        self.at = self._gone = 0
        self._pieces = filter(None, files.text_pieces(path, _PIECE, encoding))

    def next(self) -> str:
        """Return the next character that is not white space; empty at the end."""
        while True:
            self.at = _SPACE.match(self.buffer, self.at).end()  # type: ignore[union-attr]  # it matches nothing, too
            if self.at < len(self.buffer) or not self._read_more():
                return self.buffer[self.at : self.at + 1]

    def value(self) -> tuple[object, str]:
        """Return the JSON value that begins here, and its text."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self.buffer, self.at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith(_CUT_STRING) or self._near_the_end(error.pos)
                if not cut or not self._read_more():
                    self.wrong(error.msg, error.pos)
            except (ValueError, RecursionError) as error:
                self.wrong(str(error), self.at)
            else:
                if not self._near_the_end(end) or not self._read_more():  # a number may go on there
                    text, self.at = self.buffer[self.at : end], end
                    return value, text

    def wrong(self, what: str, place: int) -> NoReturn:
        """Raise the error that the text is not JSON at this place in `buffer`."""
        raise CorpusError(f"{self.path} is not JSON: {what} at character {self._gone + place + 1:,}.")

    def _near_the_end(self, place: int) -> bool:
        return place > len(self.buffer) - _MAX_TOKEN

    def _read_more(self) -> bool:
        """Read at least as much as is left of `buffer`, so that long values take linear time; False at the end."""
        rest = self.buffer[self.at :]
        if len(rest) > _MAX_VALUE:
            raise CorpusError(
                f"{self.path} holds an object of more than {_MAX_VALUE >> 20:,} million characters; split it."
            )
        read: list[str] = []
        size = 0
        while size <= min(len(rest), _MAX_VALUE - len(rest)) and (piece := next(self._pieces, "")):
            read.append(piece)
            size += len(piece)
        if not read:
            return False
        self._gone += self.at
        self.buffer, self.at = rest + "".join(read), 0
        return True


def _values(text: _JsonText) -> Iterator[tuple[object, str]]:
    """Yield the elements of the array in a text, or the values in it one after another."""
    if text.next() != "[":
        while text.next():
            yield text.value()
        return
    text.at += 1
    if text.next() != "]":
        yield text.value()
        while text.next() == ",":
            text.at += 1
            text.next()
            yield text.value()
        if text.next() != "]":
            text.wrong("Expecting ',' or ']'", text.at)
    text.at += 1
    if text.next():
        text.wrong("Extra data", text.at)
