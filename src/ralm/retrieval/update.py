"""Adds passages to an index and removes documents from it, in one step, while other processes read it.

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
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pydantic import JsonValue

from ralm.corpus import numbering, store
from ralm.errors import CorpusError, OtherEncoderError, UsageError
from ralm.protocols import Encoder
from ralm.records import IntArray, Passage
from ralm.retrieval import layout
from ralm.retrieval.analysis import Analyser, Analysis
from ralm.retrieval.bm25 import formula, segments
from ralm.retrieval.bm25.build import BM25Builder
from ralm.retrieval.build import add_all, dense_builder
from ralm.retrieval.dense.options import dense_extra, load_encoder
from ralm.retrieval.index import Index, check_stemmer, open_index
from ralm.retrieval.writer import IndexWriter, changed_index, merge_small_segments
from ralm.storage import atomic, manifest, work
from ralm.terminal import Advance, progress_bar

if TYPE_CHECKING:
    from ralm.retrieval.dense.build import DenseBuilder

UPDATES: Final = "updates"
"""The key, in a manifest's settings, of the number of updates, and the latest of them."""
_UPDATES_LISTED: Final = 100
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
) -> manifest.Manifest:
    """Remove the documents with the ids in `remove` from an index, and add passages, numbered from 0, at its end.
    Returns the new manifest.

    All of it happens in one step; an index that is open does not change. Afterwards the index has the same hits, with
    the same passage numbers, as one that is built at once of the passages that are left. (Added vectors are compared
    exactly, even if the index is approximate.) Its fingerprint changes, so cached retrievals are not found again.

    Adding a document whose id the index already has is an error, unless `replace` is true: then the older one is
    removed. Passages are analysed with the analyser of the index, and encoded for each of its sets of vectors: by the
    encoder in `encoders` under the set's name, otherwise by the one that the index names. Encoded vectors are kept
    beside the index until the update is complete, so the same call resumes. `describe` is called after the last
    passage; the manifest records what it returns. `build`: the memory of BM25, and the number of processes that
    analyse.

    Raises UsageError if there is nothing to do or nothing would be left; CorpusError if an id in `remove` is not in the
    index or belongs to several documents, or if an added id occurs twice or is already in the index; OtherEncoderError
    if an encoder is not the one that made the vectors; OtherAnalyserError if the index was built with another version
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
            stack.enter_context(work.work_folder(work.UNFINISHED_VECTORS, path))
        writer = IndexWriter(opened, stack.enter_context(changed_index(opened)))
        gone = _documents(opened, remove, [], replace=replace)  # fails before hours of encoding
        if first:
            added = _add(writer, chain([first], rest), documents, chosen, build)
            gone = _documents(opened, remove, documents, replace=replace)
        numbers = np.sort(np.concatenate([np.zeros(0, np.int64), *gone.values()]))
        if added is None and len(numbers) == len(opened.passages):
            raise UsageError(f"nothing would be left of {path}; build a new index instead.")
        if added is None and not gone:
            raise UsageError("there is nothing to update: give passages to add, or documents to remove.")
        fingerprint, sets = _fingerprints(opened, numbers, added)
        _remove(writer, numbers)
        if added is not None:
            writer.segments.append(added)
        merge_small_segments(writer, build)
        record: dict[str, JsonValue] = {
            "added": {"documents": len(documents), "passages": added.passages} if added else None,
            "removed": {"documents": len(gone), "passages": len(numbers)},
            "corpus": describe(),
        }
        known: Any = opened.manifest.settings.get(UPDATES, {"count": 0, "latest": []})
        updates = {"count": known["count"] + 1, "latest": [*known["latest"], record][-_UPDATES_LISTED:]}
        left = opened.manifest.counts.get("documents", 0) - len(gone) + len(documents)
        return writer.write({UPDATES: updates}, sets, fingerprint, left)


def _encoders(index: Index, given: Mapping[str, Encoder]) -> dict[str, Encoder]:
    """The encoder of each set of vectors, which must be the one that made them."""
    chosen = {name: given.get(name) or load_encoder(index.encoder_options(name)) for name in index.vectors}
    for name, encoder in chosen.items():
        made, own = index.vector_sets.sets[name].encoder, encoder.config
        other = sorted(key for key in made.keys() - {*_FOLDER_NAMES} if made[key] != own.get(key))
        if other:
            raise OtherEncoderError(
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
    with ExitStack() as stack, progress_bar("Encoding passages" if encoders else "Indexing passages") as advance:
        terms = stack.enter_context(BM25Builder(folder / layout.BM25_FOLDER, build, analysis)) if analysis else None
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
            f"{_some_ids(twice)} given twice among the added documents; give each document an id of its own."
        )
    entry = layout.SegmentEntry(folder=path, passages=counts.passages)
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


def _documents(index: Index, remove: Collection[str], added: Sequence[str], *, replace: bool) -> dict[str, IntArray]:
    """The documents to remove, by id, with the numbers (int64) of their passages."""
    found = _numbers_by_document(index, {*remove, *added})
    missing = [document for document in dict.fromkeys(remove) if document not in found]
    if missing:
        raise CorpusError(f"{_some_ids(missing)} not in {index.path}; nothing was changed.")
    kept = found.keys() - {*remove}
    clashing = [document for document in added if document in kept]
    if clashing and not replace:
        raise CorpusError(
            f"{_some_ids(clashing)} already in {index.path}; nothing was changed. Replace such documents with "
            "`replace=True`, or give the new ones other ids."
        )
    several = [document for document, numbers in found.items() if numbers[-1] - numbers[0] >= len(numbers)]
    if several:
        raise CorpusError(
            f"{_some_ids(several, 'id')} shared by several documents of {index.path}, so which to remove is unclear; "
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


def _some_ids(ids: Sequence[str], what: str = "document") -> str:
    """The subject and verb of a sentence about documents or their ids: their number, and the first ones."""
    shown = ", ".join(map(repr, ids[:_IDS_SHOWN]))
    if len(ids) == 1:
        return f"the {what} {shown} is"
    more = ", ..." if len(ids) > _IDS_SHOWN else ""
    return f"{len(ids):,} {what}s ({shown}{more}) are"
