"""Builds an index: passages in, an index folder out, in one pass and bounded memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ralm.corpus.store import PASSAGES, write_passages
from ralm.errors import UsageError
from ralm.protocols import Encoder
from ralm.records import Passage
from ralm.retrieval.analysis.analyser import Analysis
from ralm.retrieval.analysis.named import analysis_named
from ralm.retrieval.bm25.build import Builder
from ralm.retrieval.bm25.formula import BM25Options
from ralm.retrieval.bm25.options import BuildOptions
from ralm.retrieval.dense.loading import dense_extra
from ralm.retrieval.dense.options import VectorOptions
from ralm.retrieval.index import FORMAT_VERSION, KIND, STEMMER
from ralm.retrieval.segments import BM25
from ralm.retrieval.vector_sets import BUILT
from ralm.storage.atomic import storage_errors
from ralm.storage.manifest import Manifest, write_manifest
from ralm.storage.outputs import new_folder, output_path
from ralm.storage.work import ENCODED, at_work
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
    force: bool = False,
) -> Manifest:
    """Write an index of passages numbered from 0, atomically, in one pass and bounded memory.

    It is for BM25 with `options` unless `bm25` is false, and for dense retrieval if an `encoder` is given, with vectors
    stored as `vectors` says. `analyser` names the way in which BM25 turns passages and queries into terms: english,
    standard, cjk, or another language, such as german. `describe` is called after the last passage; the manifest
    records what it returns: where the passages came from, how they were split, what was left out. `build` bounds the
    memory of BM25 and says how many processes analyse. Passages of one document must be consecutive to count as one
    document.

    Encoded vectors are kept beside `out` until the index is complete, so an interrupted build resumes from them. Raises
    UsageError if the index is for neither, FolderExistsError, CorpusError if there are no passages or more than BM25
    can number (2,147,483,648), StorageError, WorkerError, and for dense retrieval what `DenseBuilder` raises.
    """
    if not (bm25 or encoder):
        raise UsageError("an index is for BM25, for dense retrieval with an encoder, or for both.")
    options, analysis = options or BM25Options(), analysis_named(analyser)
    out = output_path(Path(out))
    with _vectors_kept(out, encoder), new_folder(out, kind=KIND, force=force) as folder, ExitStack() as stack:
        terms = stack.enter_context(bm25_builder(folder / BM25, build, analysis)) if bm25 else None
        with progress_bar("Encoding passages" if encoder else "Indexing passages") as advance:
            dense = dense_builder(folder / BUILT, out, encoder, vectors, advance) if encoder else None
            written = write_passages(folder / PASSAGES, passages)
            counts = add_all(written, terms, [dense] if dense else [], advance)
        settings: dict[str, JsonValue] = {}
        if terms:
            counts |= asdict(terms.finish())
            settings["bm25"] = bm25_settings(analysis, options)
        if dense:
            settings[BUILT] = dense.finish()
        settings |= describe()
        return write_manifest(folder, kind=KIND, format_version=FORMAT_VERSION, settings=settings, counts=counts)


def bm25_settings(analysis: Analysis, options: BM25Options) -> dict[str, JsonValue]:
    """What the manifest of an index says of BM25."""
    stemmer = {STEMMER: analysis.stemmer()} if analysis.stemmer else {}
    return {"analysis": analysis.recorded, **stemmer, "k1": options.k1, "b": options.b}


def add_all(
    passages: Iterable[Passage], terms: Builder | None, dense: "Sequence[DenseBuilder]", advance: Advance
) -> dict[str, int]:
    """Give each passage to the builders; returns the numbers of documents and passages."""
    documents, document, count = 0, None, 0
    for passage in passages:
        if terms:
            terms.add(passage.contents)
        for builder in dense:
            builder.add(passage)
        if not dense:
            advance()
        documents += passage.document_id != document
        document = passage.document_id
        count += 1
    for builder in dense:
        builder.encode_rest()
    return {"documents": documents, "passages": count}


def bm25_builder(folder: Path, build: BuildOptions | None, analysis: Analysis) -> Builder:
    """A builder of the arrays of BM25 in `folder`."""
    folder.mkdir()
    return Builder(folder, build, analysis)


def dense_builder(
    folder: Path, out: Path, encoder: Encoder, vectors: VectorOptions | None, advance: Advance | None
) -> "DenseBuilder":
    """A builder of vectors in `folder`, which keeps what it encoded beside `out`."""
    with dense_extra():
        from ralm.retrieval.dense.build import DenseBuilder
    folder.mkdir(parents=True)
    return DenseBuilder(folder, ENCODED.beside(out), encoder, vectors, advance=advance)


@contextmanager
def _vectors_kept(out: Path, encoder: Encoder | None) -> Iterator[None]:
    """Lock the work folder of the vectors against other processes; it is removed when the index is complete."""
    if encoder is None:
        yield
        return
    with storage_errors(out), at_work(ENCODED, out):
        yield
