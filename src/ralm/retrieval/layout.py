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

from ralm.corpus.file_table import FilesRecord
from ralm.corpus.numbering import StoredPassages, rise_within
from ralm.corpus.store import PASSAGES_FILE, PassageStore
from ralm.errors import DamagedFolderError, UsageError
from ralm.retrieval.bm25.arrays import ARRAY_NAMES, MappedArrays, check_arrays, map_arrays, map_numbers
from ralm.retrieval.bm25.segments import RemovedPassages, Segment
from ralm.retrieval.columns import COLUMNS_FILE, ColumnFile
from ralm.retrieval.dense.options import VECTORS, EncoderOptions, VectorOptions
from ralm.storage.manifest import FileEntry, Manifest

VECTORS_SETTING: Final = "vectors"
"""The key of the sets of vectors in a manifest's settings."""
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
FILES: Final = "files"
"""The key, in a manifest's settings, of the files that were indexed, and the folder of their table."""
UPDATES: Final = "updates"
"""The key, in a manifest's settings, of the number of updates, and the latest of them."""
MAIN: Final = "main"
"""The name of the set of vectors that an index is built with."""

_ROWS: Final = "rows"
_NAME: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_HASH_LETTERS: Final = 12
_ENCODER_OPTIONS: Final = TypeAdapter(EncoderOptions)
_VECTOR_OPTIONS: Final = TypeAdapter(VectorOptions)
_VECTOR_FIELDS: Final = tuple(field.name for field in fields(VectorOptions))
_NO_ENCODER: Final = "its manifest does not say with which encoder it was built"
_FAULTS: Final = {
    "segments": "its manifest does not describe its segments",
    "fingerprint": "its manifest holds no fingerprint",
    "bm25": "its manifest does not describe BM25",
    "vectors": _NO_ENCODER,
}


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class RemovedEntry(_Record):
    """The passages removed from a segment: the folder that lists them, the number of all their terms, and how many of
    them have any."""

    folder: str
    tokens: int = 0
    with_terms: int = 0

    def files(self, *, bm25: bool) -> dict[str, str]:
        """The paths in the index of the arrays that list the passages, by their names in `RemovedPassages`."""
        names = (_ROWS, "terms", "counts") if bm25 else (_ROWS,)
        return {name: f"{self.folder}/{name}.npy" for name in names}


class SegmentEntry(_Record):
    """A segment: its folder in the index (empty for the index folder itself), its rows, the removed ones, and whether
    it has a file of columns."""

    folder: str = ""
    passages: int
    removed: RemovedEntry | None = None
    columns: bool = False

    def files(self, *, bm25: bool) -> list[str]:
        """The files of the segment, except those of vectors, by their paths in the index."""
        return [
            self.file(PASSAGES_FILE),
            *([self.file(COLUMNS_FILE)] if self.columns else ()),
            *(self.file(f"{BM25_FOLDER}/{name}.npy") for name in ARRAY_NAMES if bm25),
            *(self.removed.files(bm25=bm25).values() if self.removed else ()),
        ]

    def file(self, name: str) -> str:
        """The path in the index of a file of the segment."""
        return f"{self.folder}/{name}" if self.folder else name


class SegmentEntries(_Record):
    """The segments in order, and the number of the next new folder."""

    entries: tuple[SegmentEntry, ...] = Field(min_length=1)
    next: int = 1


class BM25Record(_Record):
    """The constants of BM25, the analyser, and the stemming library with its version if the analyser uses one."""

    analysis: str
    stemmer: str | None = None
    k1: int | float
    b: int | float


