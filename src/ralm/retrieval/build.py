"""Builds an index from passages, in one pass and bounded memory, or from parts that processes wrote separately.

A part is a folder with the passages of a span of a corpus and their BM25 arrays. Consecutive parts are joined into a
shard, byte for byte what building all their passages at once writes. The shards are the segments of an index, which is
searched with the statistics of all passages.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, JsonValue

from ralm.corpus.file_table import FileTableWriter
from ralm.corpus.store import PASSAGES_FILE, write_passages
from ralm.errors import CorpusError, UsageError
from ralm.protocols import Encoder
from ralm.records import Passage
from ralm.retrieval import index, layout
from ralm.retrieval.analysis import Analysis, analysis_by_name
from ralm.retrieval.bm25.build import BM25Builder
from ralm.retrieval.bm25.formula import BM25Options, BuildOptions
from ralm.retrieval.bm25.kernels import check_passage_count
from ralm.retrieval.bm25.segments import merge_arrays
from ralm.retrieval.columns import COLUMNS_FILE, write_columns
from ralm.retrieval.dense.options import VectorOptions, dense_extra
from ralm.storage import atomic, manifest, outputs, work
from ralm.terminal import Advance, progress_bar

if TYPE_CHECKING:
    from ralm.retrieval.dense.build import DenseBuilder


def build_index(
    passages: Iterable[Passage],
    out: Path | str,
    options: BM25Options | None = None,
    *,
    bm25: bool = True,
    analyser: str = "english",
    encoder: Encoder | None = None,
    vectors: VectorOptions | None = None,
    describe: Callable[[], dict[str, JsonValue]] = dict,
    build: BuildOptions | None = None,
    table: FileTableWriter | None = None,
    force: bool = False,
) -> manifest.Manifest:
    """Write an index of passages numbered from 0, atomically, in one pass and bounded memory.

    It is for BM25 with `options` unless `bm25` is false, and for dense retrieval if an `encoder` is given, with vectors
    stored as `vectors` says. `analyser`: how BM25 turns passages and queries into terms: english, standard, cjk, or
    another language, such as german. `describe` is called after the last passage; the manifest records what it returns:
    where the passages came from, how they were split, what was skipped. `build`: the memory of BM25, and the number of
    processes that analyse. `table`: the files that the passages were read from, for `sync_index`. The passages of a
    document must be consecutive to count as one document.

    Encoded vectors are kept beside `out` until the index is complete, so an interrupted build resumes from them. Raises
    UsageError if the index is for neither, FolderExistsError, CorpusError if there are no passages or more than BM25
    can number (2,147,483,648), StorageError, and for dense retrieval the errors of `DenseBuilder`.
    """
    if not (bm25 or encoder):
        raise UsageError("an index is for BM25, for dense retrieval with an encoder, or for both.")
    analysis = analysis_by_name(analyser)
    out = outputs.output_path(Path(out))
    with ExitStack() as stack:
        if encoder:  # its vectors are locked against other processes, and removed when the index is complete
            stack.enter_context(atomic.storage_errors(out))
            stack.enter_context(work.work_folder(work.UNFINISHED_VECTORS, out))
        folder = stack.enter_context(outputs.new_folder(out, kind=index.INDEX_KIND, force=force))
        terms = BM25Builder(folder / layout.BM25_FOLDER, build, analysis) if bm25 else None
        with progress_bar("Encoding passages" if encoder else "Indexing passages") as advance:
            dense = dense_builder(folder / layout.DENSE_FOLDER, out, encoder, vectors, advance) if encoder else None
            written = write_passages(folder / PASSAGES_FILE, passages)
            added = add_all(written, terms, [dense] if dense else [], advance)
        counts = {"documents": added.documents, "passages": added.passages}
        if terms:
            counts |= asdict(terms.finish())
        record = dense.finish() if dense else None
        entry = layout.SegmentEntry(passages=added.passages, columns=write_columns(folder))
        files = manifest.file_entries(folder)
        recorded = _bm25_record(analysis, options or BM25Options()) if bm25 else None
        settings = {**layout.new_index_settings([entry], files, recorded, record), **describe()}
        if table is not None:  # no part of the fingerprint: it holds times
            settings[layout.FILES] = table.save(folder, f"{layout.FILES}/0.table")
            files |= manifest.file_entries(folder / layout.FILES, folder)
        return manifest.write_manifest(folder, kind=index.INDEX_KIND, settings=settings, counts=counts, files=files)


def _bm25_record(analysis: Analysis, options: BM25Options) -> layout.BM25Record:
    stemmer = analysis.stemmer() if analysis.stemmer else None
    return layout.BM25Record(analysis=analysis.recorded, stemmer=stemmer, k1=options.k1, b=options.b)


class PartCounts(BaseModel):
    """The numbers of passages and documents of a part, and the ids of its first and last document."""

    model_config = ConfigDict(frozen=True)

    passages: int = 0
    documents: int = 0
    first: str | None = None
    last: str | None = None


class Shard(BaseModel):
    """The counts of a shard (passages, distinct terms, postings, the terms of all passages), and its files."""

    model_config = ConfigDict(frozen=True)

    passages: int
    terms: int
    postings: int
    tokens: int
    files: dict[str, manifest.FileEntry]


class ShardFolder(NamedTuple):
    """A shard and its folder."""

    folder: Path
    shard: Shard


def add_all(
    passages: Iterable[Passage], terms: BM25Builder | None, dense: "Sequence[DenseBuilder]", advance: Advance
) -> PartCounts:
    """Add each passage to the builders; returns what was added."""
    documents = count = 0
    first = last = None
    for passage in passages:
        if terms:
            terms.add(passage.contents)
        for builder in dense:
            builder.add(passage)
        if not dense:
            advance()
        first = passage.document_id if first is None else first
        documents += passage.document_id != last
        last = passage.document_id
        count += 1
    for builder in dense:
        builder.encode_rest()
    return PartCounts(passages=count, documents=documents, first=first, last=last)


def dense_builder(
    folder: Path, out: Path, encoder: Encoder, vectors: VectorOptions | None, advance: Advance | None
) -> "DenseBuilder":
    """A builder of vectors in `folder`, which keeps encoded vectors beside `out`."""
    with dense_extra():
        from ralm.retrieval.dense.build import DenseBuilder
    folder.mkdir(parents=True)
    return DenseBuilder(folder, work.UNFINISHED_VECTORS.folder_of(out), encoder, vectors, advance=advance)


def write_part(folder: Path, passages: Iterable[Passage], analysis: Analysis, build: BuildOptions) -> PartCounts:
    """Write the passages of a part, numbered from 0, and their arrays; there may be none.

    Raises StorageError and what reading the passages raises.
    """
    terms = BM25Builder(folder / layout.BM25_FOLDER, build, analysis)
    with progress_bar("", shown=False) as unseen:
        counts = add_all(write_passages(folder / PASSAGES_FILE, passages), terms, [], unseen)
        if counts.passages:
            terms.finish()
        return counts


def join_parts(parts: Sequence[tuple[Path, int]], folder: Path, build: BuildOptions) -> Shard:
    """Write the shard of consecutive parts, given as folders and numbers of passages, of which none is 0.

    Raises DamagedFolderError if a part is damaged.
    """
    segments = [
        layout.open_segment(part, layout.SegmentEntry(passages=passages), {}, bm25=True) for part, passages in parts
    ]
    for _ in write_passages(folder / PASSAGES_FILE, layout.stored_passages(segments)):
        pass
    write_columns(folder)
    counts = merge_arrays([one.for_bm25() for one in segments], folder / layout.BM25_FOLDER, build.buffered_terms)
    return Shard(**asdict(counts), files=manifest.file_entries(folder))


def documents_of(parts: Iterable[PartCounts]) -> int:
    """The number of documents of all parts; one that continues in the next part counts once."""
    full = [part for part in parts if part.passages]
    shared = sum(one.last == other.first for one, other in pairwise(full))
    return sum(part.documents for part in full) - shared


def write_index(
    out: Path,
    shards: Sequence[ShardFolder],
    documents: int,
    options: BM25Options,
    analysis: Analysis,
    described: dict[str, JsonValue],
    *,
    force: bool,
) -> manifest.Manifest:
    """Write an index whose segments are these shards, atomically, by linking their files.

    Raises CorpusError if there are no shards, or more passages than BM25 can number; and what `new_folder` raises.
    """
    if not shards:
        raise CorpusError("the corpus has no passages to index: give documents that are not empty.")
    entries = [
        layout.SegmentEntry(
            folder=f"{layout.SEGMENTS}/{number}" if number else "",
            passages=one.shard.passages,
            columns=COLUMNS_FILE in one.shard.files,
        )
        for number, one in enumerate(shards)
    ]
    counts = {
        "documents": documents,
        "passages": sum(one.passages for one in entries),
        "tokens": sum(one.shard.tokens for one in shards),
    }
    check_passage_count(counts["passages"])
    if len(shards) == 1:
        counts |= {"terms": shards[0].shard.terms, "postings": shards[0].shard.postings}
    files: dict[str, manifest.FileEntry] = {}
    with outputs.new_folder(out, kind=index.INDEX_KIND, force=force) as folder:
        for entry, (place, shard) in zip(entries, shards, strict=True):
            (folder / entry.folder / layout.BM25_FOLDER).mkdir(parents=True)
            for name, file in shard.files.items():
                atomic.link_file(place / name, folder / entry.file(name))
                files[entry.file(name)] = file
        files = dict(sorted(files.items()))
        settings = {**layout.new_index_settings(entries, files, _bm25_record(analysis, options)), **described}
        return manifest.write_manifest(folder, kind=index.INDEX_KIND, settings=settings, counts=counts, files=files)
