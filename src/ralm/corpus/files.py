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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

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
_KINDS: Final = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)
_BYTES_EXAMINED: Final = 4096
_BYTES_GUESSED: Final = 1 << 16
_NO_GUESSES: Final = ["utf_7", "utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le"]
_SEVEN_BITS: Final = ("iso2022", "hz", "utf-7")
WESTERN: Final = "cp1252"
"""Windows-1252, which most tables of Western Europe that are not UTF-8 are in."""
_HTML: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<!doctype html|<html)[\s>]", re.IGNORECASE)
_CONTROL: Final = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")

GZIP: Final = ".gz"
_MAX_DOCUMENT: Final = 1 << 28  # bytes of a file that is one document, unpacked
_MAX_LINE: Final = 1 << 25
_LINE_BREAKS: Final = re.compile(r"[\r\n]+")


@contextmanager
def open_file(path: FilePath, error: type[InputError] = CorpusError) -> Iterator[io.BufferedReader]:
    """Open a file for reading bytes; `error` if it is missing, no file, or unreadable, also within the block."""
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
    """Return a text to evaluate, without a byte order mark and with line feeds; TextError if it cannot be one."""
    text = read_utf8(path, TextError)
    if not text.strip():
        raise TextError(f"{path} is empty.")
    return text


def text_pieces(path: FilePath, size: int, encoding: str | None = None) -> Iterator[str]:
    """Yield the text of a file in pieces of about `size` bytes, without a byte order mark; no character is cut."""
    offset, rest, block = 0, b"", b"-"
    with _as_utf8(path, encoding) as stream:
        while block:
            block = stream.read(size)
            content = rest + block
            try:
                text, used = codecs.utf_8_decode(content, "strict", not block)
            except UnicodeDecodeError as bad:
                raise _not_decoded(content, bad, "utf-8", str(path), CorpusError, offset) from None
            yield text if offset else text.removeprefix(BYTE_ORDER_MARK)
            offset, rest = offset + used, content[used:]


def read_utf8(path: Path, error: type[InputError] = CorpusError) -> str:
    """Return the text of a file, without a byte order mark and with line feeds; `error` if it is unreadable."""
    with open_file(path, error) as stream:
        content = stream.read()
    return line_feeds(decode(content, str(path), error).removeprefix(BYTE_ORDER_MARK))


def whole_text(path: FilePath, error: type[InputError] = CorpusError, encoding: str | None = None) -> str:
    """Return as `read_utf8` the text of a file that may be gzipped; CorpusError if it is empty or too large."""
    return line_feeds(decode(content_of(path), str(path), error, encoding=encoding).removeprefix(BYTE_ORDER_MARK))


