"""Opens the folder of an index: passages and the data that finds them, memory-mapped.

manifest.json     format, settings, counts, checksums
passages.arrow    the passages
columns.arrow     their metadata by value, if they have any
bm25/             the arrays of BM25, if it was built for BM25
dense/            the vectors of the passages, if it was built for dense retrieval
vectors/          sets of vectors that were added later
segments/         the same for passages that were added later; removed/ lists removed passages

`ralm.retrieval.layout` describes these files; `ralm.retrieval.build` and `update` write them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import JsonValue

from ralm.corpus import file_table, numbering, store
from ralm.errors import DamagedFolderError, FolderError, UsageError
from ralm.protocols import Encoder
from ralm.retrieval import layout
from ralm.retrieval.analysis import Analysis, analysis_as_recorded
from ralm.retrieval.bm25 import formula, search
from ralm.retrieval.bm25.segments import Segment, find_changed_word
from ralm.retrieval.dense.options import DenseSearchOptions, EncoderOptions, dense_extra, load_encoder
from ralm.storage.manifest import HeldFile, Manifest, check_every_byte, open_consistently, read_manifest
from ralm.storage.outputs import FolderKind
from ralm.version import __version__

if TYPE_CHECKING:
    from ralm.retrieval.dense.search import Dense, PassageVectors
    from ralm.retrieval.passing import IndexColumns

INDEX_KIND: Final = FolderKind("index", version=2)


@dataclass(frozen=True)
class Index:
    """An open index: its passages by number, and its retrievers, each prepared on first use.

    All files are opened at once, so rebuilding the index in the same place does not affect an open one. It is pickled
    as its path; unpickling raises DamagedFolderError if another index has replaced it.
    """

    path: Path
    manifest: Manifest
    settings: layout.IndexSettings
    """What the manifest records of the segments, of BM25 and of vectors."""
    passages: numbering.StoredPassages
    bm25_options: formula.BM25Options | None
    """The constants of BM25; None if the index was not built for it."""
    analysis: Analysis | None
    """How passages and queries become terms of BM25; None if the index was not built for it."""
    segments: tuple[layout.OpenSegment, ...]
    """Runs of consecutive passages, each with files of its own."""
    _held: dict[str, HeldFile]

    def __reduce__(self) -> tuple[Callable[..., "Index"], tuple[Path, formula.BM25Options | None, str, dict[str, str]]]:
        return _same_index, (self.path, self.bm25_options, self.fingerprint, _fingerprints(self))

    @property
    def fingerprint(self) -> str:
        """A short hash of everything the index was built with: equal for equal indexes in any folder, and unchanged
        when vectors are added or removed."""
        return self.settings.fingerprint

    @property
    def vector_sets(self) -> layout.VectorSets:
        """The sets of vectors, and the name of the default one."""
        return self.settings.vectors

    @property
    def vectors(self) -> dict[str, dict[str, JsonValue]]:
        """The names of the sets of vectors, the default one first, with the configurations of their encoders."""
        sets = self.vector_sets
        return {name: sets.sets[name].encoder for name in sorted(sets.sets, key=lambda name: name != sets.default)}

    @cached_property
    def columns(self) -> "IndexColumns":
        """The metadata, titles and ids of the passages, for filters."""
        from ralm.retrieval.passing import IndexColumns

        stores, files = [one.store for one in self.segments], [one.columns for one in self.segments]
        return IndexColumns(str(self.path), stores, files, self.passages.numbering)

    @cached_property
    def bm25(self) -> search.BM25:
        """BM25 over the passages.

        Raises UsageError if the index was not built for it, FolderError if the installed stemming library gives
        other terms than the one that the index was built with.
        """
        if self.bm25_options is None:
            raise UsageError(
                f'{self.path} was not built for BM25; use `retriever="dense"`, or build it for both '
                "(`ralm index --retriever both`)."
            )
        assert self.analysis is not None, "an index for BM25 names its analyser"
        segments = [one.for_bm25() for one in self.segments]
        _check_stems(self, segments, self.analysis)
        if len(segments) > 1 or len(segments[0].removed.rows):
            raise NotImplementedError("an index that was updated")
        arrays, passages = segments[0].arrays, segments[0].passages
        return search.BM25(arrays, passages, self.bm25_options, analysis=self.analysis, fingerprint=self.fingerprint)

    def encoder_options(self, vectors: str | None = None) -> EncoderOptions:
        """The encoder that made the vectors with this name, or the default ones.

        Raises UsageError if the index has no such vectors.
        """
        return layout.encoder_options(self.path, self.vector_sets.get(vectors, self.path))

    def dense(
        self,
        options: DenseSearchOptions | None = None,
        *,
        vectors: str | None = None,
        encoder: Encoder | None = None,
        any_encoder: bool = False,
    ) -> "Dense":
        """Dense retrieval of the passages by the vectors with this name, or the default ones. Queries are encoded by
        `encoder`, or by the encoder that the index names.

        Raises UsageError if the index has no such vectors, FolderError if the encoder of queries has other
        weights than the one the index was built with and was not trained for it (unless `any_encoder`), or gives
        vectors of another length, ModelError if it cannot be loaded, MissingExtraError if the extra `dense` is not
        installed.
        """
        chosen = self.vector_sets.get(vectors, self.path)
        encoder = encoder or load_encoder(self.encoder_options(vectors))
        with dense_extra():
            from ralm.retrieval.dense.search import Dense, check_encoder
        removed = self.passages.numbering.removed
        dense = Dense(self._open_vectors(chosen), encoder, options, fingerprint=chosen.fingerprint, removed=removed)
        if not any_encoder:
            check_encoder(self.path, encoder, chosen)
        return dense

    def passage_vectors(self, vectors: str | None = None) -> "PassageVectors":
        """The vectors with this name, or the default ones, by the numbers of the passages.

        Raises UsageError if the index has no such vectors, or only approximations of them.
        """
        with dense_extra():
            from ralm.retrieval.dense.search import PassageVectors
        chosen = self.vector_sets.get(vectors, self.path)
        name = f"the vectors {(vectors or self.vector_sets.default)!r} of {self.path}"
        return PassageVectors(self._open_vectors(chosen), name, self.passages.numbering.removed)

    def _open_vectors(self, chosen: layout.VectorSet) -> list[Any]:
        """The FAISS indexes of a set of vectors, one for each segment."""
        from ralm.retrieval.dense.search import open_vectors

        return [
            open_vectors(self._held[file].path, self.path / file, segment.passages, self.manifest.files[file].sha256)
            for file, segment in zip(chosen.files, self.segments, strict=True)
        ]


def open_index(path: Path | str, options: formula.BM25Options | None = None) -> Index:
    """Open an index; `options` override the constants of BM25 that it was built with.

    Raises FolderError or DamagedFolderError.
    """
    path = Path(path)
    return open_consistently(path, lambda: _open(path, options))


def check_index(path: Path | str) -> list[str]:
    """Check every byte of an index, and every posting, term and passage; of vectors only the number and the checksum.

    Returns the damages, a few words each. Raises FolderError, or DamagedFolderError if
    the manifest itself is invalid.
    """
    path = Path(path)
    damaged = check_every_byte(path)
    if not damaged:
        try:
            index = open_index(path)
            index.passages.check()
            if record := layout.files_record(index.manifest):
                file_table.FileTable(path / record.table)
            for segment in index.segments if index.bm25_options else ():
                searched = segment.for_bm25()
                searched.check()
                searched.arrays.check(searched.passages)
                searched.check_removed()
        except DamagedFolderError as error:
            damaged.append(str(error))
    return damaged


def _open(path: Path, options: formula.BM25Options | None) -> Index:
    manifest = read_manifest(path, kind=INDEX_KIND)
    settings = layout.index_settings(path, manifest)
    bm25, sets = settings.bm25, settings.vectors.sets
    segments = tuple(
        layout.open_segment(
            path,
            entry,
            {name: one.files[place] for name, one in sets.items()},
            bm25=bm25 is not None,
            checksum=manifest.files[entry.file(store.PASSAGES_FILE)].checksum,
        )
        for place, entry in enumerate(settings.segments.entries)
    )
    passages = layout.stored_passages(segments)
    if manifest.counts.get("passages") != len(passages):
        raise layout.damaged_index(path, f"it has {len(passages):,} passages but its manifest disagrees")
    analysis = None
    if bm25:
        options = options or formula.BM25Options(k1=bm25.k1, b=bm25.b)
        analysis = analysis_as_recorded(bm25.analysis)
        if analysis is None:
            raise FolderError(
                f"{path} was built by ralm {manifest.ralm_version} with the analyser {bm25.analysis!r}, which this "
                f"version, {__version__}, does not have. Upgrade ralm, or build the index again."
            )
    held = {file: HeldFile(path / file) for file in settings.vectors.files}
    return Index(path, manifest, settings, passages, options if bm25 else None, analysis, segments, held)


def _same_index(path: Path, options: formula.BM25Options | None, fingerprint: str, sets: dict[str, str]) -> Index:
    """Open an index again in another process; vectors may have been added to it since."""
    index = open_index(path, options)
    if index.fingerprint != fingerprint or not sets.items() <= _fingerprints(index).items():
        raise DamagedFolderError(f"{path} is not the index that was opened before: it was built again; reopen it.")
    return index


def _fingerprints(index: Index) -> dict[str, str]:
    """The fingerprints of the sets of vectors, by name; the empty name is the default one."""
    sets = index.vector_sets
    every = {name: one.fingerprint for name, one in sets.sets.items()}
    return every if sets.default is None else {**every, "": every[sets.default]}


def check_stemmer(index: Index) -> None:
    """Raise FolderError if the installed stemming library is not of the version that built the index, so that
    the terms of added passages might differ."""
    built_with, installed = _stemmers(index)
    if installed != built_with:
        raise FolderError(
            f"{index.path} was built with {built_with}, and {installed} is installed, which may stem words of added "
            f"passages differently. Install {built_with}, or build the index again."
        )


def _check_stems(index: Index, segments: list[Segment], analysis: Analysis) -> None:
    """Raise FolderError if another version of the stemming library built the index and the terms differ."""
    built_with, installed = _stemmers(index)
    if installed == built_with:
        return
    for opened, segment in zip(index.segments, segments, strict=True):
        word = find_changed_word(opened.store, segment.arrays, analysis)
        if word is not None:
            raise FolderError(
                f"{index.path} was built with {built_with}; {installed} stems some words differently, such as "
                f"{word!r}. Install {built_with}, or build the index again."
            )


def _stemmers(index: Index) -> tuple[str | None, str | None]:
    """The stemming library that built the index, and the installed one; both None if its analyser needs none."""
    record = index.settings.bm25
    if record is None or index.analysis is None or index.analysis.stemmer is None:
        return None, None
    return record.stemmer, index.analysis.stemmer()
