"""Writes an index: of passages, or of what an older one keeps and new passages, which then replaces it.

Both take one pass over new passages and bounded memory. An index that is made of an older one equals one that is built
of the same passages at once, byte for byte but for approximate vectors: kept passages are copied with their postings
and vectors, so no text of them is analysed or encoded again.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.corpus.file_table import FileTableWriter
from ralm.corpus.store import PASSAGES_FILE, PassageStore, join_passages, write_passages
from ralm.errors import CorpusError, FolderError, FolderExistsError, UsageError
from ralm.protocols import Encoder
from ralm.records import Passage
from ralm.retrieval import index, layout
from ralm.retrieval.analysis import Analysis, analysis_by_name
from ralm.retrieval.bm25 import arrays
from ralm.retrieval.bm25.build import NOT_KEPT, BM25Builder, merge_arrays
from ralm.retrieval.bm25.formula import BM25Options, BuildOptions
from ralm.retrieval.dense.options import VectorOptions, dense_extra
from ralm.retrieval.filters import write_columns
from ralm.storage import manifest, outputs, work
from ralm.terminal import progress_bar

if TYPE_CHECKING:
    from ralm.retrieval.dense.build import KnownVectors

Stretch: TypeAlias = range | str
"""Passages of an older index, by their numbers, or those of a new document, by its id."""
_NEW: Final = "new"
_IDS_SHOWN: Final = 3


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
    """Write an index of passages, atomically, in one pass and bounded memory; return its manifest.

    Encoded vectors are kept beside `out` until the index is complete, so an interrupted build resumes from them.

    Args:
        passages: Passages numbered from 0; those of a document must follow each other to count as one document.
        out: Folder of the index.
        options: Constants of BM25.
        bm25: Whether the index is for BM25.
        analyser: How BM25 makes terms: english, standard, cjk, or another language, such as german.
        encoder: Encoder of passages; None if the index is not for dense retrieval.
        vectors: How vectors are stored.
        describe: Called after the last passage; returns what the manifest records: where the passages came from, how
            they were split, what was skipped.
        build: Memory of BM25.
        table: Files that the passages were read from, for `sync_index`.
        force: Replace an index that is there.

    Raises:
        UsageError: If the index is for neither.
        FolderExistsError: If `out` exists without `force`, or another process is writing it.
        CorpusError: If there are no passages or more than BM25 can number (2,147,483,648), or one has no text to
            encode.
        ModelError: If a vector is invalid.
        StorageError: If the disk is full.
    """
    if not (bm25 or encoder):
        raise UsageError("an index is for BM25, for dense retrieval with an encoder, or for both.")
    analysis = analysis_by_name(analyser)
    out = outputs.output_path(Path(out))
    with ExitStack() as stack:
        if encoder:  # its vectors are locked against other processes, and removed when the index is complete
            check_vectors(encoder, vectors)
            stack.enter_context(work.storage_errors(out))
            stack.enter_context(work.work_folder(work.unfinished(out), out))
        folder = stack.enter_context(outputs.new_folder(out, kind=index.INDEX_KIND, force=force))
        counts = _write_passages(passages, folder, analysis if bm25 else None, build)
        sets = layout.VectorSets()
        if encoder:
            kept = work.unfinished(out)
            place = folder / layout.vectors_folder(layout.MAIN)
            encoded = encode_passages(PassageStore(folder / PASSAGES_FILE), place, kept, encoder, vectors)
            sets = layout.VectorSets(default=layout.MAIN, sets={layout.MAIN: encoded})
        constants = asdict(options or BM25Options())
        record = layout.BM25Record(analysis=analysis.recorded, stemmer=analysis.stemmer, **constants) if bm25 else None
        files = table.save(folder / layout.FILES_TABLE) if table else None
        recorded = layout.IndexSettings(bm25=record, fingerprint="", vectors=sets, files=files)
        settings = describe()
        write_columns(folder)
        return write_index_manifest(folder, manifest.file_entries(folder), counts, settings, recorded)


def rebuild_index(
    old: index.Index,
    passages: Iterable[Passage],
    arrange: Callable[[Sequence[str]], Sequence[Stretch]],
    *,
    encoder: Callable[[str], Encoder],
    build: BuildOptions | None = None,
    table: FileTableWriter | None = None,
    settings: Mapping[str, JsonValue] | None = None,
) -> manifest.Manifest:
    """Replace an index by one of passages that it keeps and new ones, numbered from 0; return the new manifest.

    `arrange` gets the ids of the new documents and returns all passages in their new order; a new document that it
    leaves out is left out, and an id that no new document has stands for nothing. `encoder` gives the encoder of a set
    of vectors by its name, if there are new passages. `table`: the files of the new index. `settings`: what its
    manifest records, by default as the old one. Raises UsageError if nothing would be left, FolderError if an encoder
    or the stemming library is another one, and the errors of `new_version` and `build_index`.
    """
    passages = iter(passages)
    first = next(passages, None)
    if first and (fault := old.stemmer_fault):
        raise FolderError(f"{fault}. Install the other version, or build the index again.")
    with work.storage_errors(old.path), ExitStack() as stack:
        if old.vectors:
            stack.enter_context(work.work_folder(work.unfinished(old.path), old.path))
        folder = stack.enter_context(new_version(old))
        new = folder / _NEW
        if first:
            new.mkdir()
            _write_passages(chain([first], passages), new, old.analysis, build)
        parts = _Parts.of(old, new if first else None, arrange)
        join_passages(folder / PASSAGES_FILE, parts.ranges)
        counts = _counts(folder)
        if old.analysis:
            sources = [old.arrays, *([arrays.open_arrays(new / layout.BM25_FOLDER)] if first else [])]
            buffered = (build or BuildOptions()).buffered_terms
            counts |= asdict(merge_arrays(sources, parts.numbers, folder / layout.BM25_FOLDER, buffered))
        sets = {name: _encode_new(old, parts, folder, name, encoder) for name in old.vectors}
        shutil.rmtree(new, ignore_errors=True)
        files = old.settings.files
        if table:
            files = table.save(folder / layout.FILES_TABLE)
        elif files:
            work.link_file(old.path / layout.FILES_TABLE, folder / layout.FILES_TABLE)
        vectors = layout.VectorSets(default=old.vector_sets.default, sets=sets)
        recorded = old.settings.model_copy(update={"vectors": vectors, "files": files})
        write_columns(folder)
        entries, kept = manifest.file_entries(folder), old.manifest.settings if settings is None else settings
        return write_index_manifest(folder, entries, counts, kept, recorded)


@contextmanager
def new_version(old: index.Index) -> Iterator[Path]:
    """Yield the folder of an index's next version; FolderExistsError if another process writes or has changed it."""
    with outputs.new_folder(old.path, kind=index.INDEX_KIND, force=True) as folder:
        if not manifest.is_current(old.path, old.manifest):
            raise FolderExistsError(f"another process has just changed {old.path}; run the command again.")
        yield folder


