"""Opens files of a corpus, unpacks them, and decodes them; each error is one sentence.

Text is UTF-8, UTF-16 or UTF-32, which their beginnings tell, or of an encoding that is named.
"""

import codecs
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from ralm.errors import CorpusError, InputError, TextError, UsageError
from ralm.storage.remote import FilePath
from ralm.terminal import path_text

BYTE_ORDER_MARK: Final = "\ufeff"
# UTF-32 first: its little-endian mark begins with the mark of UTF-16
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_BYTES_EXAMINED: Final = 4096
_BLOCK: Final = 1 << 16
_SEVEN_BITS: Final = ("iso2022", "hz", "utf-7")

GZIP: Final = ".gz"
_MAX_DOCUMENT: Final = 1 << 28  # bytes of a file that is one document, unpacked
MAX_JSON: Final = 1 << 30
"""Bytes of a file of JSON, unpacked, whose objects may be many documents."""
OR_CONVERT: Final = ", or convert it with iconv -f ENCODING -t utf-8."
_MAX_LINE: Final = 1 << 25
_LINE_BREAKS: Final = re.compile(r"[\r\n]+")


@contextmanager
def open_file(path: FilePath, error: type[InputError] = CorpusError) -> Iterator[io.BufferedReader]:
    """Open a file for reading bytes; `error` if it is missing, no file, or unreadable, also within the block."""
    try:
        if isinstance(path, Path) and not stat.S_ISREG(mode := path.stat().st_mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
            raise error(f"{path} is {kind}, not a file; write its content to a file first.")
        with path.open("rb") as stream:
            yield stream
    except FileNotFoundError:
        raise error(f"{path} does not exist.") from None
    except OSError as cause:
        raise error(f"{path} cannot be read: {cause.strerror or cause}.") from None


@contextmanager
def unpacked(path: FilePath, error: type[InputError] = CorpusError) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    """Open a file for reading, unpacked if it is gzipped; `error` if it is empty or unreadable."""
    with open_file(path, error) as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            raise error(f"{path} is empty.")
        try:
            if not path.name.lower().endswith(GZIP):
                yield stream
            else:
                with gzip.GzipFile(fileobj=stream, mode="rb") as unpacking:
                    yield unpacking
        except (EOFError, gzip.BadGzipFile, zlib.error) as cause:
            raise error(f"{path} is damaged and cannot be unpacked completely: {cause}") from None


def content_of(path: FilePath, error: type[InputError] = CorpusError, most: int = _MAX_DOCUMENT) -> bytes:
    """Return the bytes of a file, gzip unpacked; `error` if it is empty, unreadable or has more than `most` bytes."""
    with unpacked(path, error) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise error(f"{path} has more than {most >> 20:,} MiB; split it.")
    return content


def whole_text(
    path: FilePath, error: type[InputError] = CorpusError, encoding: str | None = None, most: int = _MAX_DOCUMENT
) -> str:
    """Return the text of a file with line feeds; raises what `content_of` does, and `error` for an unknown encoding."""
    return line_feeds(decode(content_of(path, error, most), str(path), error, encoding=encoding))


def read_text(path: Path) -> str:
    """Return a text to evaluate, without a byte order mark and with line feeds; TextError if it cannot be one."""
    text = whole_text(path, TextError)
    if not text.strip():
        raise TextError(f"{path} is empty.")
    return text


def lines_of(path: FilePath, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file, gzip unpacked, each with its number (from 1), to be checked by `utf8_line`.

    A lone carriage return ends a line if no line feed stands at the beginning of the file.
    """
    with unpacked(path) as stream:
        beginning = stream.peek(_BYTES_EXAMINED)
        other = _unicode_encoding(beginning) or (encoding if encoding and not _is_utf8(path) else None)
        newline = None if b"\r" in beginning and b"\n" not in beginning else "\n"
        errors = "strict" if other else "surrogateescape"
        text = io.TextIOWrapper(stream, other or "utf-8", errors, newline)
        try:
            for number, line in enumerate(iter(partial(text.readline, _MAX_LINE), ""), 1):
                if len(line) == _MAX_LINE:
                    raise CorpusError(f"{path}, line {number} is longer than {_MAX_LINE >> 20:,} MiB; split it.")
                yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        except UnicodeError as bad:
            raise CorpusError(f"{path} is not {other}: {getattr(bad, 'reason', bad)}.") from None


def utf8_line(line: str, where: str, error: type[InputError] = CorpusError) -> str:
    """Return a line of `lines_of`; `error`, naming `where`, if a byte of it is not UTF-8."""
    try:
        line.encode()
    except UnicodeEncodeError as bad:
        raise error(
            f"{where} is not UTF-8: it has the byte 0x{ord(line[bad.start]) & 0xFF:02x}{_advice(error)}"
        ) from None
    return line


def line_feeds(text: str) -> str:
    """Return a text whose lines end as on Unix, however they end in a file."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def decode(content: bytes, where: str, error: type[InputError] = CorpusError, *, encoding: str | None = None) -> str:
    """Return bytes as text without a byte order mark, in `encoding` if they are not Unicode; `error` names `where`."""
    other = _unicode_encoding(content) or (encoding if encoding and not _decodes([content]) else None)
    try:
        return content.decode(other or "utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as bad:
        byte = f"byte {bad.start:,} is 0x{content[bad.start]:02x}"
    raise error(f"{where} is not {other or 'UTF-8'}: {byte}{'.' if other else _advice(error)}")


def _advice(error: type[InputError]) -> str:
    if error is CorpusError:
        return f', so name its encoding, such as `encoding="cp1252"`{OR_CONVERT}'
    return ", so convert it with iconv -f ENCODING -t utf-8."


def check_encoding(name: str) -> None:
    """Raise UsageError if Python has no encoding of this name, or only one that UTF-8 cannot be told from."""
    try:
        "x".encode(name)
        is_usable = not codecs.lookup(name).name.startswith(_SEVEN_BITS)
    except (LookupError, ValueError):
        is_usable = False
    if not is_usable:
        raise UsageError(
            f"`encoding` must be one that Python knows and of 8 bits or more, such as cp1252, not {name!r}."
        )


def _is_utf8(path: FilePath) -> bool:
    with unpacked(path) as stream:
        return _decodes(iter(partial(stream.read, _BLOCK), b""))


def _decodes(blocks: Iterable[bytes]) -> bool:
    """Return whether blocks of bytes are UTF-8."""
    try:
        for _ in codecs.iterdecode(blocks, "utf-8"):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _unicode_encoding(content: bytes) -> str | None:
    """Return the encoding that the beginning of a file tells, if it is UTF-16 or UTF-32."""
    for mark, name in _MARKS:
        if content.startswith(mark):
            return name
    beginning = content[:_BYTES_EXAMINED]  # without a mark, most languages have zeros in a half or three quarters of it
    for width, name in ((4, "UTF-32"), (2, "UTF-16")):
        zeros = [beginning[place::width].count(0) for place in range(width)]
        half = max(1, len(beginning) // width // 2)
        if zeros[0] == 0 and min(zeros[1:]) > half:
            return f"{name}LE"
        if zeros[-1] == 0 and min(zeros[:-1]) > half:
            return f"{name}BE"
    return None


@dataclass(frozen=True, slots=True)
class File:
    """A file with documents.

    `id` is that of a document that is the whole file, `prefix` stands before the number of a record without an id,
    `dataset` names a dataset, `suffix` tells the format, and `encoding` is None for UTF-8, UTF-16 and UTF-32.
    """

    path: FilePath
    id: str
    prefix: str = ""
    dataset: str | None = None
    suffix: str = ""
    encoding: str | None = None

    @property
    def title(self) -> str:
        """Its name without suffixes, on one line: the default title of its documents."""
        name = self.path.name
        stem = Path(name[: -len(GZIP)] if name.lower().endswith(GZIP) else name).stem
        return _LINE_BREAKS.sub(" ", path_text(stem))


def suffix_of(name: str) -> str:
    """Return the suffix of a file name in lower case, without .gz."""
    return os.path.splitext(name.lower().removesuffix(GZIP))[1]  # noqa: PTH122  (of a million names)
