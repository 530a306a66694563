"""`ralm sync`: makes an index what its sources are now, adds sources, and removes documents.

An index that `ralm index` built keeps a table of its files (`ralm.corpus.file_table`). Files whose size and time are as
in the table are not read, and those whose content is the same are not split again. Of files that changed, the documents
are compared one by one, so vectors of the others stay.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from ralm.corpus.documents import BROKEN_FILES, NOT_JSON, DocumentBuilder, Fields, Skipped, without_advice
from ralm.corpus.file_table import (
    Entry,
    FileState,
    FileTable,
    FileTableWriter,
    KnownSource,
    content_hash,
    document_hash,
    size_and_time,
)
from ralm.corpus.files import File
from ralm.corpus.folder import HUB_PREFIX, FileSelection
from ralm.corpus.sources import Source, documents_of_files, find_files, known_source
from ralm.errors import CorpusError, UsageError
from ralm.protocols import Encoder
from ralm.records import Document, Passage
from ralm.retrieval import layout
from ralm.retrieval.bm25.formula import BuildOptions
from ralm.retrieval.build import Stretch, rebuild_index, some_ids
from ralm.retrieval.dense.options import load_encoder
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.update import documents_to_remove, update_index
from ralm.storage import outputs
from ralm.storage.manifest import Manifest
from ralm.storage.remote import is_url
from ralm.validation import check_strings

_FIELDS: Final = TypeAdapter(Fields)


@dataclass(slots=True)
class Changes:
    """The ids of documents that are added, changed and removed, and what was skipped in the files that were read."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


@dataclass(frozen=True, slots=True)
class _Reread:
    """A new or changed file, as it was when its documents were compared, and their ids; another is an `Entry`."""

    state: FileState
    file: File
    in_folder: bool
    seen: tuple[int, int] | None
    documents: Sequence[str]


def sync_index(
    index: Path | str,
    split: Callable[[Iterable[Document]], Iterable[Passage]],
    *,
    sources: Sequence[str] = (),
    remove: Collection[str] = (),
    dry_run: bool = False,
    allow_missing: bool = False,
    encoder: Callable[[str], Encoder] | None = None,
    build: BuildOptions | None = None,
    skipped: Skipped | None = None,
) -> tuple[Changes, Manifest]:
    """Make an index what its sources are now, in one step; return the changes and the manifest.

    Documents that programs added stay, and a file in a folder that cannot be read keeps its documents. If several
    sources have a document of one id, the last change counts.

    Args:
        index: Folder of the index.
        split: Makes passages of documents (`make_passages`); it must be that of the index.
        sources: Read only these, and from now on them too. They may be new; a document with an id that the index has
            replaces that one.
        remove: Ids of documents to remove; no source is read besides `sources`.
        dry_run: Write nothing; documents of which `split` would leave nothing count as added.
        allow_missing: Remove the documents of sources that are gone or have no file any more.
        encoder: Returns the encoder of a set of vectors by its name.
        build: Memory of BM25.
        skipped: Counts what is skipped.

    Raises:
        UsageError: If a source is to be read and the index keeps no table of its files, or a new source and another one
            contain each other.
        CorpusError: If a new source does not exist, another one is gone without `allow_missing`, files share the id of
            a document, or a file changes while it is read. `update_index` raises others.
    """
    check_strings("sources", sources)
    check_strings("remove", remove)
    opened = open_index(Path(index).resolve())
    if not dry_run:
        outputs.recover(opened.path)
    changes = Changes(skipped=skipped or Skipped())
    if remove and not sources:
        changes.removed = [*documents_to_remove(opened, remove, ())]
        return changes, opened.manifest if dry_run else update_index(opened.path, remove=remove, build=build)
    record = opened.settings.files
    if record is None:
        raise UsageError(
            f"{opened.path} does not list its files, since a program built it: build it with `ralm index`."
        )
    listed = [*record.sources]
    named = {entry.path: entry for entry in (known_source(source, in_ids=True) for source in sources)}
    for path, source in named.items():
        if path not in {entry.path for entry in listed}:
            _check_apart(source, listed)
            listed.append(source)
    read = {number: source for number, source in enumerate(listed) if not named or source.path in named}
    table = FileTable(opened.path / layout.FILES_TABLE)
    before: Any = opened.manifest.settings
    fields = _fields(opened)
    builder = DocumentBuilder(fields, changes.skipped, skip_bad=record.skip_bad)
    selection = FileSelection(
        include=record.include, exclude=record.exclude, read_as=record.read_as, encoding=record.encoding
    )
    files = _compare(read, selection, table, builder, changes, len(record.sources), allow_missing=allow_missing)
    new = {*changes.added, *changes.changed}  # with records that moved to another file
    gone = documents_to_remove(opened, remove, {*new, *changes.removed})
    if not sources:
        _check_added(gone.keys() - {*changes.changed, *changes.removed}, table, files)
    changes.added = [document for document in dict.fromkeys([*changes.added, *changes.changed]) if document not in gone]
    changes.changed = [document for document in gone if document in new]
    changes.removed = [document for document in gone if document not in new]
    skipped_before = before.get("skipped", {})
    unreadable = skipped_before.get(BROKEN_FILES, {}).get("count", 0)
    differ = not named and changes.skipped.counts[BROKEN_FILES] != unreadable
    if dry_run or not (changes or differ or len(listed) > len(record.sources)):
        return changes, opened.manifest
    skipped_now = skipped_before if named else changes.skipped.as_json()
    if NOT_JSON in skipped_before:  # fields that are not seen again
        skipped_now = {NOT_JSON: skipped_before[NOT_JSON], **skipped_now}
    written = FileTableWriter(opened.path.parent, record.model_copy(update={"sources": tuple(listed)}))
    again = DocumentBuilder(fields, Skipped(), skip_bad=record.skip_bad)
    kept: set[str] = set()

    def arrange(documents: Sequence[str]) -> list[Stretch]:
        kept.update(documents)
        return _arranged(opened, files, table, {*gone}, new)

    manifest = rebuild_index(
        opened,
        split(_changed_documents(files, table, written, again, new)),
        arrange,
        encoder=encoder or (lambda name: load_encoder(opened.encoder_options(name))),
        build=build,
        table=written,
        settings={**before, "skipped": skipped_now},
    )
    changes.added = [document for document in changes.added if document in kept]
    changes.removed += [document for document in changes.changed if document not in kept]
    changes.changed = [document for document in changes.changed if document in kept]
    return changes, manifest


