"""Changes an index in one step, while other processes read it: adds and removes documents and sets of vectors.

Passages that are added become a segment of their own. Removed ones are listed and stay where they are. The passages
that are left are numbered and searched as if the index had been built of them at once. Small and sparse segments are
merged (`ralm.retrieval.writer`).

The manifest of the index is replaced in one step. A process that has the index open keeps the version that it opened,
and a process that is killed leaves the index unchanged.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace as with_changes
from datetime import UTC, datetime
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from pydantic import JsonValue

from ralm.corpus import numbering, store
from ralm.corpus.file_table import FileTableWriter
from ralm.errors import CorpusError, FolderError, FolderExistsError, UsageError
from ralm.protocols import Encoder
from ralm.records import IntArray, Passage
from ralm.retrieval import layout
from ralm.retrieval.analysis import Analyser, Analysis
from ralm.retrieval.bm25 import formula, segments
from ralm.retrieval.bm25.build import BM25Builder
from ralm.retrieval.build import add_all, dense_builder
from ralm.retrieval.columns import write_columns
from ralm.retrieval.dense.options import NOTHING_ENCODED, EncodingStats, VectorOptions, dense_extra, load_encoder
from ralm.retrieval.index import Index, check_stemmer, open_index
from ralm.retrieval.writer import IndexWriter, changed_index, merge_small_segments
from ralm.storage import atomic, manifest, work
from ralm.terminal import Advance, progress_bar

if TYPE_CHECKING:
    from ralm.retrieval.dense.build import DenseBuilder

_UPDATES_LISTED: Final = 100
_NEW: Final = "new-vectors"
_IDS_SHOWN: Final = 3
_FOLDER_NAMES: Final = ("encoder", "query_encoder")
"""The keys of folders in an encoder's configuration; they are not compared, since folders may be moved."""


def update_index(
    index: Path | str,
    passages: Iterable[Passage] = (),
    *,
    remove: Collection[str] = (),
    replace: bool = False,
    encoders: Mapping[str, Encoder] | None = None,
    describe: Callable[[], dict[str, JsonValue]] = dict,
    build: formula.BuildOptions | None = None,
    table: FileTableWriter | None = None,
) -> manifest.Manifest:
    """Remove the documents with the ids in `remove` from an index, and add passages, numbered from 0, at its end.
    Returns the new manifest.

    All of it happens in one step; an index that is open does not change. Afterwards the index has the same hits, with
    the same passage numbers, as one that is built at once of the passages that are left. (Added vectors are compared
    exactly, even if the index is approximate.) Its fingerprint changes, so unfinished runs do not resume with it.

    Adding a document whose id the index already has is an error, unless `replace` is true: then the older one is
    removed. Passages are analysed with the analyser of the index, and encoded for each of its sets of vectors: by the
    encoder in `encoders` under the set's name, otherwise by the one that the index names. Encoded vectors are kept
    beside the index until the update is complete, so the same call resumes. `describe` is called after the last
    passage; the manifest records what it returns. `build`: the memory of BM25, and the number of processes that
    analyse. `table`: the files of the index after the update, for `sync_index`.

    Raises UsageError if there is nothing to do or nothing would be left; CorpusError if an id in `remove` is not in the
    index or belongs to several documents, or if an added id occurs twice or is already in the index; FolderError
    if an encoder is not the one that made the vectors; FolderError if the index was built with another version
    of the stemming library; FolderExistsError if another process is writing the index, or has just changed it; and
    the errors of `open_index`, `build_index` and `DenseBuilder`.
    """
    path, remove = Path(index).resolve(), [*remove]
    rest = iter(passages)
    first = next(rest, None)
    opened = open_index(path)
    check_stemmer(opened)
    chosen = _encoders(opened, encoders or {}) if first else {}
    added: layout.OpenSegment | None = None
    documents: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(atomic.storage_errors(path))
        if chosen:
            stack.enter_context(work.work_folder(work.unfinished(path), path))
        writer = IndexWriter(opened, stack.enter_context(changed_index(opened)))
        gone = documents_to_remove(opened, remove, [], replace=replace)  # fails before hours of encoding
        if first:
            added = _add(writer, chain([first], rest), documents, chosen, build)
            gone = documents_to_remove(opened, remove, documents, replace=replace)
        numbers = np.sort(np.concatenate([np.zeros(0, np.int64), *gone.values()]))
        if added is None and len(numbers) == len(opened.passages):
            raise UsageError(f"nothing would be left of {path}; build a new index instead.")
        if added is None and not gone and table is None:
            raise UsageError("there is nothing to update: give passages to add, or documents to remove.")
        fingerprint, sets = opened.fingerprint, opened.vector_sets
        if added is not None or gone:
            fingerprint, sets = _fingerprints(opened, numbers, added)
        _remove(writer, numbers)
        if added is not None:
            writer.segments.append(added)
        merge_small_segments(writer, build)
        record: dict[str, JsonValue] = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "added": {"documents": len(documents), "passages": added.passages} if added else None,
            "removed": {"documents": len(gone), "passages": len(numbers)},
            "replaced": len(gone.keys() & {*documents}),
            "corpus": describe(),
        }
        known: Any = opened.manifest.settings.get(layout.UPDATES, {"count": 0, "latest": []})
        updates = {"count": known["count"] + 1, "latest": [*known["latest"], record][-_UPDATES_LISTED:]}
        left = opened.manifest.counts.get("documents", 0) - len(gone) + len(documents)
        settings: dict[str, JsonValue] = {layout.UPDATES: updates}
        if table is not None:
            settings[layout.FILES] = table.save(writer.folder, f"{writer.new_path(layout.FILES)}.table")
        return writer.write(settings, sets, fingerprint, left)


