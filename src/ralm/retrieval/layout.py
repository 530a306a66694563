"""The layout of an index on disk: its segments and its sets of vectors, as the manifest lists them.

An index that was never updated is one segment, the index folder itself. Passages that are added are a segment in
`segments/NUMBER`. Passages that are removed stay where they are until segments are merged; `removed/NUMBER` lists them
for one segment:

    rows.npy      int64    their rows in the segment, rising
    terms.npy     int64    the numbers of their terms in the segment's BM25 arrays, rising
    counts.npy    int64    in how many of the rows each of these occurs

A number is never used twice, so an index that is open keeps the files that it opened.

A set of vectors has a name and an encoder, and a file for each segment. The set that an index is built with is called
`main` and stored in `dense/vectors.faiss`. Sets that were added are in `vectors/NAME-HASH/vectors.faiss`, with a hash
of the file, so a set that replaces another of the same name has another path.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from ralm.corpus.numbering import rise_within
from ralm.corpus.store import PASSAGES_FILE, PassageStore
from ralm.errors import DamagedFolderError, UsageError
from ralm.records import IntArray
from ralm.retrieval.bm25.arrays import ARRAY_NAMES, MappedArrays, check_arrays, map_arrays, map_numbers
from ralm.retrieval.bm25.segments import RemovedPassages, Segment
from ralm.retrieval.dense.options import VECTORS, EncoderOptions, VectorOptions
from ralm.storage.manifest import FileEntry, Manifest

SEGMENTS_SETTING: Final = "segments"
"""The key of the segments in a manifest's settings."""
BM25_SETTING: Final = "bm25"
"""The key of the record of BM25 in a manifest's settings."""
VECTORS_SETTING: Final = "vectors"
"""The key of the sets of vectors in a manifest's settings."""
FINGERPRINT: Final = "fingerprint"
"""The key, in a manifest's settings, of the fingerprint of the passages and of BM25."""
BM25_FOLDER: Final = "bm25"
"""The folder of the BM25 arrays of a segment."""
DENSE_FOLDER: Final = "dense"
"""The folder of the vectors that an index is built with."""
SEGMENTS: Final = "segments"
"""The folder of all segments that were added."""
REMOVED: Final = "removed"
"""The folder of all lists of removed passages."""
ADDED: Final = "vectors"
"""The folder of all sets of vectors that were added."""
MAIN: Final = "main"
"""The name of the set of vectors that an index is built with."""

_ROWS: Final = "rows"
_REMOVED_FILES: Final = (_ROWS, "terms", "counts")
_NAME: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_HASH_LETTERS: Final = 12
_ENCODER_OPTIONS: Final = TypeAdapter(EncoderOptions)
_VECTOR_OPTIONS: Final = TypeAdapter(VectorOptions)
_VECTOR_FIELDS: Final = tuple(field.name for field in fields(VectorOptions))


class RemovedEntry(BaseModel):
    """The passages removed from a segment: the folder that lists them, the number of all their terms, and how many of
    them have any."""

    model_config = ConfigDict(frozen=True)

    folder: str
    tokens: int = 0
    with_terms: int = 0


class SegmentEntry(BaseModel):
    """A segment: its folder in the index (empty for the index folder itself), its rows, and the removed ones."""

    model_config = ConfigDict(frozen=True)

    folder: str = ""
    passages: int
    removed: RemovedEntry | None = None

    def files(self, *, bm25: bool) -> list[str]:
        """The files of the segment, except those of vectors, by their paths in the index."""
        removed = _REMOVED_FILES if bm25 else (_ROWS,)
        return [
            self.file(PASSAGES_FILE),
            *(self.file(f"{BM25_FOLDER}/{name}.npy") for name in ARRAY_NAMES if bm25),
            *(f"{self.removed.folder}/{name}.npy" for name in removed if self.removed),
        ]

    def file(self, name: str) -> str:
        """The path in the index of a file of the segment."""
        return f"{self.folder}/{name}" if self.folder else name


class SegmentEntries(BaseModel):
    """The segments in order, and the number of the next new folder."""

    model_config = ConfigDict(frozen=True)

    entries: tuple[SegmentEntry, ...] = Field(min_length=1)
    next: int = 1


class BM25Record(BaseModel):
    """The constants of BM25, the analyser, and the stemming library with its version if the analyser uses one."""

    model_config = ConfigDict(frozen=True)

    analysis: str
    stemmer: str | None = None
    k1: int | float
    b: int | float