def _arranged(
    index: Index, files: Sequence[_Reread | Entry], table: FileTable, gone: set[str], new: set[str]
) -> list[Stretch]:
    """Return the passages of the new index in the order of its sources now; documents that programs added come last."""
    kept: dict[tuple[int, str, str], list[range]] = {}
    documents = index.passages.documents()
    document, numbers = next(documents, ("", range(0)))
    for entry in table.entries.values():  # in the order of the index, which may lack documents of the table
        for listed in table.documents(entry):
            if numbers and document == listed:
                if document not in gone:
                    kept.setdefault((entry.state.source, entry.state.file, document), []).append(numbers)
                document, numbers = next(documents, ("", range(0)))
    stretches: list[Stretch] = []
    for file in files:
        for name in table.documents(file) if isinstance(file, Entry) else file.documents:
            if ranges := kept.get((file.state.source, file.state.file, name)):
                stretches.append(ranges.pop(0))
            elif name in new and isinstance(file, _Reread):
                stretches.append(name)
    remaining = [(document, numbers), *documents]
    return [*stretches, *(numbers for document, numbers in remaining if document not in gone)]


def _fields(index: Index) -> Fields:
    try:
        return _FIELDS.validate_python(index.manifest.settings["fields"])
    except (KeyError, ValidationError):
        raise layout.damaged_index(index.path, "its manifest does not describe its fields") from None


def _check_apart(source: KnownSource, listed: Sequence[KnownSource]) -> None:
    """Raise UsageError if a source contains another one, or is a part of it."""
    for other in listed:
        if not is_url(source.path) and not is_url(other.path):
            path, other_path = Path(source.path).resolve(), Path(other.path).resolve()
            if path.is_relative_to(other_path) or other_path.is_relative_to(path):
                raise UsageError(
                    f"{source.name} and {other.name}, a source of the index, contain the same files: leave "
                    f"{source.name} out; without it, `ralm sync` reads all sources."
                )