def _encoders(index: Index, given: Mapping[str, Encoder]) -> dict[str, Encoder]:
    """The encoder of each set of vectors, which must be the one that made them."""
    chosen = {name: given.get(name) or load_encoder(index.encoder_options(name)) for name in index.vectors}
    for name, encoder in chosen.items():
        made, own = index.vector_sets.sets[name].encoder, encoder.config
        other = sorted(key for key in made.keys() - {*_FOLDER_NAMES} if made[key] != own.get(key))
        if other:
            raise FolderError(
                f"the vectors {name!r} of {index.path} were made with another encoder than this one: {other[0]} is "
                f"{own.get(other[0])!r} here and was {made[other[0]]!r} there. Use that encoder, or encode the "
                "whole index again with this one (`ralm encode`)."
            )
    return chosen


def _add(
    writer: IndexWriter,
    passages: Iterable[Passage],
    documents: list[str],
    encoders: Mapping[str, Encoder],
    build: formula.BuildOptions | None,
) -> layout.OpenSegment:
    """Write a segment of these passages; the ids of their documents are appended to `documents`."""
    path = writer.new_path(layout.SEGMENTS)
    folder, analysis = writer.folder / path, writer.index.analysis
    folder.mkdir(parents=True)
    files = {name: layout.vectors_file(path, name) for name in encoders}
    with progress_bar("Encoding passages" if encoders else "Indexing passages") as advance:
        terms = BM25Builder(folder / layout.BM25_FOLDER, build, analysis) if analysis else None
        shown: list[Advance | None] = [advance, *(None for _ in encoders)]  # each passage is counted once
        vectors = [
            _vectors_builder(writer, files[name], name, encoder, shown.pop(0)) for name, encoder in encoders.items()
        ]
        written = store.write_passages(folder / store.PASSAGES_FILE, _noting_documents(passages, documents))
        counts = add_all(written, terms, vectors, advance)
        if terms:
            terms.finish()
        for builder in vectors:
            builder.finish()
    twice = [document for document, count in Counter(documents).items() if count > 1]
    if twice:
        raise CorpusError(
            f"{some_ids(twice)} given twice among the added documents; give each document an id of its own."
        )
    entry = layout.SegmentEntry(folder=path, passages=counts.passages, columns=write_columns(folder))
    return layout.open_segment(writer.folder, entry, files, bm25=writer.for_bm25)


