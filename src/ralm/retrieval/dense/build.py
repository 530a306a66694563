"""Builds the FAISS indexes of an index from a stream of passages, and merges those of segments.

Passages are encoded in chunks, the longest of a chunk first. The vectors of each chunk are saved in a work folder
beside the index, in a file that is named by a hash of the texts and the encoder, and that ends in a checksum. A resumed
build reads the intact files and encodes the rest. At the end FAISS is trained on a sample of the vectors if its index
needs training, and the vectors are added in order.
"""

import hashlib
import io
import json
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Final

import faiss
import numpy as np
from pydantic import JsonValue

from ralm.errors import CorpusError, DamagedFolderError, ModelError, UsageError
from ralm.protocols import Encoder
from ralm.records import FloatArray, IntArray, Passage
from ralm.retrieval.dense.options import NOTHING_ENCODED, VECTORS, EncodingStats, VectorOptions
from ralm.storage.atomic import storage_errors
from ralm.terminal import Advance, progress_bar

_CHECKSUM_BYTES: Final = hashlib.sha256().digest_size
CHUNK: Final = 4096
"""Passages encoded between one save and the next."""
_MIN_NEIGHBOURS: Final = 2
"""With fewer neighbours in a graph, FAISS crashes the process."""
_MAX_NEIGHBOURS: Final = 2048
"""A graph with more would take more memory than the vectors."""
_FLAT: Final = "Flat"
_LOSSLESS_CODES: Final = (faiss.ScalarQuantizer.QT_fp16, faiss.ScalarQuantizer.QT_bf16)