def _compare(
    sources: Mapping[int, KnownSource],
    selection: FileSelection,
    table: FileTable,
    builder: DocumentBuilder,
    changes: Changes,
    recorded: int,
    *,
    allow_missing: bool,
) -> list[_Reread | Entry]:
    """Return all files in the order of the index, and note what changed; the first `recorded` sources may be gone."""
    files: list[_Reread | Entry] = [entry for entry in table.entries.values() if entry.state.source not in sources]
    old = {key: entry for key, entry in table.entries.items() if entry.state.source in sources}
    for number, origin in sources.items():
        had = any(source == number for source, _ in table.entries)
        is_local = not (is_url(origin.path) or origin.path.startswith(HUB_PREFIX))
        is_gone = is_local and number < recorded and not Path(origin.path).exists()
        source = Source(origin.name, iter(()), True, Skipped())
        if not is_gone:
            source = find_files(origin.path, origin.ids, selection)
        present = list(source.files)
        if had and not present and not allow_missing:
            raise CorpusError(
                f"{origin.path} {'does not exist' if is_gone else 'has no file any more'}; nothing was changed. "
                "`allow_missing=True` removes its documents."
            )
        builder.skipped.merge(source.skipped)
        for file in present:
            compared = _compare_file(file, number, old.pop((number, file.id), None), table, builder, changes, source)
            files += [compared] if compared else []
        if source.skipped.counts[BROKEN_FILES] and any(other == number for other, _ in old) and not allow_missing:
            example = source.skipped.examples[BROKEN_FILES][0]
            raise CorpusError(
                f"{example}; nothing was changed, since its documents would be removed. `allow_missing=True` does it."
            )
    for entry in old.values():
        changes.removed += dict.fromkeys([entry.state.file, *table.parts(entry)])
    return sorted(files, key=lambda entry: entry.state.source)


def _compare_file(
    file: File,
    number: int,
    old: Entry | None,
    table: FileTable,
    builder: DocumentBuilder,
    changes: Changes,
    source: Source,
) -> _Reread | Entry | None:
    """Return a file as it is now, or as in the table if it stays or cannot be read; None if it is not there."""
    seen = size_and_time(file)
    if old is not None and old.state.is_that_of(seen):
        return _kept(old, table, builder)
    try:
        content = content_hash(file)
    except CorpusError as error:
        if not source.is_folder:
            raise
        builder.skipped.add(BROKEN_FILES, without_advice(error))
        return old
    state = FileState.of(number, file, seen, content)
    if old is not None and old.state.hash == content:
        return _kept(old._replace(state=state), table, builder)
    broken, before = builder.skipped.counts[BROKEN_FILES], table.parts(old)
    ids, documents = Changes(), list[str]()
    if old is not None:
        before.setdefault(file.id, [])
    for document, parts in _documents(file, builder, in_folder=source.is_folder):
        documents.append(document)
        hashes = before.pop(document, None)
        if hashes is None:
            ids.added.append(document)
        elif hashes != [document_hash(part) for part in parts]:
            ids.changed.append(document)
    if old is not None and builder.skipped.counts[BROKEN_FILES] > broken:
        return old
    changes.added += ids.added
    changes.changed += ids.changed
    changes.removed += before
    return _Reread(state, file, source.is_folder, seen, documents)


def _kept(entry: Entry, table: FileTable, builder: DocumentBuilder) -> Entry:
    """Return the entry of a file that is not read again, and count what was skipped in it."""
    for reason, example, count in table.skipped(entry):
        builder.skipped.add(reason, example, count)
    return entry


def _documents(file: File, builder: DocumentBuilder, *, in_folder: bool) -> Iterator[tuple[str, list[Document]]]:
    """Yield the documents of a file, each with its id and its parts, such as the pages of a PDF file."""
    for document, parts in groupby(documents_of_files([file], builder, in_folder=in_folder), attrgetter("id")):
        yield document, list(parts)


def _check_added(clashing: Set[str], table: FileTable, files: Sequence[_Reread | Entry]) -> None:
    """Raise CorpusError if an id that added documents share with the index is in a file that did not change."""
    for file in files if clashing else ():
        if isinstance(file, Entry) and (shared := sorted(clashing & {file.state.file, *table.parts(file)})):
            raise CorpusError(
                f"{some_ids(shared)} in {file.state.file} and in another file; nothing was changed. Give each document "
                "an id of its own."
            )


def _changed_documents(
    files: Iterable[_Reread | Entry],
    table: FileTable,
    written: FileTableWriter,
    builder: DocumentBuilder,
    new: Set[str],
) -> Iterator[Document]:
    """Yield the new documents, in order, and write the new table."""
    for entry in files:
        if isinstance(entry, Entry):
            written.enter(entry.state, table.lines(entry))
            continue
        written.enter(entry.state)
        before = Counter(builder.skipped.counts)
        for document, parts in _documents(entry.file, builder, in_folder=entry.in_folder):
            for part in parts:
                written.add(part)
            if document in new:
                yield from parts
        written.add_skipped(builder.skipped.since(before))
        if entry.seen != size_and_time(entry.file):
            raise CorpusError(f"{entry.file.path} changed while it was read; nothing was changed. Run it again.")
