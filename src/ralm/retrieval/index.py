"""Opens the folder of an index (`ralm.retrieval.layout`): passages and the data that finds them, memory-mapped."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue, ValidationError

from ralm.corpus.file_table import FileTable
from ralm.corpus.store import PASSAGES_FILE, PassageStore
from ralm.errors import DamagedFolderError, FolderError, UsageError
from ralm.protocols import Encoder
from ralm.records import Passage
from ralm.retrieval import layout
from ralm.retrieval.analysis import Analysis, analysis_as_recorded
from ralm.retrieval.bm25 import formula, search
from ralm.retrieval.bm25.arrays import Arrays, MappedArrays, check_arrays, map_arrays
from ralm.retrieval.columns import COLUMNS_FILE, IndexColumns
from ralm.retrieval.dense.options import (
    HASHES,
    RAW,
    VECTORS,
    DenseSearchOptions,
    EncoderOptions,
    dense_extra,
    load_encoder,
)
from ralm.storage.atomic import HeldFile
from ralm.storage.manifest import Manifest, check_every_byte, open_consistently, read_manifest
from ralm.storage.outputs import FolderKind
from ralm.version import __version__

if TYPE_CHECKING:
    from ralm.retrieval.dense.search import Dense, PassageVectors

INDEX_KIND: Final = FolderKind("index", version=3)
_MAX_COMPARED: Final = 500
"""Passages that are analysed again at most; they are spread evenly and have some ten thousand different words."""


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
            FolderError: If the installed stemming library gives other terms than the one that the index was built with.
        """
        if self.bm25_options is None or self.analysis is None:
            raise UsageError(
                f'{self.path} was not built for BM25; use `retriever="dense"`, or build it for both '
                "(`ralm index --retriever both`)."
            )
        check_stems(self)
        passages, fingerprint = len(self.passages), self.fingerprint
        return search.BM25(self.arrays, passages, self.bm25_options, analysis=self.analysis, fingerprint=fingerprint)

    def encoder_options(self, vectors: str | None = None) -> EncoderOptions:
        """Return the encoder that made the vectors with this name, or the default ones; UsageError without them."""
        try:
            return layout.options_of_config(self.vector_sets.get(vectors, self.path).encoder)
        except ValidationError as error:
            raise layout.damaged_index(self.path, layout.NO_ENCODER) from error

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
            from ralm.retrieval.dense.search import open_hashes
        return open_hashes(self._vector_files[layout.vectors_file(vectors, HASHES)].path, len(self.passages))

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


def check_stems(index: Index, *, adds_passages: bool = False) -> None:
    """Raise FolderError if the installed stemming library stems, or may stem, words of the index differently."""
    record, analysis = index.settings.bm25, index.analysis
    if record is None or analysis is None or analysis.stemmer == record.stemmer:
        return
    if adds_passages:
        fault = f", and {analysis.stemmer} is installed, which may stem words of added passages differently"
    elif word := _changed_word(index.passages, index.arrays, analysis):
        fault = f"; {analysis.stemmer} stems some words differently, such as {word!r}"
    else:
        return
    raise FolderError(
        f"{index.path} was built with {record.stemmer}{fault}. Install {record.stemmer}, or build the index again."
    )


def _changed_word(passages: Sequence[Passage], arrays: Arrays, analysis: Analysis) -> str | None:
    """Return a word of some passages that the analyser turns into other terms than the index has, if any."""
    terms_of_word, seen = analysis.prepare(), set[str]()
    for number in range(0, len(passages), -(-len(passages) // _MAX_COMPARED)):
        new = set(passages[number].contents.split()) - seen
        seen |= new
        for word in sorted(new):
            if not all(_has_term(arrays, len(passages), term, number) for term in terms_of_word(word)):
                return word
    return None


def _has_term(arrays: Arrays, passages: int, term: str, number: int) -> bool:
    """Return whether a passage has a term."""
    row = arrays.term(term)
    if row < 0:
        return False
    arrays.check_terms(np.array([row]), passages)
    numbers = arrays.passages[arrays.offsets[row] : arrays.offsets[row + 1]]
    at = int(np.searchsorted(numbers, number))
    return at < len(numbers) and int(numbers[at]) == number