class ChunkEncoder:
    """Encodes chunks of passages, and saves the vectors of each in the folder `work` under a hash of the texts and the
    encoder; a chunk that is there is not encoded again.

    `advance` is called as passages are done. `done` counts the passages that were encoded.
    """

    def __init__(self, work: Path, encoder: Encoder, advance: Advance | None = None) -> None:
        self.done = NOTHING_ENCODED
        self.config = encoder.config
        self._work = work
        self._encoder = encoder
        self._advance = advance

    def encode(self, passages: Sequence[Passage]) -> Path:
        """The file with the vectors of passages, each of which has text.

        Raises ModelError if a vector is invalid, StorageError if the disk is full.
        """
        file = self._work / f"{self._address(passages)}.npy"
        if not _is_whole(file):
            begin = perf_counter()
            vectors_PD = self._encoder.encode_passages(passages, self._advance)
            self.done = self.done.plus(EncodingStats(len(passages), perf_counter() - begin))
            _check_finite(vectors_PD, passages)
            _save(file, vectors_PD)
        elif self._advance:
            self._advance(len(passages))
        return file

    def _address(self, passages: Sequence[Passage]) -> str:
        """A hash of the texts and the configuration of the encoder."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        for passage in passages:
            text = self._encoder.passage_text(passage).encode("utf-8", "surrogatepass")
            digest.update(len(text).to_bytes(8, "little") + text)
        return digest.hexdigest()


class DenseBuilder:
    """Collects passages and writes their vectors into `folder`; call `add` for each passage in order, then
    `encode_rest`, then `finish`.

    `work` keeps encoded vectors in the meantime; its owner removes it. Vectors that an earlier build of the same
    passages with the same encoder left there are reused. `chunk`: passages encoded between one save and the next.
    `advance` is called as passages are encoded. Raises UsageError if FAISS cannot make an index of this string.
    """

    def __init__(
        self,
        folder: Path,
        work: Path,
        encoder: Encoder,
        options: VectorOptions | None = None,
        *,
        chunk: int = CHUNK,
        advance: Advance | None = None,
    ) -> None:
        self._folder = folder
        self._encoder = encoder
        self._encoded = ChunkEncoder(work, encoder, advance)
        self._options = options or VectorOptions()
        self._chunk = chunk
        self._index = new_faiss_index(encoder.dimension, self._options.faiss)
        self._waiting: list[Passage] = []
        self._files: list[Path] = []
        self._count = 0

    def add(self, passage: Passage) -> None:
        """Add the next passage; it is encoded when a chunk is full.

        Raises CorpusError if it has no text to encode, ModelError if its vector is invalid.
        """
        check_passage_text(self._encoder, passage)
        self._waiting.append(passage)
        if len(self._waiting) == self._chunk:
            self.encode_rest()

    def finish(self, ends: Sequence[int] = (), before: EncodingStats = NOTHING_ENCODED) -> dict[str, JsonValue]:
        """Write the vectors; returns the record of them for the manifest.

        `ends`: how many of the passages are in the first segment, in the first two, and so on; each has a file
        (`segment_file`). FAISS is trained once, on vectors of all segments. Without `ends` there is one segment.
        `before`: passages that were encoded on other machines. Raises CorpusError if nothing was added, UsageError if
        there are too few vectors to train on.
        """
        assert not self._waiting, "encode_rest comes first"
        if not self._count:
            raise CorpusError("the corpus has no passages to index: give documents that are not empty.")
        if not self._index.is_trained:
            train_faiss(self._index, self._sample(), self._options.faiss)
        try:
            with progress_bar("Adding vectors", self._count) as advance:
                for number, (first, end) in enumerate(pairwise([0, *(ends or [self._count])])):
                    self._write(self._folder / segment_file(number), first, end, advance)
        except RuntimeError as error:
            raise UsageError(
                f"FAISS cannot keep {self._count:,} vectors in an index {self._options.faiss!r} ({_reason(error)}); "
                "choose another kind; the encoded vectors are kept for it."
            ) from None
        encoded = self._encoded.done.plus(before)
        return {
            "encoder": self._encoded.config,
            "query_fingerprint": self._encoder.query_fingerprint,
            "query_reading": self._encoder.query_config.get("reading", {}),
            "dimension": self._encoder.dimension,
            "encoded": encoded.passages,
            "encoding_seconds": round(encoded.seconds, 3),
            **asdict(self._options),
        }

    def encode_rest(self) -> None:
        """Encode the passages that are still waiting, and save their vectors in the work folder."""
        passages, self._waiting = self._waiting, []
        if not passages:
            return
        self._files.append(self._encoded.encode(passages))
        self._count += len(passages)

    def _sample(self) -> FloatArray:
        """The vectors to train on: drawn without repetition, in the order of the passages."""
        drawn, parts = _drawn(self._count, self._options), []
        for number, file in enumerate(self._files):
            begin = number * self._chunk
            own = drawn[(drawn >= begin) & (drawn < begin + self._chunk)] - begin
            parts.append(np.load(file, mmap_mode="r", allow_pickle=False)[own])
        return np.concatenate(parts)

    def _write(self, file: Path, first: int, end: int, advance: Advance) -> None:
        """Write the vectors of consecutive passages in a copy of the trained index."""
        index = faiss.clone_index(self._index)
        for begin in range(first - first % self._chunk, end, self._chunk):
            vectors_PD = np.load(self._files[begin // self._chunk], mmap_mode="r", allow_pickle=False)
            own_PD = np.ascontiguousarray(vectors_PD[max(first - begin, 0) : end - begin])
            index.add(own_PD)
            advance(len(own_PD))
        file.parent.mkdir(exist_ok=True)
        faiss.write_index(index, str(file))
        faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)


def segment_file(number: int) -> str:
    """The file with the vectors of a segment, numbered from 0, in the folder of a set."""
    return f"{number}/{VECTORS}" if number else VECTORS


def check_passage_text(encoder: Encoder, passage: Passage) -> None:
    """Raise CorpusError if a passage has no text to encode."""
    if not encoder.passage_text(passage).strip():
        raise CorpusError(
            f"passage {passage.number} (document {passage.document_id!r}) is empty, so there is nothing to encode; "
            "leave it out of the corpus."
        )


def new_faiss_index(dimension: int, string: str) -> faiss.Index:
    """An empty FAISS index for inner products of vectors of `dimension`, made by `index_factory`.

    Raises UsageError if FAISS does not know the string or cannot use it for that dimension, or if the index would be
    unusable: it compares by distance, does not take vectors in order or in parts, or would crash the process.
    """
    for neighbours in re.findall(r"(?:HNSW|NSG)(\d+)", string):
        if not _MIN_NEIGHBOURS <= int(neighbours) <= _MAX_NEIGHBOURS:
            raise _no_index(string, dimension, f"neighbours must be {_MIN_NEIGHBOURS} to {_MAX_NEIGHBOURS:,}")
    try:
        index = faiss.index_factory(dimension, string, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, MemoryError) as error:
        raise _no_index(string, dimension, _reason(error)) from None
    except TypeError:  # FAISS rejects a string that is not UTF-8
        raise _no_index(string, dimension, "it is not UTF-8") from None
    for part in _parts(index):
        fault = _fault(part)
        if fault:
            raise _no_index(string, dimension, fault)
    return index


def _no_index(string: str, dimension: int, reason: str) -> UsageError:
    return UsageError(
        f"FAISS cannot make an index {string!r} for vectors of {dimension} dimensions ({reason}); "
        "see its documentation of index_factory, or use Flat."
    )


def _parts(index: faiss.Index) -> Iterator[faiss.Index]:
    """An index and the indexes inside it."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index", "refine_index", "storage"):
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            yield from _parts(inner)


def _fault(index: faiss.Index) -> str:
    """Why an index cannot store vectors or find them again; empty if it can."""
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        return f"its {type(index).__name__} compares distances, not inner products"
    if isinstance(index, faiss.IndexIDMap | faiss.IndexNSG):
        return f"its {type(index).__name__} does not take vectors in parts"
    if isinstance(index, faiss.IndexIVF) and index.nlist < 1:
        return "it has no lists"
    if isinstance(index, faiss.IndexPreTransform) and index.index.d < 1:
        return "it leaves no dimensions"
    return ""


def train_faiss(index: faiss.Index, vectors_PD: FloatArray, string: str) -> None:
    """Train an index on these vectors (float32).

    Raises UsageError if there are too few of them.
    """
    try:
        index.train(vectors_PD)
    except RuntimeError as error:
        raise UsageError(
            f"a FAISS index {string!r} cannot be trained on {len(vectors_PD):,} vectors ({_reason(error)}); use one "
            "with fewer lists or centroids, a larger training sample, or Flat."
        ) from None