def _vectors_builder(
    writer: IndexWriter, file: str, name: str, encoder: Encoder, advance: Advance | None
) -> "DenseBuilder":
    """A builder of the vectors with this name for an added segment; small segments are compared exactly."""
    with dense_extra():
        from ralm.retrieval.dense.build import kind_of_added
    options = writer.index.vector_sets.sets[name].options
    options = with_changes(options, faiss=kind_of_added(encoder.dimension, options.faiss))
    return dense_builder((writer.folder / file).parent, writer.index.path, encoder, options, advance)


def _noting_documents(passages: Iterable[Passage], documents: list[str]) -> Iterator[Passage]:
    for passage in passages:
        if not documents or documents[-1] != passage.document_id:
            documents.append(passage.document_id)
        yield passage


def documents_to_remove(
    index: Index, remove: Collection[str], added: Iterable[str], *, replace: bool = True
) -> dict[str, IntArray]:
    """Return the documents with ids in `remove`, and with `replace` in `added`, and the numbers (int64) of their
    passages, by id. Raises CorpusError as `update_index` does."""
    found = _numbers_by_document(index, {*remove, *added})
    missing = [document for document in dict.fromkeys(remove) if document not in found]
    if missing:
        raise CorpusError(f"{some_ids(missing)} not in {index.path}; nothing was changed.")
    kept = found.keys() - {*remove}
    clashing = [document for document in added if document in kept]
    if clashing and not replace:
        raise CorpusError(
            f"{some_ids(clashing)} already in {index.path}; nothing was changed. Replace such documents with "
            "`replace=True`, or give the new ones other ids."
        )
    several = [document for document, numbers in found.items() if numbers[-1] - numbers[0] >= len(numbers)]
    if several:
        raise CorpusError(
            f"{some_ids(several, 'id')} shared by several documents of {index.path}, so which to remove is unclear; "
            "nothing was changed. Build the index again with an id for each document."
        )
    return found


def _numbers_by_document(index: Index, documents: Collection[str]) -> dict[str, IntArray]:
    """The numbers (int64, rising) of the passages of documents with these ids, by id."""
    found: dict[str, list[int]] = {}
    first = 0
    for segment in index.segments if documents else ():
        rows = segment.store.rows_of(documents)
        rows = rows[~numbering.are_in(segment.removed.rows, rows)]
        numbers = index.passages.numbering.numbers(first + rows)
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            found.setdefault(segment.store.origin(row)[1], []).append(number)
        first += segment.passages
    return {document: np.array(numbers, np.int64) for document, numbers in found.items()}


def _remove(writer: IndexWriter, numbers: IntArray) -> None:
    """Record in the segments that the passages with these numbers (int64, rising) are removed."""
    rows, first = writer.index.passages.numbering.rows(numbers), 0
    for place, segment in enumerate(writer.segments):
        own = rows[(rows >= first) & (rows < first + segment.passages)] - first
        first += segment.passages
        if len(own):
            removed = _removed(segment, own, writer.index.analysis)
            listed = layout.write_removed(writer.folder, writer.new_path(layout.REMOVED), removed, bm25=writer.for_bm25)
            entry = segment.entry.model_copy(update={"removed": listed})
            writer.segments[place] = with_changes(segment, entry=entry, removed=removed)


def _removed(segment: layout.OpenSegment, rows: IntArray, analysis: Analysis | None) -> segments.RemovedPassages:
    """All removed passages of a segment, including these rows (int64), whose texts are analysed for it."""
    every = numbering.union(segment.removed.rows, rows)
    if analysis is None:
        return segments.RemovedPassages(rows=every)
    searched = segment.for_bm25()
    searched.check()
    lost = segments.removed_frequencies(searched)
    tokens, with_terms = searched.removed.tokens, searched.removed.with_terms
    analyse = Analyser(analysis)
    for row in rows.tolist():
        words = analyse(segment.store[row].contents)
        terms = [searched.arrays.term(word) for word in set(words)]
        if -1 in terms:
            raise layout.damaged_index(
                segment.root / segment.entry.folder, "a passage has terms that its BM25 arrays do not have"
            )
        lost[terms] += 1
        tokens += len(words)
        with_terms += bool(words)
    gone = np.flatnonzero(lost)
    return segments.RemovedPassages(rows=every, terms=gone, counts=lost[gone], tokens=tokens, with_terms=with_terms)


