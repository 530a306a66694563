"""Builds an index from passages, in one pass and bounded memory."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import JsonValue

from ralm.corpus.file_table import FileTableWriter
from ralm.corpus.store import PASSAGES_FILE, write_passages
from ralm.errors import RalmWarning, UsageError
from ralm.protocols import Encoder
from ralm.records import Passage
from ralm.retrieval import index, layout
from ralm.retrieval.analysis import Analysis, analysis_by_name
from ralm.retrieval.bm25.build import BM25Builder
from ralm.retrieval.bm25.formula import BM25Options, BuildOptions
from ralm.retrieval.columns import write_columns
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
    _warn_of_parts(out)
    with ExitStack() as stack:
        if encoder:  # its vectors are locked against other processes, and removed when the index is complete
            stack.enter_context(atomic.storage_errors(out))
            stack.enter_context(work.work_folder(work.unfinished(out), out))
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
        settings = {**layout.new_index_settings(entry, files, recorded, record), **describe()}
        if table is not None:  # no part of the fingerprint: it holds times
            settings[layout.FILES] = table.save(folder, f"{layout.FILES}/0.table")
            files |= manifest.file_entries(folder / layout.FILES, folder)
        return manifest.write_manifest(folder, kind=index.INDEX_KIND, settings=settings, counts=counts, files=files)


def _bm25_record(analysis: Analysis, options: BM25Options) -> layout.BM25Record:
    stemmer = analysis.stemmer() if analysis.stemmer else None
    return layout.BM25Record(analysis=analysis.recorded, stemmer=stemmer, k1=options.k1, b=options.b)


def _warn_of_parts(out: Path) -> None:
    """Warn of the folder in which earlier versions kept the parts of an index that a cluster was building."""
    parts = out.with_name(f".{out.name}.parts")
    if work.is_work_folder(parts):
        warnings.warn(
            f"{parts} has parts of an index that an earlier version of ralm began to build on a cluster; they are not "
            "used: remove it, and the folder of an object store whose URL is in its file `store`, if there is one.",
            RalmWarning,
            stacklevel=3,
        )


class Added(NamedTuple):
    """The numbers of passages and documents that were added."""

    passages: int
    documents: int


def add_all(
    passages: Iterable[Passage], terms: BM25Builder | None, dense: "Sequence[DenseBuilder]", advance: Advance
) -> Added:
    """Add each passage to the builders; returns what was added."""
    documents = count = 0
    last = None
    for passage in passages:
        if terms:
            terms.add(passage.contents)
        for builder in dense:
            builder.add(passage)
        if not dense:
            advance()
        documents += passage.document_id != last
        last = passage.document_id
        count += 1
    for builder in dense:
        builder.encode_rest()
    return Added(passages=count, documents=documents)


def dense_builder(
    folder: Path, out: Path, encoder: Encoder, vectors: VectorOptions | None, advance: Advance | None
) -> "DenseBuilder":
    """A builder of vectors in `folder`, which keeps encoded vectors beside `out`."""
    with dense_extra():
        from ralm.retrieval.dense.build import DenseBuilder
    folder.mkdir(parents=True)
    return DenseBuilder(folder, work.unfinished(out), encoder, vectors, advance=advance)
