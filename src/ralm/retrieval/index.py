"""Opens the folder of an index (`ralm.retrieval.layout`), memory-mapped; checks it, and says what it holds."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue, ValidationError

from ralm import __version__
from ralm.corpus.file_table import FileTable
from ralm.corpus.folder import HUB_PREFIX
from ralm.corpus.splitting import BELOW
from ralm.corpus.store import PASSAGES_FILE, PassageStore
from ralm.errors import DamagedFolderError, FolderError, RalmWarning, UsageError
from ralm.protocols import Encoder
from ralm.retrieval import layout
from ralm.retrieval.analysis import Analysis, analysis_as_recorded
from ralm.retrieval.bm25 import formula, search
from ralm.retrieval.bm25.arrays import Arrays, MappedArrays, check_arrays, map_arrays
from ralm.retrieval.dense.options import (
    HASHES,
    RAW,
    VECTORS,
    DenseSearchOptions,
    EncoderOptions,
    dense_extra,
    load_encoder,
)
from ralm.retrieval.filters import COLUMNS_FILE, IndexColumns
from ralm.storage.manifest import Manifest, check_every_byte, open_consistently, read_manifest
from ralm.storage.outputs import FolderKind
from ralm.storage.remote import is_url
from ralm.storage.work import HeldFile
from ralm.terminal import path_text

if TYPE_CHECKING:
    from ralm.retrieval.dense.search import Dense, PassageVectors

INDEX_KIND: Final = FolderKind("index", version=3)


@dataclass(frozen=True)
class Index:
    """An open index: its passages by number, and its retrievers, each prepared on first use.

    All files are opened at once, so a change of the index does not affect an open one.
    """

    path: Path
    manifest: Manifest
    settings: layout.IndexSettings
    """What the manifest records of BM25, of vectors and of files."""
    passages: PassageStore
    bm25_options: formula.BM25Options | None
    """The constants of BM25; None if the index was not built for it."""
    analysis: Analysis | None
    """How passages and queries become terms of BM25; None if the index was not built for it."""
    columns: IndexColumns
    """The metadata, titles and ids of the passages, for filters."""
    _arrays: MappedArrays
    _vector_files: dict[str, HeldFile]

    @property
    def fingerprint(self) -> str:
        """Return a short hash of passages and BM25 arrays, equal for equal indexes; vectors do not change it."""
        return self.settings.fingerprint

    @property
    def vector_sets(self) -> layout.VectorSets:
        """Return the sets of vectors, and the name of the default one."""
        return self.settings.vectors

    @property
    def vectors(self) -> dict[str, dict[str, JsonValue]]:
        """Return the configurations of the encoders by the names of the sets of vectors, the default one first."""
        sets = self.vector_sets
        return {name: sets.sets[name].encoder for name in sorted(sets.sets, key=lambda name: name != sets.default)}

    @cached_property
    def arrays(self) -> Arrays:
        """Return the arrays of BM25, for which the index was built; raises DamagedFolderError."""
        return check_arrays(self.path / layout.BM25_FOLDER, self._arrays)

    @cached_property
    def bm25(self) -> search.BM25:
        """Return the retriever BM25 over the passages.

        Raises:
            UsageError: If the index was not built for it.
        """
        if self.bm25_options is None or self.analysis is None:
            raise UsageError(
                f'{self.path} was not built for BM25; use `retriever="dense"`, or build it for both '
                "(`ralm index --retriever both`)."
            )
        passages, fingerprint = len(self.passages), self.fingerprint
        if fault := self.stemmer_fault:
            warnings.warn(f"{fault}, so some words may not be found.", RalmWarning, stacklevel=2)
            fingerprint += f" searched with {self.analysis.stemmer}"
        return search.BM25(self.arrays, passages, self.bm25_options, analysis=self.analysis, fingerprint=fingerprint)

    @property
    def stemmer_fault(self) -> str:
        """Return why the installed stemming library may stem words otherwise than the index; empty if it does not."""
        record, installed = self.settings.bm25, self.analysis and self.analysis.stemmer
        if record is None or record.stemmer == installed:
            return ""
        return f"{self.path} was built with {record.stemmer}, and {installed} is installed, which may stem otherwise"

    def encoder_options(self, vectors: str | None = None) -> EncoderOptions:
        """Return the encoder that made the vectors with this name, or the default ones; UsageError without them."""
        try:
            return layout.options_of_config(self.vector_sets.get(vectors, self.path).encoder)
        except ValidationError as error:
            raise layout.damaged_index(self.path, "its manifest does not describe its encoder") from error

    def dense(
        self,
        options: DenseSearchOptions | None = None,
        *,
        vectors: str | None = None,
        encoder: Encoder | None = None,
        any_encoder: bool = False,
    ) -> "Dense":
        """Open dense retrieval of the passages.

        Args:
            options: How thoroughly an approximate index is searched.
            vectors: Name of the set of vectors; None is the default one.
            encoder: Encoder of queries; None is the one that the index names.
            any_encoder: Allow other weights than those that the index was built with, also if not trained for it.

        Raises:
            UsageError: If the index has no such vectors.
            FolderError: If the encoder of queries does not match the vectors, or gives vectors of another length.
            ModelError: If it cannot be loaded.
            MissingExtraError: If the extra `dense` is not installed.
        """
        name = self.vector_sets.name(vectors, self.path)
        chosen = self.vector_sets.sets[name]
        encoder = encoder or load_encoder(self.encoder_options(vectors))
        with dense_extra():
            from ralm.retrieval.dense.search import Dense, check_encoder
        dense = Dense(self._open_vectors(name), encoder, options, fingerprint=chosen.fingerprint)
        if not any_encoder:
            check_encoder(self.path, encoder, chosen)
        return dense

    def passage_vectors(self, vectors: str | None = None) -> "PassageVectors":
        """Return the vectors with this name, or the default ones, by passage number; UsageError without them."""
        with dense_extra():
            from ralm.retrieval.dense.search import PassageVectors
        name = self.vector_sets.name(vectors, self.path)
        raw = self._vector_files.get(layout.vectors_file(name, RAW))
        return PassageVectors(self._open_vectors(name), raw.path if raw else None)

    def text_hashes(self, vectors: str) -> NDArray[np.bytes_]:
        """Return the hashes (S16) of the texts of the passages that the vectors with this name were made of."""
        with dense_extra():
            from ralm.retrieval.dense.search import open_array
        file = self._vector_files[layout.vectors_file(vectors, HASHES)].path
        return open_array(file, np.dtype("S16"), (len(self.passages),))

    def _open_vectors(self, name: str) -> Any:
        """Open the FAISS index of a set of vectors."""
        from ralm.retrieval.dense.search import open_vectors

        file = layout.vectors_file(name, VECTORS)
        return open_vectors(
            self._vector_files[file].path, self.path / file, len(self.passages), self.manifest.files[file].sha256
        )


def open_index(path: Path | str, options: formula.BM25Options | None = None) -> Index:
    """Open an index.

    Args:
        path: Folder of the index.
        options: Constants of BM25; None are those that it was built with.

    Raises:
        FolderError: If the folder is not an index, or one of another version.
        DamagedFolderError: If a file was altered or is missing.
    """
    path = Path(path)
    return open_consistently(path, lambda: _open(path, options))


def check_index(path: Path | str) -> list[str]:
    """Check all bytes, postings, terms and passages of an index, and the number of vectors; return the damages."""
    path = Path(path)
    damaged = check_every_byte(path)
    if not damaged:
        try:
            index = open_index(path)
            index.passages.check()
            if index.settings.files:
                FileTable(path / layout.FILES_TABLE)
            if index.bm25_options:
                index.arrays.check(len(index.passages))
            for name in index.vectors:
                index.passage_vectors(name)
                index.text_hashes(name)
        except DamagedFolderError as error:
            damaged.append(str(error))
    return damaged


def _open(path: Path, options: formula.BM25Options | None) -> Index:
    manifest = read_manifest(path, kind=INDEX_KIND)
    settings = layout.index_settings(path, manifest)
    passages = PassageStore(path / PASSAGES_FILE)
    if manifest.counts.get("passages") != len(passages):
        raise layout.damaged_index(path, f"it has {len(passages):,} passages but its manifest disagrees")
    arrays: MappedArrays = {}
    analysis = None
    if bm25 := settings.bm25:
        options = options or formula.BM25Options(k1=bm25.k1, b=bm25.b)
        analysis = analysis_as_recorded(bm25.analysis)
        if analysis is None:
            raise FolderError(
                f"{path} was built by ralm {manifest.ralm_version} with the analyser {bm25.analysis!r}, which this "
                f"version, {__version__}, does not have. Upgrade ralm, or build the index again."
            )
        arrays = map_arrays(path / layout.BM25_FOLDER)
    columns = IndexColumns(str(path), passages, path / COLUMNS_FILE if COLUMNS_FILE in manifest.files else None)
    vector_files = {
        file: HeldFile(path / file) for file in manifest.files if file.startswith(f"{layout.VECTORS_FOLDER}/")
    }
    return Index(path, manifest, settings, passages, options if bm25 else None, analysis, columns, arrays, vector_files)


class DocumentSummary(NamedTuple):
    """A document of an index: how many passages it has, and how many characters these have."""

    document_id: str
    title: str
    passages: int
    characters: int


def summarise_documents(passages: PassageStore) -> Iterator[DocumentSummary]:
    """Yield the documents; the title of one is what the titles of its passages begin with."""
    for document_id, numbers in passages.documents():
        document = [passages[number] for number in numbers]
        levels = zip(*(passage.title.split(BELOW) for passage in document), strict=False)
        same = takewhile(lambda names: len({*names}) == 1, levels)
        characters = sum(len(passage.text) for passage in document)
        yield DocumentSummary(document_id, BELOW.join(names[0] for names in same), len(numbers), characters)


def summarise_index(index: Index) -> dict[str, JsonValue]:
    """Return the counts, size, sources and settings of an index."""
    manifest, settings = index.manifest, index.settings
    recorded: Any = manifest.settings
    sets = settings.vectors
    return {
        "index": path_text(index.path),
        "counts": {**manifest.counts},
        "bytes": sum(file.bytes for file in manifest.files.values()),
        "created": manifest.created,
        "ralm_version": manifest.ralm_version,
        "fingerprint": index.fingerprint,
        "sources": _sources(index),
        "can_sync": settings.files is not None,
        "splitting": recorded.get("splitting"),
        "bm25": settings.bm25 and {
            "analyser": index.analysis.name if index.analysis else None,
            "stemmer": settings.bm25.stemmer,
            "k1": settings.bm25.k1,
            "b": settings.bm25.b,
        },
        "vectors": [
            {"name": name, "default": name == sets.default}
            | sets.sets[name].model_dump(include={"encoder", "dimension", "faiss"})
            for name in index.vectors
        ],
        "skipped": {reason: entry["count"] for reason, entry in recorded.get("skipped", {}).items()},
        "decontaminated": recorded.get("removed", {}).get("counts", {}),
    }  # fmt: skip


def corpus_title(index: Index) -> str:
    """Return the names of an index's sources without their folders; empty if a program built it."""
    sources: Any = _sources(index)
    return ", ".join(Path(source["path"] or source["name"]).name for source in sources)


def _sources(index: Index) -> list[JsonValue]:
    """Return the name of each source, its path if the index lists its files, and whether it is there, if known."""
    record = index.settings.files
    if record is None:
        named: Any = index.manifest.settings.get("sources") or []
        return [{"name": name, "path": None, "found": None} for name in named]
    return [
        {
            "name": source.name,
            "path": source.path,
            "found": None if is_url(source.path) or source.path.startswith(HUB_PREFIX) else Path(source.path).exists(),
        }
        for source in record.sources
    ]
