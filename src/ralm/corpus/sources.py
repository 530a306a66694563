"""Reads documents one at a time from files, folders, URLs and Hugging Face datasets, and counts what it skips."""

import copy
import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ralm.corpus import documents, folder
from ralm.corpus.documents import DocumentBuilder, Fields, Skipped
from ralm.corpus.file_table import FileTableWriter, KnownSource, paths_of, sha256_of
from ralm.corpus.files import GZIP, File, read_text, suffix_of
from ralm.corpus.folder import ALL_FILES, FileSelection
from ralm.corpus.formats import JSON_LINES, SUFFIXES, arrow, document_reader
from ralm.errors import CorpusError, RalmWarning
from ralm.records import ORIGIN, Document
from ralm.storage.remote import FilePath, is_url, remote_file
from ralm.terminal import path_text

__all__ = ["Fields", "Skipped", "read_documents"]

_IDS_KEPT: Final = 1 << 20
_EXAMPLES: Final = 3


class RepeatedIds:
    """Counts the documents whose id is among the first million different ids and was seen before.

    Consecutive documents with one id are one document in parts, such as the pages of a PDF file.
    """

    def __init__(self) -> None:
        self.count = 0
        self.examples: dict[str, str] = {}
        """The first ids of several documents, each with the place of a later one."""
        self._last: str | None = None
        self._hashes: set[int] = set()

    def add(self, document: Document) -> None:
        """Count the id of the next document."""
        if document.id == self._last:
            return
        self._last = document.id
        if hash(document.id) in self._hashes:
            self.count += 1
            if len(self.examples) < _EXAMPLES:
                place = document.metadata.get(ORIGIN)
                self.examples.setdefault(document.id, f"{document.id} (again at {place})" if place else document.id)
        elif len(self._hashes) < _IDS_KEPT:
            self._hashes.add(hash(document.id))

    def warn(self) -> None:
        """Give a RalmWarning if several documents share an id."""
        if self.count:
            warnings.warn(
                f"several documents share an id, such as {'; '.join(self.examples.values())} ({self.count:,} have that "
                "of an earlier document): the id of a hit does not tell them apart.",
                RalmWarning,
                stacklevel=3,
            )


class Source(NamedTuple):
    """The files of a source, in order, and what was skipped in finding them; in a folder, broken ones are skipped."""

    name: str
    files: Iterator[File]
    is_folder: bool
    skipped: Skipped


def read_texts(path: Path, fields: Fields) -> list[str]:
    """Return a text to evaluate, or the texts of the documents in a file of JSON Lines."""
    if path.name.removesuffix(GZIP).endswith(JSON_LINES):
        return [document.text for document in read_documents(str(path), fields)]
    return [read_text(path)]


def read_documents(
    sources: str | Sequence[str],
    fields: Fields | None = None,
    *,
    skipped: Skipped | None = None,
    skip_bad: bool = False,
    source_in_ids: bool | None = None,
    selection: FileSelection = ALL_FILES,
    table: FileTableWriter | None = None,
) -> Iterator[Document]:
    """Read the documents of a source, or of several, in order, except those without text.

    A source is a file of a known format, a folder, the URL of one, or a dataset, `hf:NAME[:CONFIG][:SPLIT]`. The id of
    a document is that of its record. Without one it is the path of the file below the folder, followed for records by a
    colon and the number of the line or object (from 1) or row (from 0); of a single file only its name, or the number.

    Args:
        sources: One source or several.
        fields: Which fields of records make a document.
        skipped: Counts what is skipped; without it, a RalmWarning at the end lists it.
        skip_bad: Whether broken lines, objects and pages of a single file are skipped, as in folders.
        source_in_ids: Whether ids without a record's begin with the source; by default, if there are several.
        selection: Which files of folders are read, and how.
        table: Notes the files and their documents for `sync_index`.

    Raises:
        CorpusError: If a source is missing, of an unknown type, broken (naming the line), not UTF-8 (naming the byte),
            or has no documents, or if no document has a field that `fields` names for metadata.
        MissingExtraError: If a package is not installed, for a folder before anything in it is read.
        StorageError: If the connection to a file behind a URL is lost.
    """
    sources = [sources] if isinstance(sources, str) else sources
    source_in_ids = len(sources) > 1 if source_in_ids is None else source_in_ids
    counted = Skipped() if skipped is None else skipped
    builder = DocumentBuilder(fields or Fields(), counted, skip_bad=skip_bad)
    repeated = RepeatedIds()
    begins = [known_source(source, in_ids=source_in_ids).ids for source in sources]
    opened = [find_files(*named, selection) for named in zip(sources, begins, strict=True)]
    for number, source in enumerate(opened):
        noted = source if table is None else source._replace(files=table.entering(number, source.files, counted))
        for document in _documents_of(noted, builder):
            yield document
            repeated.add(document)
            if table is not None:
                table.add(document)
    if builder.never_seen:
        raise CorpusError(
            f"no document has the field {', '.join(map(repr, sorted(builder.never_seen)))}, which `fields` metadata "
            "names; correct it or leave it out."
        )
    repeated.warn()
    if skipped is None and counted.counts:
        warnings.warn(f"skipped in {', '.join(sources)}: {'; '.join(counted.lines())}", RalmWarning, stacklevel=2)