def _reason(error: RuntimeError | MemoryError) -> str:
    """The last part of a FAISS message, whose first part is a place in its source."""
    return str(error).strip().splitlines()[-1].rpartition(": ")[2]


def _check_finite(vectors_PD: FloatArray, passages: Sequence[Passage]) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors_PD).all(axis=1))
    if len(bad):
        passage = passages[int(bad[0])]
        raise ModelError(
            f"the encoder gives a vector with NaN or infinity for passage {passage.number} ({passage.text[:40]!r}); "
            'its weights are damaged or overflow in this number format; try `dtype="float32"`.'
        )


def _is_whole(file: Path) -> bool:
    """Whether a file exists and is intact, as `_save` wrote it."""
    if not file.is_file():
        return False
    content = file.read_bytes()
    return content[-_CHECKSUM_BYTES:] == _checksum(file, content[:-_CHECKSUM_BYTES])


def _checksum(file: Path, content: bytes) -> bytes:
    """The checksum of a file's content and name, so that a file under another name is not valid."""
    return hashlib.sha256(file.name.encode() + content).digest()


def _save(file: Path, vectors_PD: FloatArray) -> None:
    """Write an array atomically, followed by its checksum, which numpy ignores."""
    partial = file.with_name(f"{file.stem}-{uuid.uuid4().hex}.npy.partial")  # two machines may save the same chunk
    if file.is_dir():
        raise DamagedFolderError(f"{file} is a folder, but a file belongs there; remove it and rerun the command.")
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        np.save(buffer, vectors_PD, allow_pickle=False)
        content = buffer.getvalue()
        with partial.open("wb") as stream:
            stream.write(content + _checksum(file, content))
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)


def kind_of_added(dimension: int, string: str) -> str:
    """The kind of FAISS index for the vectors of a segment that is added to an index of the kind `string`.

    It is the same kind if that compares all vectors and needs no training, and Flat otherwise: a small segment is
    searched exactly.
    """
    index = new_faiss_index(dimension, string)
    return string if index.is_trained and isinstance(index, faiss.IndexFlat | faiss.IndexScalarQuantizer) else _FLAT


def keeps_vectors(index: faiss.Index) -> bool:
    """Whether an index stores vectors without loss, or in 16 bits, so that it can be merged with others."""
    if isinstance(index, faiss.IndexScalarQuantizer):
        return index.sq.qtype in _LOSSLESS_CODES
    return isinstance(index, faiss.IndexFlat | faiss.IndexIVFFlat | faiss.IndexHNSWFlat)


def merge_vectors(
    parts: Sequence[faiss.Index], removed: Sequence[IntArray], options: VectorOptions, folder: Path
) -> None:
    """Write into `folder` one index of the vectors of some segments, except the rows of each in `removed` (rising).

    The index is of the kind in `options`, as if all vectors had been added at once; or Flat if there are too few of
    them to train on.
    """
    kept = [np.delete(np.arange(part.ntotal), gone) for part, gone in zip(parts, removed, strict=True)]
    index = _empty_index(parts, kept, options)
    for part, rows in zip(parts, kept, strict=True):
        for vectors_PD in _vectors(part, rows):
            index.add(vectors_PD)
    faiss.write_index(index, str(folder / VECTORS))


def _empty_index(parts: Sequence[faiss.Index], kept: Sequence[IntArray], options: VectorOptions) -> faiss.Index:
    """An empty index for the kept vectors of some segments, trained if its kind needs that."""
    index = new_faiss_index(parts[0].d, options.faiss)
    if index.is_trained:
        return index
    try:
        train_faiss(index, _sample(parts, kept, options), options.faiss)
    except UsageError:
        return new_faiss_index(parts[0].d, _FLAT)
    return index


def _sample(parts: Sequence[faiss.Index], kept: Sequence[IntArray], options: VectorOptions) -> FloatArray:
    """The vectors to train on, drawn as when an index is built."""
    drawn = _drawn(sum(map(len, kept)), options)
    chosen, first = [], 0
    for part, rows in zip(parts, kept, strict=True):
        mine = drawn[(drawn >= first) & (drawn < first + len(rows))] - first
        chosen += list(_vectors(part, rows[mine]))
        first += len(rows)
    return np.concatenate(chosen)


def _drawn(count: int, options: VectorOptions) -> IntArray:
    """The numbers (rising), of `count` vectors, of those to train on."""
    size = min(options.training_sample, count)
    return np.sort(np.random.default_rng(options.seed).choice(count, size, replace=False))


def _vectors(part: faiss.Index, rows: IntArray) -> Iterator[FloatArray]:
    """The vectors (float32, P x D) of some rows (rising), a chunk at a time."""
    for first in range(0, part.ntotal, CHUNK):
        last = min(first + CHUNK, part.ntotal)
        begin, end = np.searchsorted(rows, (first, last))
        if begin < end:
            yield part.reconstruct_n(first, last - first)[rows[begin:end] - first]
