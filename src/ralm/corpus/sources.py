"""Reads documents one at a time from files, folders, URLs and Hugging Face datasets, and counts what it skips."""

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.corpus.documents import (
    BROKEN_FILES,
    EMPTY_FILES,
    NO_TEXT,
    DocumentBuilder,
    Fields,
    Skipped,
    check_metadata,
    without_advice,
)
from ralm.corpus.files import File, suffix_of
from ralm.corpus.folder import HUB_PREFIX, SAVED_DATASET, SAVED_SPLITS, Found, files_behind_url, files_below
from ralm.corpus.formats import SUFFIXES, document_reader, is_known
from ralm.corpus.formats.arrow import check_datasets, dataset_documents
from ralm.errors import CorpusError, RalmWarning, UsageError
from ralm.records import Document
from ralm.storage.remote import FilePath, RemoteFile, check_read_to_end, is_url, remote_file
from ralm.terminal import path_text

__all__ = ["Fields", "Skipped", "read_documents"]

_IDS_AT_ONCE: Final = 1 << 16
_MAX_IDS: Final = 1 << 23
_EXAMPLES: Final = 3
_BITS: Final = (1 << 64) - 1


class RepeatedIds:
    """Counts the documents whose id an earlier document has, among the first 8,388,608 documents.

    Consecutive documents with one id are one document in parts, such as the pages of a PDF file. Memory is bounded: 8
    bytes a document.
    """

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[str] = []
        self._seen: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        """The hashes of all ids so far, sorted; two ids of 8 million share one by chance once in a million corpora."""

    def watched(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The same documents; the counts are complete after the last one."""
        last = None
        ids: list[str] = []
        for document in documents:
            yield document
            if document.id != last:
                last = document.id
                ids.append(last)
            if len(ids) == _IDS_AT_ONCE:
                self._add(ids)
                ids.clear()
        self._add(ids)

    def watch(self, ids: Iterable[str]) -> None:
        """Count these ids, of consecutive documents or passages."""
        different = (identifier for identifier, _ in groupby(ids))
        while some := list(islice(different, _IDS_AT_ONCE)):
            if len(self._seen) >= _MAX_IDS:
                return
            self._add(some)

    def _add(self, ids: list[str]) -> None:
        if len(self._seen) >= _MAX_IDS or not ids:
            return
        hashes = np.fromiter((hash(identifier) & _BITS for identifier in ids), np.uint64, len(ids))
        order = np.argsort(hashes, kind="stable")
        repeated = np.zeros(len(ids), dtype=np.bool_)
        repeated[order[1:]] = hashes[order[1:]] == hashes[order[:-1]]
        if len(self._seen):
            places = np.minimum(np.searchsorted(self._seen, hashes), len(self._seen) - 1)
            repeated |= self._seen[places] == hashes
        self.count += int(repeated.sum())
        examples = dict.fromkeys([*self.examples, *(ids[place] for place in np.flatnonzero(repeated).tolist())])
        self.examples = list(examples)[:_EXAMPLES]
        self._seen = np.sort(np.concatenate([self._seen, hashes]), kind="stable")


def read_documents(
    sources: str | Sequence[str],
    fields: Fields | None = None,
    *,
    skipped: Skipped | None = None,
    skip_bad: bool = False,
    source_in_ids: bool | None = None,
) -> Iterator[Document]:
    """The documents of a source, or of several, in order, except those without text.

    A source is one of:

    - a file: .txt, .text, .md, .markdown or .rst; .jsonl or .ndjson; .json (an object or an array of objects); .csv;
      .tsv (id, text, title, as DPR's); .parquet; .html, .htm or .xhtml; .pdf (a document per page, all with one id);
      .docx. All but the last two and .parquet may be gzipped (.gz);
    - a folder: every such file below it, and every dataset that `datasets` saved, in the order of the paths;
    - a folder that `datasets` saved, or `hf:NAME[:CONFIG][:SPLIT]`, a dataset of the Hugging Face hub or a folder
      that `datasets` can load; a single word after the name is a configuration if there is one of that name;
    - the URL of such a file, or of a folder of them, that fsspec can read: `s3://BUCKET/FOLDER`, `gs://`; of web
      servers (`https://`) only files.

    The id of a document is that of its record. Without one it is the path of the file below the folder, followed for
    records by a colon and the number of the line or object (from 1) or row (from 0). For a single file it is only the
    file name or the number; with several sources, or if `source_in_ids` is true, it begins with the source.

    The ids of records are kept as they are. A RalmWarning at the end names ids that several documents share (the first
    eight million are compared).

    `skipped` counts what is skipped; without it, a RalmWarning at the end lists it. In a folder, broken lines and files
    and files of unknown kinds are skipped. A broken file that is itself a source is an error; with `skip_bad`, its
    broken lines, objects and pages are skipped.

    Raises CorpusError if a source is missing, of an unknown type, broken (naming the line), not UTF-8 (naming the
    byte), or has no documents, or if no document has a field that `fields` names for metadata; MissingExtraError if a
    package is not installed, for a folder before anything in it is read; StorageError if the connection to a file
    behind a URL is lost.
    """
    sources = [sources] if isinstance(sources, str) else sources
    source_in_ids = len(sources) > 1 if source_in_ids is None else source_in_ids
    counted = Skipped() if skipped is None else skipped
    builder = DocumentBuilder(fields or Fields(), counted, skip_bad=skip_bad)
    opened = [(source, _open(source, source if source_in_ids else "", builder)) for source in sources]
    repeated = RepeatedIds()
    yield from repeated.watched(
        document for source, documents in opened for document in _with_text(source, documents, counted)
    )
    check_metadata(builder.never_seen)
    warn_of_repeated_ids(repeated)
    if skipped is None and counted.counts:
        warnings.warn(f"skipped in {', '.join(sources)}: {'; '.join(counted.lines())}", RalmWarning, stacklevel=2)


def warn_of_repeated_ids(ids: RepeatedIds) -> None:
    """Give a RalmWarning if several documents share an id."""
    if ids.count:
        warnings.warn(
            f"several documents share an id, such as {', '.join(ids.examples)} ({ids.count:,} have that of an "
            "earlier document): the id of a hit does not tell them apart.",
            RalmWarning,
            stacklevel=3,
        )


def _with_text(source: str, documents: Iterator[Document], skipped: Skipped) -> Iterator[Document]:
    """The documents that have text.

    Raises CorpusError, listing what was skipped, if there is none.
    """
    document = None
    before = Counter(skipped.counts)
    for document in with_text(documents, skipped):
        yield document
    if document is None:
        raise no_document(source, skipped, skipped.counts - before)


def with_text(documents: Iterator[Document], skipped: Skipped) -> Iterator[Document]:
    """The documents that have text; the others are counted as skipped."""
    for document in documents:
        if document.text and not document.text.isspace():
            yield document
        else:
            skipped.add(NO_TEXT, document.id)


def no_document(source: str, skipped: Skipped, reasons: Collection[str]) -> CorpusError:
    """The error for a source without documents, listing what was skipped for these reasons."""
    lines = [line for reason, line in zip(skipped.counts, skipped.lines(), strict=True) if reason in reasons]
    return CorpusError(f"{source} holds no document" + (f"; skipped: {'; '.join(lines)}" if lines else "."))


def _open(source: str, begin: str, builder: DocumentBuilder) -> Iterator[Document]:
    """The documents of a source; ids begin with `begin`, unless it is empty."""
    if is_url(source):
        return _remote_documents(source, begin, builder)
    if source.startswith(HUB_PREFIX):
        return dataset_documents(source.removeprefix(HUB_PREFIX), _prefix(begin), builder)
    path = _existing(source)
    if not path.is_dir():
        file = _file_of(path, begin)
        return document_reader(file.suffix)(file, builder)
    if _is_saved(path):
        return dataset_documents(source, _prefix(path_text(Path(begin)) if begin else ""), builder)
    return _folder_documents(path, builder.skipping_bad(), begin)


def files_of(source: str, begin: str, skipped: Skipped) -> tuple[list[File], bool]:
    """The files of a source, which can be read separately, and whether it is a folder; ids begin with `begin`, unless
    it is empty.

    Raises CorpusError as `read_documents` does, UsageError if the source is a dataset or holds one.
    """
    if is_url(source):
        return _remote_files(source, begin, skipped)
    path = Path(source) if source.startswith(HUB_PREFIX) else _existing(source)
    if source.startswith(HUB_PREFIX) or _is_saved(path):
        raise _only_files(source)
    if not path.is_dir():
        return [_file_of(path, begin)], False
    everything = list(files_below(str(path), skipped))
    _check_extras(everything)
    for found in everything:
        if found.is_dataset:
            raise _only_files(found.path)
    return [_file_below(path, found, begin) for found in everything], True


def _only_files(source: str) -> UsageError:
    return UsageError(f"{source} is a dataset, and several machines can only read files; save it as Parquet first.")


def _existing(source: str) -> Path:
    path = Path(source)
    if not path.exists() and not path.is_symlink():
        raise CorpusError(f"{source} does not exist; a dataset of the Hugging Face hub is named hf:NAME.")
    return path


def _is_saved(folder: Path) -> bool:
    """Whether `datasets` saved this folder."""
    return any((folder / saved).is_file() for saved in (SAVED_DATASET, SAVED_SPLITS))


def _remote_documents(url: str, begin: str, builder: DocumentBuilder) -> Iterator[Document]:
    files, in_folder = _remote_files(url, begin, builder.skipped)
    return documents_of_files(files, builder.skipping_bad() if in_folder else builder, in_folder=in_folder)


def documents_of_files(files: Sequence[File], builder: DocumentBuilder, *, in_folder: bool) -> Iterator[Document]:
    """The documents of files, one after another; in a folder, what is broken is skipped.

    Raises StorageError if a file behind a URL cannot be read to its end.
    """
    for file in files:
        documents = document_reader(file.suffix)(file, builder)
        yield from _unless_broken(documents, file.path, builder.skipped) if in_folder else documents
        check_read_to_end(file.path)


def _remote_files(url: str, begin: str, skipped: Skipped) -> tuple[list[File], bool]:
    """The files behind a URL, and whether it is a folder of them. Raises CorpusError if there is nothing."""
    file = remote_file(url)
    if file is not None:
        return [_file_of(file, begin)], False
    found = [
        File(one, name, _prefix(name))
        for path, one in files_behind_url(url, skipped)
        for name in ["/".join([*([begin] if begin else []), path])]
    ]
    for suffix in sorted({one.suffix for one in found}):
        document_reader(suffix)
    return found, True


def _file_of(path: FilePath, begin: str) -> File:
    """A source that is a file."""
    if not is_known(path.name):
        kinds = ", ".join(SUFFIXES)
        other = "a folder of an object store" if isinstance(path, RemoteFile) else "a folder"
        raise CorpusError(f"{path} is of an unknown type; give {other}, a file that ends in {kinds}, or hf:NAME.")
    name = begin if isinstance(path, RemoteFile) else path_text(Path(begin)) if begin else ""
    return File(path, name or path_text(path.name), _prefix(name))


def _file_below(folder: Path, found: Found, begin: str) -> File:
    path = Path(found.path)
    name = path_text(Path(begin, path.relative_to(folder)).as_posix())
    return File(path, name, _prefix(name))


def _folder_documents(folder: Path, builder: DocumentBuilder, begin: str) -> Iterator[Document]:
    """The documents of all files and datasets below a folder; what is broken is skipped."""
    everything = list(files_below(str(folder), builder.skipped))
    _check_extras(everything)
    for found in everything:
        file = _file_below(folder, found, begin)
        documents = (
            dataset_documents(found.path, file.prefix, builder)
            if found.is_dataset
            else document_reader(file.suffix)(file, builder)
        )
        yield from _unless_broken(documents, Path(found.path), builder.skipped)


def _check_extras(everything: list[Found]) -> None:
    """Raise MissingExtraError if one of the files needs a package that is missing."""
    for suffix in sorted({suffix_of(found.path) for found in everything if not found.is_dataset}):
        document_reader(suffix)
    for found in everything:
        if found.is_dataset:
            check_datasets(found.path)
            break


def _unless_broken(documents: Iterator[Document], path: FilePath, skipped: Skipped) -> Iterator[Document]:
    """The documents of a file in a folder, up to where it is broken; a file without documents is counted as empty."""
    before = skipped.counts.total()
    document = None
    try:
        for document in documents:
            yield document
    except CorpusError as error:
        check_read_to_end(path)
        skipped.add(BROKEN_FILES, without_advice(error))
    if document is None and skipped.counts.total() == before:
        skipped.add(EMPTY_FILES, path_text(str(path)))


def _prefix(name: str) -> str:
    """The beginning of ids that are otherwise only a number."""
    return f"{name}:" if name else ""