def _documents_of(source: Source, builder: DocumentBuilder) -> Iterator[Document]:
    """Yield the documents of a source that have text; CorpusError, listing what was skipped, if there is none."""
    document, skipped = None, builder.skipped
    before = Counter(skipped.counts)
    skipped.merge(source.skipped)
    for document in documents_of_files(source.files, builder, in_folder=source.is_folder):
        yield document
    if document is None:
        reasons = skipped.counts - before
        lines = [line for reason, line in zip(skipped.counts, skipped.lines(), strict=True) if reason in reasons]
        raise CorpusError(f"{source.name} holds no document" + (f"; skipped: {'; '.join(lines)}" if lines else "."))


def documents_of_files(files: Iterable[File], builder: DocumentBuilder, *, in_folder: bool) -> Iterator[Document]:
    """Yield the documents of files that have text, one after another; in a folder, what is broken is skipped."""
    skipped = builder.skipped
    if in_folder:
        builder = copy.copy(builder)  # it shares what was seen and counted
        builder.skip_bad = True
    for file in files:
        read = (
            document_reader(file.suffix)(file, builder)
            if file.dataset is None
            else arrow.dataset_documents(file, file.dataset, builder)
        )
        for document in _unless_broken(read, file.path, skipped) if in_folder else read:
            if document.text and not document.text.isspace():
                yield document
            else:
                skipped.add(documents.NO_TEXT, document.id)


def _unless_broken(read: Iterator[Document], path: FilePath, skipped: Skipped) -> Iterator[Document]:
    """Yield the documents of a file in a folder, up to where it is broken; a file without documents counts as empty."""
    before = skipped.counts.total()
    document = None
    try:
        for document in read:
            yield document
    except CorpusError as error:
        skipped.add(documents.BROKEN_FILES, documents.without_advice(error))
    if document is None and skipped.counts.total() == before:
        skipped.add(documents.EMPTY_FILES, path_text(str(path)))


def find_files(source: str, begin: str, selection: FileSelection = ALL_FILES) -> Source:
    """Return the files and datasets of a source, whose ids begin with `begin`."""
    skipped, path, prefix = Skipped(), Path(source), f"{begin}:" if begin else ""

    def single(file: File) -> Source:
        return Source(source, iter([file]), False, skipped)

    if source.startswith(folder.HUB_PREFIX):
        return single(File(path, source, prefix, dataset=source.removeprefix(folder.HUB_PREFIX)))
    if is_url(source):
        if remote := remote_file(source):
            return single(_single_file(remote, begin, prefix, selection))
        files = list(folder.files_behind_url(source, begin, skipped, selection))
    elif not path.exists() and not path.is_symlink():
        raise CorpusError(f"{source} does not exist; a dataset of the Hugging Face hub is named hf:NAME.")
    elif any((path / saved).is_file() for saved in folder.SAVED):
        return single(File(path, begin or path_text(path.absolute().name), prefix, dataset=source))
    elif not path.is_dir():
        return single(_single_file(path, begin, prefix, selection))
    else:
        files = []
        for name, suffix in folder.files_below(source, skipped, selection):
            below = path_text(Path(begin, Path(name).relative_to(path)).as_posix())
            files.append(File(Path(name), below, f"{below}:", suffix=suffix, encoding=selection.encoding))
    selection.count_unmatched([file.id.removeprefix(begin).lstrip("/") for file in files], source, skipped)
    for suffix in sorted({file.suffix for file in files}):
        document_reader(suffix)  # raises MissingExtraError
    return Source(source, iter(files), True, skipped)


def known_source(source: str, *, in_ids: bool) -> KnownSource:
    """Return a source as an index records it, with an absolute path; with `in_ids`, ids begin with its name."""
    if is_url(source) or source.startswith(folder.HUB_PREFIX):
        return KnownSource(name=source, path=source, ids=source if in_ids else "")
    name = path_text(source)
    return KnownSource(name=name, path=str(Path(source).absolute()), ids=path_text(Path(source)) if in_ids else "")


def _single_file(path: FilePath, begin: str, prefix: str, selection: FileSelection) -> File:
    suffix = selection.suffix(path.name)
    if not suffix:
        raise CorpusError(
            f"{path} is of an unknown type; give a folder, a file that ends in {', '.join(SUFFIXES)}, or hf:NAME, or "
            f'name its type, such as `read_as="{suffix_of(path.name)}=.txt"`.'
        )
    return File(path, begin or path_text(path.name), prefix, suffix=suffix, encoding=selection.encoding)


def fingerprint_of(sources: Sequence[str]) -> str:
    """Return the SHA-256 of the names and contents of all files of the sources; of a dataset of the hub of its name."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source}\n".encode("utf-8", "surrogateescape"))
        for file in find_files(source, "").files:
            for path in paths_of(file):
                digest.update(f"{path} {sha256_of(path)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