@dataclass(frozen=True, slots=True, eq=False)
class OpenSegment:
    """A segment whose files are open; `root` is the folder that its paths are relative to."""

    root: Path
    entry: SegmentEntry
    store: PassageStore
    mapped: MappedArrays | None
    """The arrays of BM25, not checked yet; None if the index was not built for it."""
    removed: RemovedPassages

    def for_bm25(self) -> Segment:
        """The segment as BM25 searches it.

        Raises DamagedFolderError.
        """
        assert self.mapped is not None, "the index was not built for BM25"
        arrays = check_arrays(self.root / self.entry.folder / BM25_FOLDER, self.mapped)
        return Segment(arrays, self.entry.passages, self.removed)

    @property
    def left(self) -> int:
        """The number of passages that were not removed."""
        return self.entry.passages - len(self.removed.rows)


def bm25_record(index: Path, manifest: Manifest, *, required: bool) -> BM25Record | None:
    """The record of BM25 in a manifest; None if it has none and that is not `required`.

    Raises DamagedFolderError.
    """
    recorded = manifest.settings.get(BM25_SETTING)
    if recorded is None and not required:
        return None
    try:
        return BM25Record.model_validate(recorded)
    except ValidationError:
        raise DamagedFolderError(
            f"{index} is damaged: its manifest does not describe BM25; build the index again."
        ) from None


def segment_entries(index: Path, manifest: Manifest) -> SegmentEntries:
    """The segments that a manifest lists.

    Raises DamagedFolderError if they are not described.
    """
    try:
        return SegmentEntries.model_validate(manifest.settings.get(SEGMENTS_SETTING))
    except ValidationError:
        raise DamagedFolderError(
            f"{index} is damaged: its manifest does not describe its segments; build the index again."
        ) from None


def open_segment(root: Path, entry: SegmentEntry, *, bm25: bool, checksum: str | None = None) -> OpenSegment:
    """Open the files of a segment; `checksum` is that of its passages.

    Raises DamagedFolderError.
    """
    store = PassageStore(root / entry.file(PASSAGES_FILE), checksum)
    if entry.passages != len(store):
        raise DamagedFolderError(
            f"{root} is damaged: {entry.file(PASSAGES_FILE)} has {len(store):,} passages but the manifest "
            "disagrees; build the index again."
        )
    mapped = map_arrays(root / entry.folder / BM25_FOLDER) if bm25 else None
    return OpenSegment(root, entry, store, mapped, _open_removed(root, entry, bm25))


def removed_rows(segments: Sequence[OpenSegment]) -> IntArray:
    """The removed rows (int64, rising), counted through all segments."""
    begins = [0, *accumulate(one.entry.passages for one in segments)]
    return np.concatenate([first + one.removed.rows for first, one in zip(begins, segments, strict=False)])


def write_removed(root: Path, folder: str, removed: RemovedPassages, *, bm25: bool) -> RemovedEntry:
    """Write the list of the removed passages of a segment into a new folder below `root`."""
    (root / folder).mkdir(parents=True)
    for name in _REMOVED_FILES if bm25 else (_ROWS,):
        np.save(root / folder / f"{name}.npy", getattr(removed, name))
    return RemovedEntry(folder=folder, tokens=removed.tokens, with_terms=removed.with_terms)


def _open_removed(root: Path, entry: SegmentEntry, bm25: bool) -> RemovedPassages:
    listed = entry.removed
    if listed is None:
        return RemovedPassages()
    names = _REMOVED_FILES if bm25 else (_ROWS,)
    numbers = {name: map_numbers(root / listed.folder / f"{name}.npy") for name in names}
    if not rise_within(numbers[_ROWS], entry.passages):
        raise DamagedFolderError(
            f"{root / listed.folder} is damaged: rows.npy has invalid numbers; build the index again."
        )
    return RemovedPassages(**numbers, tokens=listed.tokens, with_terms=listed.with_terms)


class VectorSet(BaseModel):
    """The data that is needed to search a set of vectors; other recorded fields are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow")

    file: str
    added_files: tuple[str, ...] = ()
    """The vectors of the segments after the first, in their order."""
    fingerprint: str
    """A short hash of the vectors and their passages; it decides cache keys and the identity of runs."""
    encoder: dict[str, JsonValue]
    query_fingerprint: str
    query_reading: dict[str, JsonValue]
    """How the query encoder reads a text."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files of vectors, one for each segment of the index."""
        return self.file, *self.added_files

    @property
    def passage_fingerprint(self) -> str | None:
        """The fingerprint of the weights that encoded the passages, if the encoder has one."""
        known = self.encoder.get("passage_fingerprint")
        return known if isinstance(known, str) else None

    @property
    def options(self) -> VectorOptions:
        """How the vectors are stored."""
        recorded = self.model_extra or {}
        return _VECTOR_OPTIONS.validate_python({name: recorded[name] for name in _VECTOR_FIELDS if name in recorded})


