"""Opens files of a corpus, unpacks them, and decodes UTF-8; each error is one sentence."""

import codecs
import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final

from ralm.errors import CorpusError, InputError, TextError
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
_KINDS: Final = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)
_BYTES_EXAMINED: Final = 4096
_HTML: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<!doctype html|<html)[\s>]", re.IGNORECASE)
_CONTROL: Final = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")

GZIP: Final = ".gz"
_MAX_DOCUMENT: Final = 1 << 28  # bytes of a file that is one document, unpacked
_MAX_LINE: Final = 1 << 25
_LINE_BREAKS: Final = re.compile(r"[\r\n]+")


@contextmanager
def open_file(path: FilePath, error: type[InputError] = CorpusError) -> Iterator[BufferedReader]:
    """A file, open for reading bytes; `error` if it is missing, unreadable, also within the block, or a folder, a pipe,
    a socket or a device."""
    try:
        if isinstance(path, Path):
            mode = path.stat().st_mode
            for is_kind, kind in _KINDS:
                if is_kind(mode):
                    raise error(f"{path} is a {kind}, not a file; write its content to a file first.")
        with path.open("rb") as stream:
            yield stream
    except FileNotFoundError:
        linked = isinstance(path, Path) and path.is_symlink()
        raise error(f"{path} {'is a link to a file that does' if linked else 'does'} not exist.") from None
    except OSError as cause:
        raise error(f"{path} cannot be read: {cause.strerror or cause}.") from None


def read_text(path: Path) -> str:
    """Return a text to evaluate, without a byte order mark and with line feeds; TextError if it is unreadable or
    empty."""
    text = read_utf8(path, TextError)
    if not text.strip():
        raise TextError(f"{path} is empty.")
    return text


def text_pieces(path: FilePath, size: int) -> Iterator[str]:
    """The text of a file in pieces of about `size` bytes, without a byte order mark; no character is cut."""
    offset, rest, block = 0, b"", b"-"
    with unpacked(path) as stream:
        while block:
            block = stream.read(size)
            content = rest + block
            text, used = _decode_complete(content, str(path), CorpusError, offset=offset, final=not block)
            yield text if offset else text.removeprefix(BYTE_ORDER_MARK)
            offset, rest = offset + used, content[used:]


def read_utf8(path: Path, error: type[InputError] = CorpusError) -> str:
    """The content of a file as text, without a byte order mark and with line feeds; raises `error` if it is unreadable
    or not UTF-8."""
    with open_file(path, error) as stream:
        content = stream.read()
    return line_feeds(decode(content, str(path), error).removeprefix(BYTE_ORDER_MARK))


def whole_text(path: FilePath, error: type[InputError] = CorpusError) -> str:
    """Return the same of a file that may be gzipped; CorpusError if it is empty or too large, too."""
    return line_feeds(decode(content_of(path), str(path), error).removeprefix(BYTE_ORDER_MARK))


def line_feeds(text: str) -> str:
    """Return a text whose lines end as on Unix, however they end in a file."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def decode(content: bytes, where: str, error: type[InputError] = CorpusError, *, offset: int = 0) -> str:
    """Decode bytes of the file `where` as UTF-8, with line ends unchanged; `offset` is the byte where they begin."""
    return _decode_complete(content, where, error, offset=offset, final=True)[0]


def _decode_complete(
    content: bytes, where: str, error: type[InputError], *, offset: int, final: bool
) -> tuple[str, int]:
    """The same, and the number of decoded bytes; an incomplete last character is left for later, unless `final`."""
    other = None if offset else _other_encoding(content)
    if other is not None:
        raise error(f"{where} is not UTF-8: it seems to be {other}. Convert it with iconv -f {other} -t utf-8.")
    try:
        return codecs.utf_8_decode(content, "strict", final)
    except UnicodeDecodeError as bad:
        raise error(
            f"{where} is not UTF-8: byte {offset + bad.start:,} is 0x{content[bad.start]:02x}. Convert it, for "
            "instance with iconv -f latin1 -t utf-8."
        ) from None


def _other_encoding(content: bytes) -> str | None:
    """The encoding that the beginning of a file suggests, if it is not UTF-8: without a mark, UTF-16 and UTF-32 of most
    languages are valid UTF-8 with a half or three quarters of zero bytes."""
    for mark, name in _MARKS:
        if content.startswith(mark):
            return name
    beginning = content[:_BYTES_EXAMINED]
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

    `id`: the id of a document that is the whole file. `prefix`: comes before the number of a record without an id.
    `dataset`: the name of the dataset, if it is one and no file. `suffix`: that of the format by which it is read.
    """

    path: FilePath
    id: str
    prefix: str = ""
    dataset: str | None = None
    suffix: str = ""

    @property
    def title(self) -> str:
        """Its name without suffixes, on one line: the default title of its documents."""
        name = self.path.name
        stem = Path(name[: -len(GZIP)] if name.lower().endswith(GZIP) else name).stem
        return _LINE_BREAKS.sub(" ", path_text(stem))


def suffix_of(name: str) -> str:
    """The suffix of a file name in lower case, without .gz."""
    return os.path.splitext(name.lower().removesuffix(GZIP))[1]  # noqa: PTH122  (of a million names)


def kind_of_content(path: Path) -> str:
    """The suffix for a file without one, by its first bytes: .pdf, .html, or .txt for UTF-8 without control characters,
    and if it cannot be read, which its reader reports; empty if it is of another kind."""
    try:
        with path.open("rb") as stream:
            beginning = stream.read(_BYTES_EXAMINED)
    except OSError:
        return ".txt"
    if beginning.startswith(b"%PDF-"):
        return ".pdf"
    if _HTML.match(beginning):
        return ".html"
    try:
        text = codecs.utf_8_decode(beginning, "strict", False)[0]
    except UnicodeDecodeError:
        return ""
    return "" if _CONTROL.search(text) else ".txt"


def lines_of(path: FilePath) -> Iterator[tuple[int, int, bytes]]:
    """The lines of a file, each with its number (from 1) and byte offset; gzip is unpacked."""
    offset = 0
    with unpacked(path) as stream:
        for number, line in enumerate(iter(partial(stream.readline, _MAX_LINE), b""), 1):
            if len(line) == _MAX_LINE:
                raise CorpusError(f"{path}, line {number} is longer than {_MAX_LINE >> 20:,} MiB; split it.")
            yield number, offset, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            offset += len(line)


def content_of(path: FilePath) -> bytes:
    """The bytes of a file, unpacked if it is gzipped. Raises CorpusError if it cannot be read, or is too large."""
    with unpacked(path) as stream:
        content = stream.read(_MAX_DOCUMENT + 1)
    if len(content) > _MAX_DOCUMENT:
        raise CorpusError(f"{path} has more than {_MAX_DOCUMENT >> 20:,} MiB; split it.")
    return content


@contextmanager
def unpacked(path: FilePath) -> Iterator[BinaryIO | gzip.GzipFile]:
    """A file open for reading, unpacked if it is gzipped; CorpusError if it is empty or cannot be read."""
    with open_file(path) as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            raise CorpusError(f"{path} is empty.")
        try:
            if not path.name.lower().endswith(GZIP):
                yield stream
            else:
                with gzip.GzipFile(fileobj=stream, mode="rb") as unpacking:
                    yield unpacking
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorpusError(f"{path} is damaged and cannot be unpacked completely: {error}") from None
