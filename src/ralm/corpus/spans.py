"""Cuts a corpus into spans, runs of consecutive files or lines, which processes can read separately and in any order.

A span has a hash of its content, so work on it need not be repeated. Files of JSON Lines that are not gzipped are cut
into lines; every other file is read whole.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ralm.corpus.documents import DocumentBuilder, Skipped
from ralm.corpus.files import File, Lines, open_file, size_of
from ralm.corpus.sources import documents_of_files, files_of, with_text
from ralm.errors import CorpusError
from ralm.records import Document
from ralm.storage.remote import FilePath, RemoteFile, check_read_to_end
from ralm.terminal import path_text

SPAN_BYTES: Final = 1 << 25
"""About how many bytes a span has: some 50,000 passages of 100 words."""
_MAX_FILES: Final = 1000
_CUTTABLE: Final = (".jsonl", ".ndjson")
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CorpusSpan:
    """Consecutive files of the source with number `source`, or lines of one of them.

    `in_folder`: the source is a folder, so what is broken is skipped. `sha256`: a hash of the bytes; empty until it is
    computed.
    """

    source: int
    files: tuple[File, ...]
    in_folder: bool
    sha256: str = ""

    @property
    def name(self) -> str:
        """The name of the span in messages."""
        first, last = self.files[0], self.files[-1]
        if len(self.files) > 1:
            return f"{path_text(str(first.path))} to {path_text(str(last.path))} ({len(self.files):,} files)"
        if first.lines is None:
            return path_text(str(first.path))
        begin, count = first.lines.first, first.lines.count
        return f"{path_text(str(first.path))}, " + (
            f"line {begin}" if count == 1 else f"lines {begin} to {begin + count - 1}"
        )

    def halves(self) -> "tuple[CorpusSpan, CorpusSpan] | None":
        """The two halves of the span; None for a single line, or a file that is not cut."""
        if len(self.files) > 1:
            middle = len(self.files) // 2
            parts = [replace(self, files=some) for some in (self.files[:middle], self.files[middle:])]
            return _hashed(parts[0]), _hashed(parts[1])
        file = self.files[0]
        lines = file.lines or (_all_lines(file.path) if _is_cut(file.path) else None)
        if lines is None or lines.count < 2:
            return None
        first, second = _halved(file.path, lines)
        return _hashed(self._of(first)), _hashed(self._of(second))

    def _of(self, lines: Lines) -> "CorpusSpan":
        return replace(self, files=(replace(self.files[0], lines=lines),))

    def check(self) -> None:
        """Raise CorpusError if the bytes are not those that were hashed, or a file cannot be read here."""
        if _hash(self.files) != self.sha256:
            for file in self.files:
                open_file(file.path).close()
            raise CorpusError(f"{self.name} was changed since it was first read; run this again.")


class SourceFile(NamedTuple):
    """A file of the source with number `source`, and its size."""

    source: int
    file: File
    in_folder: bool
    bytes: int


def list_files(sources: Sequence[str], skipped: Skipped, *, source_in_ids: bool) -> list[SourceFile]:
    """The files of sources, in order, by their absolute paths; ids begin with their source if `source_in_ids`.

    Raises CorpusError and UsageError as `files_of` does.
    """
    listed = []
    for number, source in enumerate(sources):
        files, in_folder = files_of(source, source if source_in_ids else "", skipped)
        for file in files:
            path = file.path.absolute()
            readable = isinstance(path, RemoteFile) or path.is_file()  # reading any other path raises the error
            listed.append(SourceFile(number, replace(file, path=path), in_folder, size_of(path) if readable else 0))
    return listed


def group_files(files: Sequence[SourceFile], span_bytes: int) -> Iterator[CorpusSpan]:
    """The files in order as spans without hashes, small files of a source together; `cut_span` adds the hashes."""
    group: list[SourceFile] = []
    for one in files:
        full = sum(other.bytes for other in group) + one.bytes > span_bytes or len(group) == _MAX_FILES
        if group and (full or one.source != group[0].source):
            yield _together(group)
            group = []
        group.append(one)
    if group:
        yield _together(group)


def cut_span(files: CorpusSpan, span_bytes: int) -> list[CorpusSpan]:
    """The spans, with their hashes, of files that were group_files; reads every byte.

    Raises CorpusError if a file to be cut cannot be read.
    """
    path = files.files[0].path
    if len(files.files) > 1 or not _is_cut(path):
        return [_hashed(files)]
    return [replace(files._of(lines), sha256=digest) for lines, digest in _cut_lines(path, span_bytes)]


def read_span(span: CorpusSpan, builder: DocumentBuilder) -> Iterator[Document]:
    """The documents of a span that have text.

    Raises CorpusError as `read_documents` does, and if the span was changed since it was hashed.
    """
    span.check()
    chosen = builder.skipping_bad() if span.in_folder else builder
    yield from with_text(documents_of_files(span.files, chosen, in_folder=span.in_folder), builder.skipped)


def _together(group: Sequence[SourceFile]) -> CorpusSpan:
    return CorpusSpan(group[0].source, tuple(one.file for one in group), group[0].in_folder)


def _is_cut(path: FilePath) -> bool:
    return path.suffix.lower() in _CUTTABLE


def _cut_lines(path: FilePath, span_bytes: int) -> Iterator[tuple[Lines, str]]:
    """Runs of lines of about the size of a span, each with the hash of its span."""
    begin, first = 0, 1
    with open_file(path) as stream:
        while held := stream.read(span_bytes):
            held += stream.readline() if not held.endswith(b"\n") else b""
            count = _count_lines(held)
            yield Lines(begin, begin + len(held), first, count), _combined([hashlib.sha256(held).hexdigest()])
            begin, first = begin + len(held), first + count


def _all_lines(path: FilePath) -> Lines:
    with open_file(path) as stream:
        content = stream.read()
    return Lines(0, len(content), 1, _count_lines(content))


def _halved(path: FilePath, lines: Lines) -> tuple[Lines, Lines]:
    with open_file(path) as stream:
        stream.seek(lines.begin)
        middle, at = lines.count // 2, lines.begin
        for _ in range(middle):
            at += len(stream.readline())
    rest = lines.count - middle
    return Lines(lines.begin, at, lines.first, middle), Lines(at, lines.end, lines.first + middle, rest)


def _count_lines(content: bytes) -> int:
    return content.count(b"\n") + (not content.endswith(b"\n"))


def _hashed(span: CorpusSpan) -> CorpusSpan:
    return replace(span, sha256=_hash(span.files))


def _hash(files: Sequence[File]) -> str:
    """The hash of the bytes of files and lines; an unreadable file counts as empty: reading it raises the error."""
    return _combined([_hash_of(file) for file in files])


def _combined(digests: list[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _hash_of(file: File) -> str:
    digest = hashlib.sha256()
    try:
        with open_file(file.path) as stream:
            left = file.lines.end - file.lines.begin if file.lines else size_of(file.path)
            stream.seek(file.lines.begin if file.lines else 0)
            while left and (block := stream.read(min(_BLOCK, left))):
                digest.update(block)
                left -= len(block)
    except (CorpusError, OSError):
        check_read_to_end(file.path)
        return ""
    return digest.hexdigest()