class _Parts(NamedTuple):
    """The stores of a rebuilt index, the old one first, the new numbers of their passages, and the ranges in order."""

    stores: list[PassageStore]
    numbers: list[NDArray[np.int32]]
    ranges: list[tuple[PassageStore, range]]
    passages: int

    @classmethod
    def of(cls, old: index.Index, new: Path | None, arrange: Callable[[Sequence[str]], Sequence[Stretch]]) -> "_Parts":
        """Arrange the passages of an index and those in the folder of new ones; UsageError if there are none."""
        stores = [old.passages, *([PassageStore(new / PASSAGES_FILE)] if new else [])]
        documents = [(document, rows) for store in stores[1:] for document, rows in store.documents()]
        ids, rows_of = [document for document, _ in documents], dict(documents)
        if twice := [document for document, count in Counter(ids).items() if count > 1]:
            raise CorpusError(
                f"{some_ids(twice)} given twice among the added documents; give each document an id of its own."
            )
        joined: list[tuple[int, range]] = []
        for stretch in arrange(ids):
            place, rows = (0, stretch) if isinstance(stretch, range) else (1, rows_of.get(stretch, range(0)))
            if joined and (joined[-1][0], joined[-1][1].stop) == (place, rows.start):
                joined[-1] = place, range(joined[-1][1].start, rows.stop)
            elif rows:
                joined.append((place, rows))
        numbers = [np.full(len(store), NOT_KEPT, np.int32) for store in stores]
        ranges, passages = list[tuple[PassageStore, range]](), 0
        for place, rows in joined:
            ranges.append((stores[place], rows))
            numbers[place][rows.start : rows.stop] = np.arange(passages, passages + len(rows))
            passages += len(rows)
        if not ranges:
            raise UsageError(f"nothing would be left of {old.path}; build a new index instead.")
        return cls(stores, numbers, ranges, passages)


def _write_passages(
    passages: Iterable[Passage], folder: Path, analysis: Analysis | None, build: BuildOptions | None
) -> dict[str, int]:
    """Write passages, and their arrays if they are analysed, into a folder; return the counts of both."""
    terms = BM25Builder(folder / layout.BM25_FOLDER, build, analysis) if analysis else None
    with progress_bar("Indexing passages") as advance:
        for passage in write_passages(folder / PASSAGES_FILE, passages):
            if terms:
                terms.add(passage.contents)
            advance()
    counts = _counts(folder)
    if not counts["passages"]:
        raise CorpusError("the corpus has no passages to index: give documents that are not empty.")
    return counts | (asdict(terms.finish()) if terms else {})


def _counts(folder: Path) -> dict[str, int]:
    """Return the number of documents and of passages in a folder."""
    passages = PassageStore(folder / PASSAGES_FILE)
    return {"documents": sum(1 for _ in passages.documents()), "passages": len(passages)}


