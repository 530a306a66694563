"""Makes the vectors of passages: each is addressed by the hash of its text, so only new texts are encoded.

vectors.faiss    the FAISS index; the row of a vector is the number of its passage
hashes.npy       S16, passages        the hash of the text of each passage
raw.npy          float32, P x D       the vectors as they were encoded, if FAISS keeps only approximations of them

Texts are encoded in chunks, the longest of a chunk first. The vectors of a chunk are saved in a work folder with the
hashes of their texts; a build that was interrupted reads them there. Vectors of an index that is built again come from
that index. Of texts that occur several times, the first is encoded.
"""

import hashlib
import io
import json
import re
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import faiss
import numpy as np
from numpy.typing import NDArray

from ralm.errors import CorpusError, DamagedFolderError, ModelError, UsageError
from ralm.protocols import Encoder
from ralm.records import FloatArray, IntArray, Passage
from ralm.retrieval.dense.options import HASHES, RAW, VECTORS, VectorOptions
from ralm.storage.work import storage_errors, write_atomically
from ralm.terminal import Advance, progress_bar

CHUNK: Final = 4096
"""Passages encoded between one save and the next."""
HASH_BYTES: Final = 16
_UNKNOWN: Final = -1
_COUNT: Final = "[1-9][0-9]*"
_GRAPH: Final = "HNSW(?:[2-9]|[1-9][0-9]{1,2})"
"""FAISS crashes the process with fewer neighbours; more would take more memory than the vectors."""
_SCALARS: Final = "Flat|SQ(?:4|6|8|fp16|bf16)"
_CODES: Final = f"(?:{_SCALARS}|PQ{_COUNT}(?:x{_COUNT})?(?:fs)?)"
_KIND: Final = re.compile(
    f"(?:(?:OPQ|PCA){_COUNT}(?:_{_COUNT})?,)?"
    f"(?:{_CODES}|IVF{_COUNT}(?:_{_GRAPH})?,{_CODES}|{_GRAPH}(?:,(?:{_SCALARS}))?)"
    "(?:,RFlat)?"
)
_LOSSLESS_CODES: Final = (faiss.ScalarQuantizer.QT_fp16, faiss.ScalarQuantizer.QT_bf16)


def text_hashes(encoder: Encoder, passages: Sequence[Passage]) -> NDArray[np.bytes_]:
    """Return the hashes (S16) of the texts that an encoder reads; CorpusError if a passage has none."""
    hash_P = np.empty(len(passages), f"S{HASH_BYTES}")
    for row, passage in enumerate(passages):
        text = encoder.passage_text(passage)
        if not text.strip():
            raise CorpusError(
                f"passage {passage.number} (document {passage.document_id!r}) is empty, so there is nothing to encode; "
                "leave it out of the corpus."
            )
        hash_P[row] = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()
    return hash_P


class SavedChunks:
    """The vectors of an encoder in the folder `work`, by `CHUNK` texts; `encoded` counts those not found there."""

    def __init__(self, work: Path, encoder: Encoder) -> None:
        self.encoded = 0
        self._work = work
        self._encoder = encoder
        config = json.dumps(encoder.config, sort_keys=True).encode()
        self._prefix = hashlib.sha256(config).hexdigest()[:HASH_BYTES]

    def encode(self, passages: Sequence[Passage], hash_P: NDArray[np.bytes_], advance: Advance | None = None) -> Path:
        """Encode passages whose texts have these hashes, unless that was done; return the file of their vectors."""
        file = self._work / f"{self._prefix}-{_name(hash_P)}.npz"
        if not len(_hashes(file)):
            vectors_PD = self._encoder.encode_passages(passages, advance)
            self.encoded += len(passages)
            if not np.isfinite(vectors_PD).all():
                passage = passages[int(np.argmin(np.isfinite(vectors_PD).all(axis=1)))]
                raise ModelError(
                    f"the encoder gives a vector with NaN or infinity for passage {passage.number} "
                    f"({passage.text[:40]!r}); its weights are damaged or overflow in this number format; try "
                    '`dtype="float32"`.'
                )
            _save(file, hash_P, vectors_PD)
        return file

    def add_to(self, vectors: "KnownVectors") -> None:
        """Add the vectors of the files that are whole."""
        for file in sorted(self._work.glob(f"{self._prefix}-*.npz")):
            vectors.add_file(file, _hashes(file))


