"""The sets of vectors of an index, as its manifest lists them: each with a name, a file and the encoder that made it.

One of them is the default. An index that was built with vectors and never changed has one set, called `MAIN`, in
`dense/vectors.faiss`. Sets that were added are in `vectors/NAME-HASH/vectors.faiss`. The hash is of the file, so a set
that replaces another of the same name never has the same path.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from ralm.corpus.store import PASSAGES
from ralm.errors import DamagedFolderError, UsageError
from ralm.retrieval.dense.options import VECTORS, BuiltWith, EncoderOptions, VectorOptions
from ralm.storage.manifest import Manifest

MAIN: Final = "main"
"""The name of the set that an index is built with."""
VECTORS_SETTING: Final = "vectors"
"""The key of the sets in a manifest's settings."""
FINGERPRINT: Final = "fingerprint"
"""The key, in the settings, of the fingerprint that an index had before it was changed."""
BUILT: Final = "dense"
"""The key, in the settings, of the set of an index that was never changed; also the folder with its file."""
ADDED: Final = "vectors"
"""The folder of all added sets."""

_NAME: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_HASH_LETTERS: Final = 12
_ENCODER_OPTIONS: Final = TypeAdapter(EncoderOptions)
_VECTOR_OPTIONS: Final = TypeAdapter(VectorOptions)
_STORED_AS: Final = tuple(field.name for field in fields(VectorOptions))


class VectorSet(BaseModel):
    """What is needed to search a set of vectors; other recorded fields are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow")

    file: str
    added_files: tuple[str, ...] = ()
    """The vectors of the segments after the first, in their order."""
    fingerprint: str
    """A short hash of the vectors and their passages; it decides cache keys and the identity of runs."""
    encoder: dict[str, JsonValue]
    query_fingerprint: str
    query_reading: dict[str, JsonValue] = {}
    """How the query encoder reads a text; empty in an index from before this was recorded."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files of vectors, one for each segment of the index."""
        return self.file, *self.added_files

    @property
    def built_with(self) -> BuiltWith:
        """What the encoder of queries must match."""
        passages = self.encoder.get("passage_fingerprint")
        return BuiltWith(
            query_fingerprint=self.query_fingerprint,
            query_reading=self.query_reading,
            passage_fingerprint=passages if isinstance(passages, str) else None,
        )


class VectorSets(BaseModel):
    """The sets by name, and which of them is the default."""

    model_config = ConfigDict(frozen=True)

    default: str | None = None
    sets: dict[str, VectorSet] = {}

    def named(self, name: str | None, index: Path) -> VectorSet:
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

    Raises DamagedFolderError if something that is needed is missing or invalid.
    """
    settings = manifest.settings
    if VECTORS_SETTING not in settings and BUILT not in settings:
        return VectorSets()
    built = settings.get(BUILT)
    content = settings.get(VECTORS_SETTING)
    if content is None and isinstance(built, dict):
        own = {**built, "file": f"{BUILT}/{VECTORS}", "fingerprint": index_fingerprint(manifest)}
        content = {"default": MAIN, "sets": {MAIN: own}}
    try:
        sets = VectorSets.model_validate(content)
    except ValidationError as error:
        raise no_encoder(index) from error
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
        raise no_encoder(index) from error


def options_of_config(config: Mapping[str, JsonValue]) -> EncoderOptions:
    """The options of an encoder with this `config`."""
    return _ENCODER_OPTIONS.validate_python(config)


def vector_options(vectors: VectorSet) -> VectorOptions:
    """How a set of vectors is stored."""
    recorded = vectors.model_extra or {}
    return _VECTOR_OPTIONS.validate_python({name: recorded[name] for name in _STORED_AS if name in recorded})


def vectors_file(segment: str, name: str) -> str:
    """The file of the vectors with this name in the folder of a segment."""
    return f"{segment}/{ADDED}/{name}/{VECTORS}"


def no_encoder(index: Path) -> DamagedFolderError:
    """The error of an index that does not name the encoder of its vectors."""
    return DamagedFolderError(
        f"{index} is damaged: its manifest does not say with which encoder it was built; build the index again."
    )


def check_name(name: str) -> None:
    """Raise UsageError if the name of a set of vectors is invalid."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"vectors cannot be called {name!r}: a name is up to 64 letters, digits, '-', '_' and '.', and begins with "
            "a letter or digit."
        )


def folder_of(name: str, sha256: str) -> str:
    """The folder of a set whose file has this checksum."""
    return f"{ADDED}/{name}-{sha256[:_HASH_LETTERS]}"


def index_fingerprint(manifest: Manifest) -> str:
    """A short hash of everything that an index was built with; adding vectors later does not change it."""
    known = manifest.settings.get(FINGERPRINT)
    if isinstance(known, str):
        return known
    return short_hash({name: one.checksum for name, one in manifest.files.items() if not name.startswith(f"{ADDED}/")})


def fingerprint_after(fingerprint: str, change: dict[str, str]) -> str:
    """The fingerprint of an index, or of a set of vectors, after a change that these hashes describe."""
    return short_hash({**change, "before": fingerprint})


def set_fingerprint(passages: str, checksum: str) -> str:
    """A short hash of a file of vectors, given by its checksum, and of the passages, given by theirs."""
    return short_hash({PASSAGES: passages, VECTORS: checksum})


def joined_hash(hashes: Sequence[str]) -> str:
    """One hash for several, in their order: a single one stays as it is."""
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def short_hash(checksums: dict[str, str]) -> str:
    """A short hash of checksums and the names of what they are of."""
    return hashlib.sha256(repr(sorted(checksums.items())).encode()).hexdigest()[:16]