def check_vectors(encoder: Encoder, options: VectorOptions | None) -> None:
    """Raise UsageError, before hours of work, if FAISS cannot keep vectors of an encoder as the options say."""
    with dense_extra():
        from ralm.retrieval.dense.build import new_faiss_index
    new_faiss_index(encoder.dimension, (options or VectorOptions()).faiss)


def encode_passages(
    passages: Sequence[Passage],
    folder: Path,
    saved: Path,
    encoder: Encoder,
    options: VectorOptions | None,
    reusable: "KnownVectors | None" = None,
    before: int = 0,
) -> layout.VectorSet:
    """Write the vectors of passages into a new folder; return the record of the set, without its fingerprint.

    `saved` keeps encoded vectors, so the same call resumes after an interruption; the caller removes it. `before`: how
    many other machines encoded. Raises ModelError if a vector is invalid, CorpusError if a passage has no text,
    UsageError if there are too few vectors to train on.
    """
    with dense_extra():
        from ralm.retrieval.dense.build import KnownVectors, SavedChunks, text_hashes, write_vectors
    options = options or VectorOptions()
    hash_P = text_hashes(encoder, passages)
    chunks = SavedChunks(saved, encoder)
    write_vectors(folder, passages, hash_P, reusable or KnownVectors(), options, chunks, encoder.dimension)
    return layout.VectorSet.model_validate(
        {
            "fingerprint": "",
            "encoder": encoder.config,
            "query_fingerprint": encoder.query_fingerprint,
            "query_reading": encoder.query_config.get("reading", {}),
            "dimension": encoder.dimension,
            "encoded": chunks.encoded + before,
            **asdict(options),
        }
    )


def _encode_new(
    old: index.Index, parts: _Parts, folder: Path, name: str, encoder: Callable[[str], Encoder]
) -> layout.VectorSet:
    """Write a set of vectors of an index that is built again; return its record, without its fingerprint."""
    with dense_extra():
        from ralm.retrieval.dense.build import KnownVectors, SavedChunks, text_hashes, write_vectors
    record, vectors, hashes = old.vector_sets.sets[name], old.passage_vectors(name), [old.text_hashes(name)]
    reusable, chunks = KnownVectors(), None
    reusable.add(hashes[0], vectors.read)
    if len(parts.stores) > 1:
        new_encoder = encoder(name)
        _check_same_encoder(old, name, new_encoder)
        hashes.append(text_hashes(new_encoder, parts.stores[1]))
        chunks = SavedChunks(work.unfinished(old.path), new_encoder)
    hash_P = np.empty(parts.passages, hashes[0].dtype)
    for numbers, hash_S in zip(parts.numbers, hashes, strict=True):
        stays = numbers != NOT_KEPT
        hash_P[numbers[stays]] = hash_S[stays]
    to, passages = folder / layout.vectors_folder(name), PassageStore(folder / PASSAGES_FILE)
    write_vectors(to, passages, hash_P, reusable, record.options, chunks, vectors.dimension)
    return record.model_copy(update={"encoded": chunks.encoded} if chunks else {})


def _check_same_encoder(old: index.Index, name: str, encoder: Encoder) -> None:
    """Raise FolderError if an encoder did not make a set of vectors; of a later version it may say more."""
    made, config = weights_config(old.vectors[name]), encoder.config
    other = sorted(key for key in made if made[key] != config.get(key))
    if other:
        raise FolderError(
            f"the vectors {name!r} of {old.path} were made with another encoder than this one: {other[0]} is "
            f"{config.get(other[0])!r} here and was {made[other[0]]!r} there. Use that encoder, or encode the "
            "whole index again with this one (`ralm encode`)."
        )


def weights_config(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the configuration of an encoder without its folders, which may be moved."""
    return {name: value for name, value in config.items() if name not in ("encoder", "query_encoder")}


def write_index_manifest(
    folder: Path,
    entries: dict[str, manifest.FileEntry],
    counts: dict[str, int],
    description: Mapping[str, JsonValue],
    recorded: layout.IndexSettings,
) -> manifest.Manifest:
    """Write the manifest of an index in a folder with these files; `description` has its other settings."""
    described = {name: value for name, value in description.items() if name not in layout.IndexSettings.model_fields}
    settings = {**described, **recorded.recorded(entries)}
    return manifest.write_manifest(folder, kind=index.INDEX_KIND, settings=settings, counts=counts, files=entries)


def some_ids(ids: Sequence[str], what: str = "document") -> str:
    """Return the subject and verb of a sentence about documents or their ids: their number, and the first ones."""
    shown = ", ".join(map(repr, ids[:_IDS_SHOWN]))
    if len(ids) == 1:
        return f"the {what} {shown} is"
    more = ", ..." if len(ids) > _IDS_SHOWN else ""
    return f"{len(ids):,} {what}s ({shown}{more}) are"
