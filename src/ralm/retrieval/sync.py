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

from pydantic import JsonValue, TypeAdapter, ValidationError

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
    """A file of a source that is new or changed: as it was when its documents were compared, and their ids, in order.
    A file that stays is an `Entry` of the table."""

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
    """Make an index what its sources are now; return the changes and the manifest.

    With `sources`, only these are read; they may be new, and a document with an id that the index has replaces that
    one. Later calls read them too. With `remove`, the documents with these ids are removed, and no source is read
    besides `sources`. If several sources have a document of one id, the last change counts.

    `split` makes passages of documents (`make_passages`); it must be that of the index. With `dry_run` nothing is
    written, and documents of which `split` would leave nothing count as added. `encoder` gives the encoder of a set of
    vectors by its name. `skipped` counts what is skipped. All changes happen in one step, as in `update_index`;
    documents that programs added stay. A file in a folder that cannot be read keeps its documents.

    Raises UsageError if a source is to be read and the index keeps no table of its files, or a new source and another
    one contain each other; CorpusError if a new source does not exist; if another one is gone or has no file any more,
    unless `allow_missing` is true, which removes its documents; if files share the id of a document, or a file changes
    while it is read; and what `update_index` raises.
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
    known = [*record.sources]
    named = {one.path: one for one in (known_source(source, in_ids=True) for source in sources)}
    for path, source in named.items():
        if path not in {one.path for one in known}:
            _check_apart(source, known)
            known.append(source)
    read = {number: source for number, source in enumerate(known) if not named or source.path in named}
    table = FileTable(opened.path / layout.FILES_TABLE)
    builder = DocumentBuilder(_fields(opened), changes.skipped, skip_bad=record.skip_bad)
    selection = FileSelection(
        include=record.include, exclude=record.exclude, read_as=record.read_as, encoding=record.encoding
    )
    files = _compare(read, selection, table, builder, changes, len(record.sources), allow_missing=allow_missing)
    new = {*changes.added, *changes.changed}  # with records that moved to another file
    gone = documents_to_remove(opened, remove, {*new, *changes.removed})
    if not sources:
        _check_added(gone.keys() - {*changes.changed, *changes.removed}, table, files)
    changes.added = [one for one in dict.fromkeys([*changes.added, *changes.changed]) if one not in gone]
    changes.changed = [one for one in gone if one in new]
    changes.removed = [one for one in gone if one not in new]
    settings = opened.manifest.settings
    if not named:
        settings = {**settings, "skipped": _skipped_now(settings, changes.skipped)}
    differ = _unreadable(settings) != _unreadable(opened.manifest.settings)
    if dry_run or not (changes or differ or len(known) > len(record.sources)):
        return changes, opened.manifest
    written = FileTableWriter(opened.path.parent, record.model_copy(update={"sources": tuple(known)}))
    again = DocumentBuilder(builder.fields, Skipped(), skip_bad=record.skip_bad)
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
        settings=settings,
    )
    changes.added = [one for one in changes.added if one in kept]
    changes.removed += [one for one in changes.changed if one not in kept]
    changes.changed = [one for one in changes.changed if one in kept]
    return changes, manifest


def _arranged(
    index: Index, files: Sequence[_Reread | Entry], table: FileTable, gone: set[str], new: set[str]
) -> list[Stretch]:
    """The passages of the new index in the order of an index that is built of its sources now; documents that programs
    added come last."""
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
    for one in files:
        for name in table.documents(one) if isinstance(one, Entry) else one.documents:
            if ranges := kept.get((one.state.source, one.state.file, name)):
                stretches.append(ranges.pop(0))
            elif name in new and isinstance(one, _Reread):
                stretches.append(name)
    others = [(document, numbers), *documents]
    return [*stretches, *(numbers for document, numbers in others if document not in gone)]


def _fields(index: Index) -> Fields:
    try:
        return _FIELDS.validate_python(index.manifest.settings["fields"])
    except (KeyError, ValidationError):
        raise layout.damaged_index(index.path, "its manifest does not say which fields make a document") from None


def _check_apart(source: KnownSource, others: Sequence[KnownSource]) -> None:
    """Raise UsageError if a source contains another one, or is a part of it."""
    for other in others:
        if not is_url(source.path) and not is_url(other.path):
            own, its = Path(source.path).resolve(), Path(other.path).resolve()
            if own.is_relative_to(its) or its.is_relative_to(own):
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
    """Return all files in the order of the index, and note what changed in `sources`, by number, of which the first
    `recorded` may be gone. The files of other sources are as in the table."""
    files: list[_Reread | Entry] = [one for one in table.entries.values() if one.state.source not in sources]
    left = {key: entry for key, entry in table.entries.items() if entry.state.source in sources}
    for number, known in sources.items():
        had = any(source == number for source, _ in table.entries)
        is_local = not (is_url(known.path) or known.path.startswith(HUB_PREFIX))
        is_gone = is_local and number < recorded and not Path(known.path).exists()
        source = Source(known.name, iter(()), True, Skipped())
        if not is_gone:
            source = find_files(known.path, known.ids, selection, builder.skipped.listing)
        present = list(source.files)
        if had and not present and not allow_missing:
            raise CorpusError(
                f"{known.path} {'does not exist' if is_gone else 'has no file any more'}; nothing was changed. "
                "`allow_missing=True` removes its documents."
            )
        builder.skipped.merge(source.skipped)
        for file in present:
            compared = _compare_file(file, number, left.pop((number, file.id), None), table, builder, changes, source)
            files += [compared] if compared else []
        if source.skipped.counts[BROKEN_FILES] and any(other == number for other, _ in left) and not allow_missing:
            example = source.skipped.examples[BROKEN_FILES][0]
            raise CorpusError(
                f"{example}; nothing was changed, since its documents would be removed. `allow_missing=True` does it."
            )
    for entry in left.values():
        changes.removed += dict.fromkeys([entry.state.file, *table.parts(entry)])
    return sorted(files, key=lambda one: one.state.source)


def _compare_file(
    file: File,
    number: int,
    old: Entry | None,
    table: FileTable,
    builder: DocumentBuilder,
    changes: Changes,
    source: Source,
) -> _Reread | Entry | None:
    """A file as it is now, or as in the table if it did not change or cannot be read; None if it is not there."""
    seen = size_and_time(file)
    if old is not None and old.state.is_that_of(seen):
        _skip_again(table, old, builder.skipped)
        return old
    try:
        content = content_hash(file)
    except CorpusError as error:
        if not source.is_folder:
            raise
        builder.skipped.add(BROKEN_FILES, without_advice(error))
        return old
    state = FileState.of(number, file, seen, content)
    if old is not None and old.state.hash == content:
        _skip_again(table, old, builder.skipped)
        return old._replace(state=state)
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


def _skipped_now(before: Mapping[str, Any], skipped: Skipped) -> dict[str, JsonValue]:
    """What was skipped in all files, as a manifest records it. Fields that JSON cannot hold stay as they were recorded,
    since a table of files does not note them."""
    recorded = before.get("skipped", {})
    return {**{reason: recorded[reason] for reason in (NOT_JSON,) if reason in recorded}, **skipped.as_json()}


def _unreadable(settings: Mapping[str, Any]) -> int:
    """The number of files that could not be read, as the settings of a manifest record it."""
    return int(settings.get("skipped", {}).get(BROKEN_FILES, {}).get("count", 0))


def _skip_again(table: FileTable, entry: Entry, skipped: Skipped) -> None:
    """Count what was skipped in a file that is not read again."""
    for reason, example, count in table.skipped(entry):
        skipped.add(reason, example, count)


def _documents(file: File, builder: DocumentBuilder, *, in_folder: bool) -> Iterator[tuple[str, list[Document]]]:
    """The documents of a file, each with its id and its parts, such as the pages of a PDF file."""
    for document, parts in groupby(documents_of_files([file], builder, in_folder=in_folder), attrgetter("id")):
        yield document, list(parts)


def _check_added(clashing: Set[str], table: FileTable, files: Sequence[_Reread | Entry]) -> None:
    """Raise CorpusError if one of these ids, which added documents share with documents of the index, is in a file that
    did not change. The ids of documents that `update_index` added are no fault: these are replaced."""
    for one in files if clashing else ():
        if isinstance(one, Entry) and (shared := sorted(clashing & {one.state.file, *table.parts(one)})):
            raise CorpusError(
                f"{some_ids(shared)} in {one.state.file} and in another file; nothing was changed. Give each document "
                "an id of its own."
            )


def _changed_documents(
    files: Iterable[_Reread | Entry],
    table: FileTable,
    written: FileTableWriter,
    builder: DocumentBuilder,
    new: Set[str],
) -> Iterator[Document]:
    """The new documents, in order; writes the new table."""
    for one in files:
        if isinstance(one, Entry):
            written.enter(one.state, table.lines(one))
            continue
        written.enter(one.state)
        before = Counter(builder.skipped.counts)
        for document, parts in _documents(one.file, builder, in_folder=one.in_folder):
            for part in parts:
                written.add(part)
            if document in new:
                yield from parts
        written.add_skipped(builder.skipped.since(before))
        if one.seen != size_and_time(one.file):
            raise CorpusError(f"{one.file.path} changed while it was read; nothing was changed. Run it again.")
