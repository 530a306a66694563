"""The layout of an index on disk, as its manifest describes it; the modules in brackets say which bytes a file holds.

manifest.json     format, settings, counts, sizes and checksums (`ralm.storage.manifest`)
passages.arrow    the passages; a passage's number is its row, here and in all other files (`ralm.corpus.store`)
columns.arrow     their metadata by value, if they have any (`ralm.retrieval.filters`)
files.table       the files that they were read from, if `ralm sync` can read these again (`ralm.corpus.file_table`)
bm25/             the arrays of BM25, if it was built for BM25 (`ralm.retrieval.bm25.arrays`)
vectors/NAME/     a set of vectors (`ralm.retrieval.dense.build`)

An index never changes in place: a change writes a new folder, which replaces the old one by a rename. Files that stay
the same are links to the old ones.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from ralm.corpus.file_table import FilesRecord
from ralm.corpus.store import PASSAGES_FILE
from ralm.errors import DamagedFolderError, UsageError
from ralm.retrieval.bm25.arrays import ARRAY_NAMES
from ralm.retrieval.dense.options import HASHES, VECTORS, EncoderOptions, VectorOptions
from ralm.storage.manifest import FileEntry, Manifest

BM25_FOLDER: Final = "bm25"
"""The folder of the arrays of BM25."""
VECTORS_FOLDER: Final = "vectors"
"""The folder of the sets of vectors, and the key of their records in a manifest's settings."""
FILES_TABLE: Final = "files.table"
"""The table of the files that were indexed."""
MAIN: Final = "main"
"""The name of the set of vectors that an index is built with."""

_ENCODER_OPTIONS: Final = TypeAdapter(EncoderOptions)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class BM25Record(_Record):
    """The constants of BM25, the analyser, and the stemming library with its version if the analyser uses one."""

    analysis: str
    stemmer: str | None = None
    k1: int | float
    b: int | float


class VectorSet(_Record):
    """A set of vectors: the encoder, how it reads a query, and how the vectors are stored."""

    fingerprint: str
    """A short hash of the vectors and their passages; it decides the identity of runs."""
    encoder: dict[str, JsonValue]
    query_fingerprint: str
    query_reading: dict[str, JsonValue]
    dimension: int
    encoded: int
    """The passages that were encoded; the vectors of the others were there."""
    faiss: str
    training_sample: int
    seed: int

    @property
    def passage_fingerprint(self) -> str | None:
        """Return the fingerprint of the weights that encoded the passages, if the encoder has one."""
        recorded = self.encoder.get("passage_fingerprint")
        return recorded if isinstance(recorded, str) else None

    @property
    def options(self) -> VectorOptions:
        """Return how the vectors are stored."""
        return VectorOptions(faiss=self.faiss, training_sample=self.training_sample, seed=self.seed)


class VectorSets(_Record):
    """The sets by name, and the name of the default one."""

    default: str | None = None
    sets: dict[str, VectorSet] = {}

    def name(self, name: str | None, index: Path) -> str:
        """Return the name of a set, by default that of the default one; UsageError if the index has no such set."""
        if not self.sets:
            raise UsageError(
                f"{index} was not built for dense retrieval; build it with `ralm index --retriever dense`, or add "
                "vectors with `ralm encode`."
            )
        chosen = (self.default or "") if name is None else name
        if chosen not in self.sets:
            raise UsageError(f"{index} has no vectors {name!r}, but {', '.join(map(repr, self.sets))}.")
        return chosen

    def get(self, name: str | None, index: Path) -> VectorSet:
        """Return the set with this name, or the default one; UsageError if the index has no such set."""
        return self.sets[self.name(name, index)]


class IndexSettings(_Record):
    """The settings in a manifest that say how an index is searched; there are others, such as the corpus."""

    bm25: BM25Record | None = None
    fingerprint: str
    """A short hash of the passages and the arrays of BM25; vectors do not change it."""
    vectors: VectorSets = VectorSets()
    files: FilesRecord | None = None
    """The files that were indexed; None if they were not listed."""

    def recorded(self, entries: Mapping[str, FileEntry]) -> dict[str, JsonValue]:
        """Return the settings as the manifest of an index with these files records them, with their fingerprints."""
        passages = {PASSAGES_FILE: entries[PASSAGES_FILE].sha256}
        arrays = {name: entry.sha256 for name, entry in entries.items() if name.startswith(f"{BM25_FOLDER}/")}
        content = self.model_dump(mode="json") | {"fingerprint": _short_hash({**passages, **arrays})}
        for name, record in content[VECTORS_FOLDER]["sets"].items():
            vectors = {VECTORS: entries[vectors_file(name, VECTORS)].sha256}
            record["fingerprint"] = _short_hash({**passages, **vectors})
        if not self.vectors.sets:
            del content[VECTORS_FOLDER]
        return {name: value for name, value in content.items() if value is not None}


def damaged_index(index: Path, how: str) -> DamagedFolderError:
    """Return the error of an index, or a part of it, that is damaged."""
    return DamagedFolderError(f"{index} is damaged: {how}; build the index again.")


def index_settings(index: Path, manifest: Manifest) -> IndexSettings:
    """Return the settings in a manifest; DamagedFolderError if they are invalid or a file of them is not named."""
    try:
        settings = IndexSettings.model_validate(manifest.settings)
    except ValidationError as error:
        raise damaged_index(index, f"its manifest does not describe its {error.errors()[0]['loc'][0]}") from error
    if settings.bm25 is None and not settings.vectors.sets:
        raise damaged_index(index, "its manifest describes neither BM25 nor vectors")
    needed = [
        PASSAGES_FILE,
        *(f"{BM25_FOLDER}/{name}.npy" for name in ARRAY_NAMES if settings.bm25),
        *(vectors_file(name, file) for name in settings.vectors.sets for file in (VECTORS, HASHES)),
        *([FILES_TABLE] if settings.files else ()),
    ]
    if missing := [file for file in needed if file not in manifest.files]:
        raise damaged_index(index, f"its manifest does not name {missing[0]}")
    if (settings.vectors.default in settings.vectors.sets) != bool(settings.vectors.sets):
        raise damaged_index(index, "its manifest names no default set")
    return settings


def options_of_config(config: Mapping[str, JsonValue]) -> EncoderOptions:
    """Return the options of an encoder with this `config`."""
    return _ENCODER_OPTIONS.validate_python(config)


def vectors_folder(name: str) -> str:
    """Return the path in the index of a set of vectors."""
    return f"{VECTORS_FOLDER}/{name}"


def vectors_file(name: str, file: str) -> str:
    """Return the path in the index of a file of a set of vectors."""
    return f"{vectors_folder(name)}/{file}"


def _short_hash(checksums: dict[str, str]) -> str:
    return hashlib.sha256(repr(sorted(checksums.items())).encode()).hexdigest()[:16]