class VectorSet(BaseModel):
    """The data that is needed to search a set of vectors; other recorded fields are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow")

    file: str
    added_files: tuple[str, ...] = ()
    """The vectors of the segments after the first, in their order."""
    fingerprint: str
    """A short hash of the vectors and their passages; it decides the identity of runs."""
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


class VectorSets(_Record):
    """The sets by name, and the name of the default one."""

    default: str | None = None
    sets: dict[str, VectorSet] = {}

    @property
    def files(self) -> set[str]:
        """The files of all sets."""
        return {file for one in self.sets.values() for file in one.files}

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


class IndexSettings(_Record):
    """The settings in a manifest that say how an index is searched; there are others, such as the corpus."""

    bm25: BM25Record | None = None
    segments: SegmentEntries
    fingerprint: str
    """A short hash of everything that the index was built with; adding vectors later does not change it."""
    vectors: VectorSets = VectorSets()

    def recorded(self) -> dict[str, JsonValue]:
        """The settings as the manifest records them."""
        content = self.model_dump(mode="json", include={"segments", "fingerprint"})
        if self.bm25:
            content["bm25"] = self.bm25.model_dump(mode="json", exclude_none=True)
        if self.vectors.sets:
            content[VECTORS_SETTING] = self.vectors.model_dump(mode="json")
        return content


@dataclass(frozen=True, slots=True, eq=False)
class OpenSegment:
    """A segment whose files are open; `root` is the folder that its paths are relative to."""

    root: Path
    entry: SegmentEntry
    store: PassageStore
    mapped: MappedArrays | None
    """The arrays of BM25, not checked yet; None if the index was not built for it."""
    removed: RemovedPassages
    vectors: Mapping[str, str]
    """The file of each set of vectors, by the names of the sets; these are opened on use."""
    columns: ColumnFile | None
    """The metadata by value, if it was written."""

    def for_bm25(self) -> Segment:
        """The segment as BM25 searches it.

        Raises DamagedFolderError.
        """
        assert self.mapped is not None, "the index was not built for BM25"
        arrays = check_arrays(self.root / self.entry.folder / BM25_FOLDER, self.mapped)
        return Segment(arrays, self.passages, self.removed)

    @property
    def passages(self) -> int:
        """The number of passages, those that were removed included."""
        return self.entry.passages

    @property
    def left(self) -> int:
        """The number of passages that were not removed."""
        return self.passages - len(self.removed.rows)


def damaged_index(index: Path, how: str) -> DamagedFolderError:
    """The error of an index, or a part of it, that is damaged."""
    return DamagedFolderError(f"{index} is damaged: {how}; build the index again.")


def index_settings(index: Path, manifest: Manifest) -> IndexSettings:
    """The settings that a manifest records.

    Raises DamagedFolderError if they are missing or invalid, or name a file that the manifest does not.
    """
    try:
        settings = IndexSettings.model_validate(manifest.settings)
    except ValidationError as error:
        raise damaged_index(index, _FAULTS[str(error.errors()[0]["loc"][0])]) from error
    entries, vectors = settings.segments.entries, settings.vectors
    if settings.bm25 is None and not vectors.sets:
        raise damaged_index(index, _FAULTS["bm25"])
    files = [file for entry in entries for file in entry.files(bm25=settings.bm25 is not None)]
    if missing := [name for name in (*files, *vectors.files) if name not in manifest.files]:
        raise damaged_index(index, f"its manifest does not name {missing[0]}")
    if (vectors.default in vectors.sets) != bool(vectors.sets):
        raise damaged_index(index, "its manifest names no default set")
    if any(len(one.files) != len(entries) for one in vectors.sets.values()):
        raise damaged_index(index, "a segment of it has no vectors")
    return settings


def files_record(manifest: Manifest) -> FilesRecord | None:
    """What an index records of its files; None if it does not list them, or if an older ralm updated it and dropped the
    list. Raises DamagedFolderError."""
    recorded = manifest.settings.get(FILES)
    try:
        record = None if recorded is None else FilesRecord.model_validate(recorded)
        return record if record and record.table in manifest.files else None
    except ValidationError as error:
        raise DamagedFolderError("the manifest does not describe its files; build the index again.") from error


def open_segment(
    root: Path, entry: SegmentEntry, vectors: Mapping[str, str], *, bm25: bool, checksum: str | None = None
) -> OpenSegment:
    """Open the files of a segment, except those of vectors; `checksum` is that of its passages.

    Raises DamagedFolderError.
    """
    store = PassageStore(root / entry.file(PASSAGES_FILE), checksum)
    if entry.passages != len(store):
        raise damaged_index(root, f"{entry.file(PASSAGES_FILE)} has {len(store):,} passages but the manifest disagrees")
    mapped = map_arrays(root / entry.folder / BM25_FOLDER) if bm25 else None
    removed = RemovedPassages()
    if listed := entry.removed:
        numbers = {name: map_numbers(root / file) for name, file in listed.files(bm25=bm25).items()}
        if not rise_within(numbers[_ROWS], entry.passages):
            raise damaged_index(root / listed.folder, "rows.npy has invalid numbers")
        removed = RemovedPassages(**numbers, tokens=listed.tokens, with_terms=listed.with_terms)
    columns = ColumnFile(root / entry.file(COLUMNS_FILE)) if entry.columns else None
    return OpenSegment(root, entry, store, mapped, removed, vectors, columns)


def stored_passages(segments: Sequence[OpenSegment]) -> StoredPassages:
    """The passages of consecutive segments, without those that were removed."""
    begins = accumulate((one.passages for one in segments), initial=0)
    removed = [first + one.removed.rows for first, one in zip(begins, segments, strict=False)]
    return StoredPassages([one.store for one in segments], np.concatenate(removed))


def write_removed(root: Path, folder: str, removed: RemovedPassages, *, bm25: bool) -> RemovedEntry:
    """Write the list of the removed passages of a segment into a new folder below `root`."""
    entry = RemovedEntry(folder=folder, tokens=removed.tokens, with_terms=removed.with_terms)
    (root / folder).mkdir(parents=True)
    for name, file in entry.files(bm25=bm25).items():
        np.save(root / file, getattr(removed, name))
    return entry


def encoder_options(index: Path, vectors: VectorSet) -> EncoderOptions:
    """The encoder that made a set of vectors.

    Raises DamagedFolderError if the manifest does not describe it.
    """
    try:
        return options_of_config(vectors.encoder)
    except ValidationError as error:
        raise damaged_index(index, _NO_ENCODER) from error


def options_of_config(config: Mapping[str, JsonValue]) -> EncoderOptions:
    """The options of an encoder with this `config`."""
    return _ENCODER_OPTIONS.validate_python(config)


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
    entry: SegmentEntry,
    files: Mapping[str, FileEntry],
    bm25: BM25Record | None,
    vectors: Mapping[str, JsonValue] | None,
) -> dict[str, JsonValue]:
    """The settings of a new index of one segment; `vectors` is the record of its vectors if it has any."""
    decisive = {name: one.sha256 for name, one in files.items() if Path(name).name != COLUMNS_FILE}
    fingerprint = _short_hash(decisive)
    sets = VectorSets()
    if vectors is not None:
        file = f"{DENSE_FOLDER}/{VECTORS}"
        main = VectorSet.model_validate({**vectors, "file": file, "fingerprint": fingerprint})
        sets = VectorSets(default=MAIN, sets={MAIN: main})
    segments = SegmentEntries(entries=(entry,), next=1)
    return IndexSettings(bm25=bm25, segments=segments, fingerprint=fingerprint, vectors=sets).recorded()


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
    return hashlib.sha256(repr(sorted(checksums.items())).encode()).hexdigest()[:16]
