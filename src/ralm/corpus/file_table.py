"""The table of source files that an index keeps, so that `ralm sync` reads only files that changed.

A table is JSON Lines: for each file a line with its `FileState`, then a line `[ID, HASH]` for each part of its
documents, unless the id of a document is that of the file, and a line `[REASON, EXAMPLE, COUNT]` for each reason why
something in it was skipped.
"""

import hashlib
import json
import shutil
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ralm.corpus.documents import Skipped, metadata_to_json
from ralm.corpus.files import File, open_file
from ralm.errors import CorpusError, DamagedFolderError
from ralm.records import Document
from ralm.storage.remote import FilePath

_FRESH: Final = 2_000_000_000
"""Nanoseconds: a file that is younger may change once more without another size or time."""
_UNKNOWN: Final = -1
_DOCUMENT: Final = 2
_HASH_BYTES: Final = 8


class KnownSource(BaseModel):
    """A source as it was named, its absolute path, URL or dataset, and what the ids of its documents begin with."""

    model_config = ConfigDict(frozen=True)

    name: str
    path: str
    ids: str


@dataclass(frozen=True, slots=True)
class FileState:
    """A file when it was read; `time` is -1 if only its content tells a change, `hash` empty if it was unreadable."""

    source: int
    file: str
    size: int
    time: int
    hash: str

    @classmethod
    def of(cls, source: int, file: File, stamp: tuple[int, int] | None, content: str) -> "FileState":
        """Return the state of a file with this size and time, and this hash."""
        size, changed = stamp or (0, _UNKNOWN)
        return cls(source, file.id, size, changed if changed < time.time_ns() - _FRESH else _UNKNOWN, content)

    def is_that_of(self, stamp: tuple[int, int] | None) -> bool:
        """Return whether this size and time say that the file did not change."""
        return bool(self.hash) and self.time != _UNKNOWN and stamp == (self.size, self.time)


class FilesRecord(BaseModel):
    """What an index records of its files: the sources, and how they are read."""

    model_config = ConfigDict(frozen=True)

    sources: tuple[KnownSource, ...]
    skip_bad: bool = False
    forbidden_titles: str | None = None
    decontaminate: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    read_as: tuple[str, ...] = ()
    encoding: str | None = None


_STATE: Final = TypeAdapter(FileState)
_PART: Final[TypeAdapter[tuple[str, str] | tuple[str, str, int]]] = TypeAdapter(
    Annotated[tuple[str, str] | tuple[str, str, int], Field(union_mode="left_to_right")]
)


def size_and_time(file: File) -> tuple[int, int] | None:
    """Return size (bytes) and last change (ns) of a file; None for datasets, URLs, and a file that is gone."""
    if file.dataset is not None or not isinstance(file.path, Path):
        return None
    try:
        status = file.path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def sha256_of(path: FilePath) -> str:
    """Return the SHA-256 of the content of a file; CorpusError if it cannot be read."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def paths_of(file: File) -> Sequence[FilePath]:
    """Return a file as it is, or the files of a saved dataset, in order; of a dataset of a hub none."""
    if file.dataset is None:
        return [file.path]
    return sorted(path for path in Path(file.dataset).rglob("*") if path.is_file())


def content_hash(file: File) -> str:
    """Return the SHA-256 of a file, or of a saved dataset's names and contents; CorpusError if one is unreadable."""
    if file.dataset is None:
        return sha256_of(file.path)
    names = [f"{path.name} {sha256_of(path)}" for path in paths_of(file)]
    return hashlib.sha256("\n".join(names).encode("utf-8", "surrogateescape")).hexdigest()


def document_hash(document: Document) -> str:
    """Return a short hash of the title, the text and the metadata of a document."""
    content = "\0".join((document.title, document.text, metadata_to_json(document.metadata)))
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).hexdigest()


class Entry(NamedTuple):
    """A file in a saved table, and the bytes of the table that hold its documents."""

    state: FileState
    begin: int
    end: int