def _fingerprints(index: Index, gone: IntArray, added: layout.OpenSegment | None) -> tuple[str, layout.VectorSets]:
    """The fingerprint of the index after the change, and its sets of vectors with theirs."""
    change = {"removed": numbering.hash_of_numbers(gone)}
    vectors: Mapping[str, str] = {}
    if added is not None:
        change["added"] = manifest.whole_checksum(added.root / added.entry.file(store.PASSAGES_FILE))
        vectors = {name: manifest.whole_checksum(added.root / file) for name, file in added.vectors.items()}
    sets = {
        name: one.model_copy(
            update={
                "fingerprint": layout.fingerprint_after(one.fingerprint, {**change, "vectors": vectors.get(name, "")})
            }
        )
        for name, one in index.vector_sets.sets.items()
    }
    return layout.fingerprint_after(index.fingerprint, change), index.vector_sets.model_copy(update={"sets": sets})


def some_ids(ids: Sequence[str], what: str = "document") -> str:
    """The subject and verb of a sentence about documents or their ids: their number, and the first ones."""
    shown = ", ".join(map(repr, ids[:_IDS_SHOWN]))
    if len(ids) == 1:
        return f"the {what} {shown} is"
    more = ", ..." if len(ids) > _IDS_SHOWN else ""
    return f"{len(ids):,} {what}s ({shown}{more}) are"


class RemoteEncoding(Protocol):
    """Encodes passages on other machines. It can be sent to another process."""

    def __call__(self, index: Index, encoder: Encoder, work: Path) -> EncodingStats:
        """Write the vectors of the passages of an index into a folder, as `ChunkEncoder` does for each `CHUNK` of them.
        The folder need not exist. Returns the numbers of passages that were encoded and not found there."""


def add_vectors(
    index: Path | str,
    encoder: Encoder,
    options: VectorOptions | None = None,
    *,
    name: str = layout.MAIN,
    default: bool = True,
    force: bool = False,
    ahead: RemoteEncoding | None = None,
) -> manifest.Manifest:
    """Encode the passages of an index and add the vectors to it as a set with this name; returns the new manifest.

    With `default` the set becomes the default; the first set always does. With `force` it replaces an existing set of
    this name in one step; an index that is open keeps the vectors that it was opened with. Encoded vectors are kept
    beside the index until the set is complete, so the same call resumes after an interruption. The fingerprints of BM25
    and of other sets do not change, so their runs stay valid. `ahead` encodes passages on other machines
    first.

    Raises UsageError if the name is invalid, FolderExistsError if the index already has a set of that name and `force`
    is false or if another process is writing the index, and the errors of `open_index` and `DenseBuilder`.
    """
    layout.check_name(name)
    with dense_extra():
        from ralm.retrieval.dense.build import segment_file
    path = Path(index).resolve()
    opened = open_index(path)  # fails before anything is written beside a folder that is not an index
    with (
        atomic.storage_errors(path),
        work.work_folder(work.unfinished(path), path) as kept,
        changed_index(opened) as folder,
    ):
        check_can_add(opened, name, force=force)
        sets = opened.vector_sets
        ends = [*accumulate(segment.passages for segment in opened.segments)]
        record = write_vectors(opened, folder / _NEW, kept, encoder, options, ahead, ends)
        files = [segment_file(number) for number in range(len(ends))]
        place = layout.vectors_folder(
            name, layout.joined_hash([manifest.whole_checksum(folder / _NEW / file) for file in files])
        )
        record["file"], *added_files = (f"{place}/{file}" for file in files)
        record["added_files"] = [*added_files]
        record["fingerprint"] = layout.set_fingerprint(
            layout.joined_hash(
                [opened.manifest.files[one.entry.file(store.PASSAGES_FILE)].sha256 for one in opened.segments]
            ),
            layout.joined_hash([manifest.whole_checksum(folder / _NEW / file) for file in files]),
        )
        (folder / place).parent.mkdir()
        (folder / _NEW).rename(folder / place)
        added = {**sets.sets, name: layout.VectorSet.model_validate(record)}
        return _write(opened, folder, layout.VectorSets(default=name if default else sets.default or name, sets=added))