class KnownVectors:
    """Vectors by the hashes of their texts, from several sources."""

    def __init__(self) -> None:
        self._sources: list[tuple[NDArray[np.bytes_], Callable[[IntArray], FloatArray]]] = []

    def add(self, hash_V: NDArray[np.bytes_], read: Callable[[IntArray], FloatArray]) -> None:
        """Add vectors of texts with these hashes; `read` gives those of some rows (rising)."""
        self._sources.append((hash_V, read))

    def add_file(self, file: Path, hash_V: NDArray[np.bytes_]) -> None:
        """Add the vectors of a saved chunk of texts with these hashes."""
        self.add(hash_V, lambda rows: _read(file)[1][rows])

    def places(self, hash_P: NDArray[np.bytes_]) -> IntArray:
        """Return the places (int64) of the vectors with these hashes, for `read`; -1 where there is none."""
        every = np.concatenate([np.zeros(0, hash_P.dtype), *(hash_V for hash_V, _ in self._sources)])
        order = np.argsort(every, kind="stable")
        slot_P = np.searchsorted(every, hash_P, sorter=order)
        place_P = np.full(len(hash_P), _UNKNOWN, np.int64)
        inside = slot_P < len(every)
        place_P[inside] = order[slot_P[inside]]
        place_P[inside] = np.where(every[place_P[inside]] == hash_P[inside], place_P[inside], _UNKNOWN)
        return place_P

    def read(self, places: IntArray) -> FloatArray:
        """Return the vectors (float32, P x D) at these places."""
        distinct, inverse = np.unique(places, return_inverse=True)
        ends = np.cumsum([0, *(len(hash_V) for hash_V, _ in self._sources)])
        parts = np.split(distinct, np.searchsorted(distinct, ends[1:-1]))
        sources = zip(self._sources, parts, ends[:-1], strict=True)
        return np.concatenate([read(rows - first) for (_, read), rows, first in sources if len(rows)])[inverse]


def write_vectors(
    folder: Path,
    passages: Sequence[Passage],
    hash_P: NDArray[np.bytes_],
    vectors: KnownVectors,
    options: VectorOptions,
    chunks: SavedChunks | None,
    dimension: int,
) -> None:
    """Write the vectors of passages into a new folder; those that are not in `vectors` are encoded by `chunks`."""
    index = new_faiss_index(dimension, options.faiss)
    if chunks:
        chunks.add_to(vectors)
        _, firsts = np.unique(hash_P, return_index=True)
        new = np.sort(firsts[vectors.places(hash_P[firsts]) == _UNKNOWN])
        with progress_bar("Encoding passages", len(hash_P)) as advance:
            advance(len(hash_P) - len(new))
            for begin in range(0, len(new), CHUNK):
                rows = new[begin : begin + CHUNK]
                file = chunks.encode([passages[row] for row in rows.tolist()], hash_P[rows], advance)
                vectors.add_file(file, hash_P[rows])
    place_P = vectors.places(hash_P)
    assert (place_P != _UNKNOWN).all(), "every text is known or encoded"
    if not index.is_trained:
        size = min(options.training_sample, len(place_P))
        drawn = np.sort(np.random.default_rng(options.seed).choice(len(place_P), size, replace=False))
        _train_faiss(index, vectors.read(place_P[drawn]), options.faiss)
    folder.mkdir(parents=True)
    _add(index, vectors, place_P, options, folder)
    np.save(folder / HASHES, hash_P)
    faiss.write_index(index, str(folder / VECTORS))
    faiss.read_index(str(folder / VECTORS), faiss.IO_FLAG_MMAP_IFC)