def line_feeds(text: str) -> str:
    """Return a text whose lines end as on Unix, however they end in a file."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def decode(
    content: bytes, where: str, error: type[InputError] = CorpusError, *, offset: int = 0, encoding: str | None = None
) -> str:
    """Return bytes of the file `where` as text; they begin at byte `offset`, in `encoding` if they are not Unicode."""
    detected = None if offset else _other_encoding(content)
    *before, last = [detected] if detected else ["utf-8", *filter(None, [encoding])]
    for name in before:
        with suppress(UnicodeDecodeError):
            return content.decode(name)
    try:
        return content.decode(last)
    except UnicodeDecodeError as bad:
        raise _not_decoded(content, bad, last, where, error, offset) from None


def _not_decoded(
    content: bytes, bad: UnicodeDecodeError, name: str, where: str, error: type[InputError], offset: int
) -> InputError:
    """Return the error that content is not of an encoding, with a likely one unless it is far within a file."""
    byte = f"byte {offset + bad.start:,} is 0x{content[bad.start]:02x}"
    if name != "utf-8":
        return error(f"{where} is not {name}: {byte}.")
    begin = content.rfind(b"\n", 0, bad.start) + 1
    guess = likely_encoding(content[begin : begin + _BYTES_GUESSED]) if offset < _BYTES_GUESSED else None
    perhaps = f" It may be {guess}." if guess else ""
    advice = "Name its `encoding`, or convert" if error is CorpusError else "Convert"
    return error(f"{where} is not UTF-8: {byte}.{perhaps} {advice} it with iconv -f {guess or 'ENCODING'} -t utf-8.")


def likely_encoding(content: bytes) -> str | None:
    """Return the encoding that content which is not UTF-8 may be of; None if nothing fits."""
    from charset_normalizer import from_bytes  # it takes a tenth of a second

    matches = from_bytes(content, cp_exclusion=_NO_GUESSES)
    best = matches.best()
    if best is None:
        return None
    same = (match for match in matches if match.coherence >= best.coherence)
    is_western = any(WESTERN in (match.encoding, *match.could_be_from_charset) for match in same)
    return WESTERN if is_western else best.encoding


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


class _Recoded(io.RawIOBase):
    """The text of a stream, which is of some encoding, as UTF-8 with line feeds."""

    def __init__(self, stream: io.BufferedReader | gzip.GzipFile, encoding: str, where: str) -> None:
        self._stream = stream
        self._where = f"{where} is not {encoding}"
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)
        self._decoded = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        room, block = memoryview(buffer).cast("B"), b"-"
        while block and not self._decoded:
            block = self._stream.read(len(room))
            try:
                self._decoded = self._decoder.decode(block, final=not block).encode()
            except UnicodeDecodeError as bad:
                raise CorpusError(f"{self._where}: {bad.reason}.") from None
        count = min(len(room), len(self._decoded))
        room[:count], self._decoded = self._decoded[:count], self._decoded[count:]
        return count


@contextmanager
def _as_utf8(path: FilePath, encoding: str | None) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    """Open a text file as bytes of UTF-8, gzip unpacked; lines that a lone carriage return ends get a line feed."""
    with unpacked(path) as stream:
        beginning = stream.peek(_BYTES_EXAMINED)
        actual = _other_encoding(beginning)
        if actual is None and encoding is not None and not _is_utf8(path):
            actual = encoding
        if actual is None and b"\r" in beginning and b"\n" not in beginning:
            actual = "utf-8"
        yield stream if actual is None else io.BufferedReader(_Recoded(stream, actual, str(path)))


def _is_utf8(path: FilePath) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with unpacked(path) as stream:
        try:
            for block in iter(partial(stream.read, _BYTES_GUESSED), b""):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def _other_encoding(content: bytes) -> str | None:
    """Return the encoding that the beginning of a file suggests, if it is not UTF-8."""
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


def kind_of_content(path: Path) -> str:
    """Return the suffix for a file without one, by its first bytes; .txt if it is unreadable, empty for other kinds."""
    try:
        with path.open("rb") as stream:
            beginning = stream.read(_BYTES_EXAMINED)
    except OSError:
        return ".txt"
    if beginning.startswith(b"%PDF-"):
        return ".pdf"
    if _HTML.match(beginning):
        return ".html"
    if beginning.startswith(tuple(mark for mark, _ in _MARKS)):
        return ".txt"
    try:
        text = codecs.utf_8_decode(beginning, "strict", False)[0]
    except UnicodeDecodeError:
        return ""
    return "" if _CONTROL.search(text) else ".txt"


def lines_of(path: FilePath, encoding: str | None = None) -> Iterator[tuple[int, int, bytes]]:
    """Yield the lines of a file as UTF-8, each with its number (from 1) and byte offset; gzip is unpacked."""
    offset = 0
    with _as_utf8(path, encoding) as stream:
        for number, line in enumerate(iter(partial(stream.readline, _MAX_LINE), b""), 1):
            if len(line) == _MAX_LINE:
                raise CorpusError(f"{path}, line {number} is longer than {_MAX_LINE >> 20:,} MiB; split it.")
            yield number, offset, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            offset += len(line)


def content_of(path: FilePath) -> bytes:
    """Return the bytes of a file, gzip unpacked; CorpusError if it is unreadable or too large."""
    with unpacked(path) as stream:
        content = stream.read(_MAX_DOCUMENT + 1)
    if len(content) > _MAX_DOCUMENT:
        raise CorpusError(f"{path} has more than {_MAX_DOCUMENT >> 20:,} MiB; split it.")
    return content


@contextmanager
def unpacked(path: FilePath) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    """Open a file for reading, unpacked if it is gzipped; CorpusError if it is empty or unreadable."""
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