def check_can_add(index: Index, name: str, *, force: bool) -> None:
    """Raise the errors of `add_vectors` that do not depend on encoding."""
    layout.check_name(name)
    if len(index.passages.numbering.removed):
        raise UsageError(
            f"passages were removed from {index.path}, so no vectors can be added to it; build it again with "
            "`ralm index`."
        )
    if name in index.vector_sets.sets and not force:
        raise FolderExistsError(
            f"{index.path} already has vectors {name!r}, which are kept; choose another name, or overwrite them with "
            "`force=True`."
        )


def remove_vectors(index: Path | str, name: str) -> manifest.Manifest:
    """Remove a set of vectors from an index; returns the new manifest. Without a set, the index is for BM25 only.

    Raises UsageError if the index has no such set, if it is the default and there are others, or if nothing would be
    left to search; FolderExistsError if another process is writing the index.
    """
    opened = open_index(Path(index).resolve())
    with changed_index(opened) as folder:
        sets = opened.vector_sets
        sets.get(name, opened.path)
        kept = {other: one for other, one in sets.sets.items() if other != name}
        if kept and name == sets.default:
            raise UsageError(f"{name!r} are the default vectors of {opened.path}; make others the default first.")
        if not kept and opened.bm25_options is None:
            raise UsageError(f"{opened.path} has no BM25 and no other vectors: nothing would be left to search.")
        return _write(opened, folder, layout.VectorSets(default=sets.default if kept else None, sets=kept))


def set_default_vectors(index: Path | str, name: str) -> manifest.Manifest:
    """Make a set of vectors the default of an index; returns the new manifest.

    Raises UsageError if the index has no such set, FolderExistsError if another process is writing the index.
    """
    opened = open_index(Path(index).resolve())
    with changed_index(opened) as folder:
        opened.vector_sets.get(name, opened.path)
        return _write(opened, folder, opened.vector_sets.model_copy(update={"default": name}))


def write_vectors(
    index: Index,
    folder: Path,
    work: Path,
    encoder: Encoder,
    options: VectorOptions | None,
    ahead: RemoteEncoding | None = None,
    ends: Sequence[int] = (),
) -> dict[str, JsonValue]:
    """Write the vectors of all passages into a new folder; returns the record of them for the manifest.

    `ends`: the ends of the segments, as for `DenseBuilder.finish`. `work` keeps encoded vectors, so the same call
    resumes after an interruption; the caller removes it. Raises the errors of `DenseBuilder`.
    """
    with dense_extra():
        from ralm.retrieval.dense.build import DenseBuilder
    folder.mkdir()
    before = NOTHING_ENCODED if ahead is None else ahead(index, encoder, work)
    with progress_bar("Encoding passages", len(index.passages)) as advance:
        builder = DenseBuilder(folder, work, encoder, options, advance=advance)
        for passage in index.passages:
            builder.add(passage)
        builder.encode_rest()
    return builder.finish(ends, before)


def _write(index: Index, folder: Path, sets: layout.VectorSets) -> manifest.Manifest:
    """Write the manifest of the index with these sets, without the files of removed ones."""
    before = index.manifest
    settings = {**before.settings, layout.VECTORS_SETTING: sets.model_dump(mode="json")}
    gone = index.vector_sets.files - sets.files
    return manifest.write_changed_manifest(folder, before, settings=settings, without=gone)