class VectorSets(BaseModel):
    """The sets by name, and the name of the default one."""

    model_config = ConfigDict(frozen=True)

    default: str | None = None
    sets: dict[str, VectorSet] = {}

    def get(self, name: str | None, index: Path) -> VectorSet:
        """The set with this name; without a name, the default.

        Raises UsageError if the index has no such set.
        """
        if not self.sets:
            raise UsageError(
                f"{index} was not built for dense retrieval; build it with `ralm index --retriever dense`, or add "
                "vectors with `ralm encode`."
            )
        found = self.sets.get((self.default or "") if name is None else name)
        if found is None:
            raise UsageError(f"{index} has no vectors {name!r}, but {', '.join(map(repr, self.sets))}.")
        return found


def vector_sets(index: Path, manifest: Manifest) -> VectorSets:
    """The sets that a manifest lists.

    Raises DamagedFolderError if a needed entry is missing or invalid.
    """
    content = manifest.settings.get(VECTORS_SETTING)
    if content is None:
        return VectorSets()
    try:
        sets = VectorSets.model_validate(content)
    except ValidationError as error:
        raise _no_encoder(index) from error
    files = [file for one in sets.sets.values() for file in one.files]
    if missing := [name for name in files if name not in manifest.files]:
        raise DamagedFolderError(f"{index} is damaged: its manifest does not name {missing[0]}; build the index again.")
    if (sets.default in sets.sets) != bool(sets.sets):
        raise DamagedFolderError(f"{index} is damaged: its manifest names no default set; build the index again.")
    return sets


def encoder_options(index: Path, vectors: VectorSet) -> EncoderOptions:
    """The encoder that made a set of vectors.

    Raises DamagedFolderError if the manifest does not describe it.
    """
    try:
        return options_of_config(vectors.encoder)
    except ValidationError as error:
        raise _no_encoder(index) from error


def options_of_config(config: Mapping[str, JsonValue]) -> EncoderOptions:
    """The options of an encoder with this `config`."""
    return _ENCODER_OPTIONS.validate_python(config)


def _no_encoder(index: Path) -> DamagedFolderError:
    return DamagedFolderError(
        f"{index} is damaged: its manifest does not say with which encoder it was built; build the index again."
    )


def vectors_file(segment: str, name: str) -> str:
    """The file of the vectors with this name in the folder of a segment."""
    return f"{segment}/{ADDED}/{name}/{VECTORS}"


def vectors_folder(name: str, sha256: str) -> str:
    """The folder of an added set whose files have this hash."""
    return f"{ADDED}/{name}-{sha256[:_HASH_LETTERS]}"


def check_name(name: str) -> None:
    """Raise UsageError if the name of a set of vectors is invalid."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"vectors cannot be called {name!r}: a name is up to 64 letters, digits, '-', '_' and '.', and begins with "
            "a letter or digit."
        )


def new_index_settings(
    entries: Sequence[SegmentEntry], files: Mapping[str, FileEntry], vectors: Mapping[str, JsonValue] | None = None
) -> dict[str, JsonValue]:
    """The settings of a new index for its segments, its fingerprint, and the record of its `vectors` if it has any."""
    fingerprint = _short_hash({name: one.checksum for name, one in files.items()})
    listed = SegmentEntries(entries=tuple(entries), next=len(entries)).model_dump(mode="json")
    settings: dict[str, JsonValue] = {SEGMENTS_SETTING: listed, FINGERPRINT: fingerprint}
    if vectors is not None:
        file = f"{DENSE_FOLDER}/{VECTORS}"
        main = VectorSet.model_validate({**vectors, "file": file, "fingerprint": fingerprint})
        settings[VECTORS_SETTING] = VectorSets(default=MAIN, sets={MAIN: main}).model_dump(mode="json")
    return settings


def index_fingerprint(index: Path, manifest: Manifest) -> str:
    """A short hash of everything that an index was built with; adding vectors later does not change it.

    Raises DamagedFolderError if the manifest does not hold it.
    """
    known = manifest.settings.get(FINGERPRINT)
    if not isinstance(known, str):
        raise DamagedFolderError(f"{index} is damaged: its manifest holds no fingerprint; build the index again.")
    return known


def fingerprint_after(fingerprint: str, change: dict[str, str]) -> str:
    """The fingerprint of an index, or of a set of vectors, after a change that these hashes describe."""
    return _short_hash({**change, "before": fingerprint})


def set_fingerprint(passages: str, checksum: str) -> str:
    """A short hash of a file of vectors, given by its checksum, and of the passages, given by theirs."""
    return _short_hash({PASSAGES_FILE: passages, VECTORS: checksum})


def joined_hash(hashes: Sequence[str]) -> str:
    """One hash for several, in their order; a single one stays as it is."""
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def _short_hash(checksums: dict[str, str]) -> str:
    """A short hash of checksums and their names."""
    return hashlib.sha256(repr(sorted(checksums.items())).encode()).hexdigest()[:16]
