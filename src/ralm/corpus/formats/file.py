"""A file to read documents from, and its bytes: unpacked, line by line or whole, with a limit to what is unpacked."""

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from ralm.corpus.text import open_file
from ralm.errors import CorpusError
from ralm.storage.remote import FilePath, RemoteFile
from ralm.terminal import path_text

GZIP: Final = ".gz"
MOST_UNPACKED: Final = 1 << 30
"""How many bytes of a packed file are held in memory at once: a small file may unpack to any size."""
_LINE_BREAKS: Final = re.compile(r"[\r\n]+")


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines of a file: `count` of them, from byte `begin` to byte `end`; the first has the number `first`, counted
    from 1."""

    begin: int
    end: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class File:
    """A file with documents: `id` is the id of a document that is the whole file, and `prefix` is put before the number
    of a record without an id of its own. With `lines`, it stands for these lines of a file of JSON Lines."""

    path: FilePath
    id: str
    prefix: str = ""
    lines: Lines | None = None

    @property
    def suffix(self) -> str:
        """The suffix of its name in lower case, without that of packing."""
        return suffix_of(self.path.name)

    @property
    def title(self) -> str:
        """Its name without suffixes, on one line: the title of a document that has no other."""
        name = self.path.name
        stem = Path(name[: -len(GZIP)] if name.lower().endswith(GZIP) else name).stem
        return _LINE_BREAKS.sub(" ", path_text(stem))


def suffix_of(name: str) -> str:
    """The suffix of a file name in lower case, without that of packing."""
    return os.path.splitext(name.lower().removesuffix(GZIP))[1]  # noqa: PTH122  (of a million names)


def lines_of(path: FilePath, some: Lines | None = None) -> Iterator[tuple[int, int, bytes]]:
    """The lines of a file, unpacked if it is gzipped, each with its number (from 1) and byte offset; or only `some`
    of them."""
    offset, first = (some.begin, some.first) if some else (0, 1)
    with unpacked(path) as stream:
        stream.seek(offset)
        for number, line in enumerate(iter(partial(stream.readline, MOST_UNPACKED), b""), first):
            if len(line) == MOST_UNPACKED:
                raise CorpusError(f"{path}, line {number} is longer than {MOST_UNPACKED >> 20:,} MiB.")
            yield number, offset, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            offset += len(line)
            if some and offset >= some.end:
                return


def content_of(path: FilePath) -> bytes:
    """The bytes of a file, unpacked if it is gzipped.

    Raises CorpusError if it cannot be read, or unpacks to more than is held in memory.
    """
    with unpacked(path) as stream:
        if not isinstance(stream, gzip.GzipFile):
            return stream.read()
        content = stream.read(MOST_UNPACKED + 1)
        if len(content) > MOST_UNPACKED:
            raise CorpusError(f"{path} unpacks to more than {MOST_UNPACKED >> 20:,} MiB; unpack it first.")
        return content


@contextmanager
def unpacked(path: FilePath) -> Iterator[BinaryIO | gzip.GzipFile]:
    """A file open for reading, unpacked if it is gzipped.

    Raises CorpusError if it is empty or cannot be read, also within the block.
    """
    with open_file(path) as stream:
        if size_of(path) == 0:
            raise CorpusError(f"{path} is empty.")
        try:
            if path.suffix.lower() != GZIP:
                yield stream
            else:
                with gzip.GzipFile(fileobj=stream, mode="rb") as unpacking:
                    yield unpacking
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorpusError(f"{path} is damaged and cannot be unpacked completely: {error}") from None
        except OSError as refused:
            raise CorpusError(f"{path} cannot be read: {refused.strerror}.") from None


def size_of(path: FilePath) -> int:
    """The size of a file in bytes."""
    return path.size if isinstance(path, RemoteFile) else path.stat().st_size
