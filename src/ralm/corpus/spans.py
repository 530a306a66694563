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
from ralm.corpus.sources import documents_of_files, find_files
from ralm.errors import CorpusError, UsageError
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
        middle = len(self.files) // 2
        if middle:
            return self._of(*self.files[:middle]), self._of(*self.files[middle:])
        file = self.files[0]
        if not _is_cut(file.path):
            return None
        begin, first = (file.lines.begin, file.lines.first) if file.lines else (0, 1)
        with open_file(file.path) as stream:
            stream.seek(begin)
            content = stream.read(file.lines.end - begin if file.lines else -1)
        count = _count_lines(content)
        if count < 2:
            return None
        half, cut = count // 2, 0
        for _ in range(half):
            cut = content.index(b"\n", cut) + 1
        before = Lines(begin, begin + cut, first, half)
        after = Lines(begin + cut, begin + len(content), first + half, count - half)
        return self._of(replace(file, lines=before)), self._of(replace(file, lines=after))

    def _of(self, *files: File) -> "CorpusSpan":
        return replace(self, files=files, sha256=_hash(files))

    def check(self) -> None:
        """Raise CorpusError if the bytes are not those that were hashed, or a file cannot be read here."""
        if _hash(self.files) != self.sha256:
            for file in self.files:
                with open_file(file.path):
                    pass
            raise CorpusError(f"{self.name} was changed since it was first read; run this again.")


class SourceFile(NamedTuple):
    """A file of the source with number `source`, and its size."""

    source: int
    file: File
    in_folder: bool
    bytes: int


def list_files(sources: Sequence[str], skipped: Skipped, *, source_in_ids: bool) -> list[SourceFile]:
    """The files of sources, in order, by their absolute paths; ids begin with their source if `source_in_ids`.

    Raises CorpusError and MissingExtraError as `find_files` does, UsageError if a source is a dataset or holds one.
    """
    listed = []
    for number, name in enumerate(sources):
        source = find_files(name, in_ids=source_in_ids)
        skipped.merge(source.skipped)
        for file in source.files:
            if file.dataset is not None:
                raise UsageError(
                    f"{file.path} is a dataset, and several machines can only read files; save it as Parquet first."
                )
            path = file.path.absolute()
            readable = isinstance(path, RemoteFile) or path.is_file()  # reading any other path raises the error
            size = size_of(path) if readable else 0
            listed.append(SourceFile(number, replace(file, path=path), source.is_folder, size))
    return listed


def group_files(files: Sequence[SourceFile], span_bytes: int) -> Iterator[CorpusSpan]:
    """The files in order as spans without hashes, small files of a source together; `cut_span` adds the hashes."""
    group: list[SourceFile] = []
    for one in [*files, None]:
        held = sum(other.bytes for other in group)
        if group and (
            one is None or one.source != group[0].source or held + one.bytes > span_bytes or len(group) == _MAX_FILES
        ):
            yield CorpusSpan(group[0].source, tuple(other.file for other in group), group[0].in_folder)
            group = []
        if one is not None:
            group.append(one)


def cut_span(files: CorpusSpan, span_bytes: int) -> list[CorpusSpan]:
    """The spans, with their hashes, of files that were group_files; reads every byte.

    Raises CorpusError if a file to be cut cannot be read.
    """
    file = files.files[0]
    if len(files.files) > 1 or not _is_cut(file.path):
        return [files._of(*files.files)]
    spans: list[CorpusSpan] = []
    begin, first = 0, 1
    with open_file(file.path) as stream:
        while held := stream.read(span_bytes):
            held += stream.readline() if not held.endswith(b"\n") else b""
            lines = Lines(begin, begin + len(held), first, _count_lines(held))
            digest = _combined([hashlib.sha256(held).hexdigest()])
            spans.append(replace(files, files=(replace(file, lines=lines),), sha256=digest))
            begin, first = lines.end, first + lines.count
    return spans


def read_span(span: CorpusSpan, builder: DocumentBuilder) -> Iterator[Document]:
    """The documents of a span that have text.

    Raises CorpusError as `read_documents` does, and if the span was changed since it was hashed.
    """
    span.check()
    yield from documents_of_files(span.files, builder, in_folder=span.in_folder)


def _is_cut(path: FilePath) -> bool:
    return path.suffix.lower() in _CUTTABLE


def _count_lines(content: bytes) -> int:
    return content.count(b"\n") + (not content.endswith(b"\n"))


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
    except CorpusError:
        check_read_to_end(file.path)
        return ""
    return digest.hexdigest()