def _add(index: faiss.Index, vectors: KnownVectors, place_P: IntArray, options: VectorOptions, folder: Path) -> None:
    """Add the vectors at these places to the index, and write them as they are if it keeps only approximations."""
    raw = None
    if not _keeps_vectors(index):
        raw = np.lib.format.open_memmap(folder / RAW, "w+", np.float32, (len(place_P), index.d))
    try:
        with progress_bar("Adding vectors", len(place_P)) as advance:
            for begin in range(0, len(place_P), CHUNK):
                vectors_PD = np.ascontiguousarray(vectors.read(place_P[begin : begin + CHUNK]))
                index.add(vectors_PD)
                if raw is not None:
                    raw[begin : begin + CHUNK] = vectors_PD
                advance(len(vectors_PD))
    except RuntimeError as error:
        raise UsageError(
            f"FAISS cannot keep {len(place_P):,} vectors in an index {options.faiss!r} ({_short_reason(error)}); "
            "choose another kind; the encoded vectors are kept for it."
        ) from None
    if raw is not None:
        raw.flush()


def _save(file: Path, hash_P: NDArray[np.bytes_], vectors_PD: FloatArray) -> None:
    """Write a chunk atomically; two machines may write the same one."""
    if file.is_dir():
        raise DamagedFolderError(f"{file} is a folder, but a file belongs there; remove it and rerun the command.")
    buffer, temporary = io.BytesIO(), file.with_name(uuid.uuid4().hex)
    np.savez(buffer, hashes=hash_P, vectors=np.asarray(vectors_PD, np.float32))
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(temporary, buffer.getvalue())
        temporary.replace(file)


def _read(file: Path) -> tuple[NDArray[np.bytes_], FloatArray]:
    """Return the hashes and vectors of a saved chunk."""
    with np.load(file, allow_pickle=False) as arrays:
        return arrays["hashes"], arrays["vectors"]


def _hashes(file: Path) -> NDArray[np.bytes_]:
    """Return the hashes of a saved chunk, as its name tells; none if there is no such file, or it is damaged."""
    try:
        hash_V, _ = _read(file)
    except Exception:  # noqa: BLE001  # a damaged archive fails in ways that cannot be listed
        hash_V = np.zeros(0, f"S{HASH_BYTES}")
    return hash_V if file.stem.endswith(_name(hash_V)) else hash_V[:0]


def _name(hash_V: NDArray[np.bytes_]) -> str:
    return hashlib.sha256(hash_V.tobytes()).hexdigest()


def new_faiss_index(dimension: int, string: str) -> faiss.Index:
    """Return an empty FAISS index for inner products; UsageError if it cannot take vectors in order and in parts."""
    reason = "of its kinds, use Flat, SQ8, SQfp16, PQ64, HNSW32, or IVF4096 or OPQ64 before one, as in IVF4096,PQ64"
    if _KIND.fullmatch(string):
        try:
            return faiss.index_factory(dimension, string, faiss.METRIC_INNER_PRODUCT)
        except (RuntimeError, MemoryError) as error:
            reason = _short_reason(error)
    raise UsageError(f"FAISS cannot make an index {string!r} for vectors of {dimension} dimensions ({reason}).")


def _train_faiss(index: faiss.Index, vectors_PD: FloatArray, string: str) -> None:
    """Train an index on these vectors (float32); UsageError if there are too few of them."""
    try:
        index.train(vectors_PD)
    except RuntimeError as error:
        raise UsageError(
            f"a FAISS index {string!r} cannot be trained on {len(vectors_PD):,} vectors ({_short_reason(error)}); use "
            "one with fewer lists or centroids, a larger training sample, or Flat."
        ) from None


def _keeps_vectors(index: faiss.Index) -> bool:
    """Return whether an index stores vectors without loss, or in 16 bits, so that they can be read back."""
    if isinstance(index, faiss.IndexScalarQuantizer):
        return index.sq.qtype in _LOSSLESS_CODES
    return isinstance(index, faiss.IndexFlat | faiss.IndexIVFFlat | faiss.IndexHNSWFlat)


def _short_reason(error: RuntimeError | MemoryError) -> str:
    """Return the last part of a FAISS message, whose first part is a place in its source."""
    return str(error).strip().splitlines()[-1].rpartition(": ")[2]