class FileTable:
    """A saved table, which stays open; `entries` are its files, by source and id. Raises DamagedFolderError."""

    def __init__(self, path: Path) -> None:
        self.entries: dict[tuple[int, str], Entry] = {}
        entry: Entry | None = None
        offset = 0
        try:
            self._stream = path.open("rb")
            weakref.finalize(self, self._stream.close)
            for line in self._stream:
                offset += len(line)
                if entry is None or line.startswith(b"{"):
                    entry = Entry(_STATE.validate_json(line), offset, offset)
                else:
                    _PART.validate_json(line)
                    entry = entry._replace(end=offset)
                self.entries[entry.state.source, entry.state.file] = entry
        except (ValidationError, OSError) as error:
            raise DamagedFolderError(f"{path} is damaged; build the index again.") from error

    def lines(self, entry: Entry) -> bytes:
        """Return the lines of the documents of a file; most files have none."""
        self._stream.seek(entry.begin)
        return self._stream.read(entry.end - entry.begin)

    def documents(self, entry: Entry) -> list[str]:
        """Return the ids of the documents of a file, in its order."""
        ids = (line[0] for line in self._noted(entry) if len(line) == _DOCUMENT)
        return [document for document, _ in groupby(ids)] or [entry.state.file]

    def parts(self, entry: Entry | None) -> dict[str, list[str]]:
        """Return the hashes of the parts of each document of a file that has lines, by its id."""
        hashes: dict[str, list[str]] = {}
        for line in self._noted(entry) if entry else ():
            if len(line) == _DOCUMENT:
                hashes.setdefault(line[0], []).append(line[1])
        return hashes

    def skipped(self, entry: Entry) -> Iterator[tuple[str, str, int]]:
        """Return the reasons for which something in a file was skipped, each with an example and the number."""
        return (line for line in self._noted(entry) if len(line) != _DOCUMENT)

    def _noted(self, entry: Entry) -> Iterator[tuple[str, str] | tuple[str, str, int]]:
        return map(_PART.validate_json, self.lines(entry).splitlines())


class FileTableWriter:
    """Writes a table while documents are read, to a file without a name in `beside`."""

    def __init__(self, beside: Path, record: FilesRecord) -> None:
        self.record = record
        beside.mkdir(parents=True, exist_ok=True)
        self._stream = tempfile.TemporaryFile(dir=beside)  # noqa: SIM115
        weakref.finalize(self, self._stream.close)
        self._file = ""

    def entering(self, source: int, files: Iterable[File], skipped: Skipped) -> Iterator[File]:
        """Yield the files of a source; note each before it is read, and afterwards what was skipped in it."""
        for file in files:
            stamp = size_and_time(file)
            try:
                content = content_hash(file)
            except CorpusError:  # so its reader says
                content = ""
            self.enter(FileState.of(source, file, stamp, content))
            before = Counter(skipped.counts)
            yield file
            self.add_skipped(skipped.since(before))

    def enter(self, state: FileState, lines: bytes = b"") -> None:
        """Note a file, and the lines of its documents if they are known."""
        self._file = state.file
        self._stream.write(json.dumps(asdict(state)).encode() + b"\n" + lines)

    def add(self, document: Document) -> None:
        """Note a document, or a part of it, of the file that was entered last."""
        if document.id != self._file:
            self._stream.write(json.dumps([document.id, document_hash(document)]).encode() + b"\n")

    def add_skipped(self, reasons: Iterable[tuple[str, str, int]]) -> None:
        """Note what was skipped in the file that was entered last."""
        self._stream.writelines(json.dumps(reason).encode() + b"\n" for reason in reasons)

    def save(self, file: Path) -> FilesRecord:
        """Write the table to a new file; return the record of it."""
        self._stream.seek(0)
        with file.open("xb") as out:
            shutil.copyfileobj(self._stream, out)
        return self.record
