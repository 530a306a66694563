"""Dense search: the passages whose vectors have the largest inner products with a query's, by FAISS.

Letters of shapes: Q queries, K hits a query, D dimensions.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import faiss
import numpy as np
from pydantic import JsonValue

from ralm.errors import DamagedFolderError, ModelError, OtherEncoderError, UsageError
from ralm.folders import whole_checksum
from ralm.progress import track
from ralm.protocols import Encoder
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray
from ralm.retrieval.arguments import check_k
from ralm.retrieval.dense.options import VECTORS, DenseSearchOptions

QUERIES_AT_A_TIME: Final = 1024
_NPROBE: Final = 16
_EF_SEARCH: Final = 128
_HEAD: Final = struct.Struct("<4siqqq?i")
"""What every FAISS index begins with: kind, dimensions, vectors, two numbers that mean nothing, trained, metric."""
_COUNT: Final = struct.Struct("<Q")
_FLAT: Final = b"IxFI"
_COMPARED_BYTES: Final = 4 << 30
"""Up to here all of an index that is not flat is compared with its checksum before it is used: some seconds at most."""


class Dense:
    """A retriever over a FAISS index of passage vectors, in the order of their numbers.

    Raises OtherEncoderError where the encoder's vectors have another length than those of the index, UsageError where
    the options are not of its kind.
    """

    def __init__(self, index: faiss.Index, encoder: Encoder, options: DenseSearchOptions | None = None) -> None:
        if encoder.dimension != index.d:
            raise OtherEncoderError(
                f"the index has vectors of {index.d} dimensions and this encoder gives {encoder.dimension}; use the "
                "encoder that the index was built with, or build it again with this one."
            )
        self._index = index
        self._encoder = encoder
        self._effort = _set_effort(index, options or DenseSearchOptions())

    @property
    def config(self) -> dict[str, JsonValue]:
        """Which weights encode queries, and how much of the index is searched."""
        return {"query_fingerprint": self._encoder.query_fingerprint, **self._effort}

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """The k best passages for each query with their inner products; none for a query that is blank.

        Equal scores are ordered by passage number. Rows end in `NO_PASSAGE` where the corpus, or the part of it that an
        approximate index searched, has fewer than k. Raises UsageError where k is below 1, ModelError where a query's
        vector is none.
        """
        check_k(k)
        numbers_QK = np.full((len(queries), k), NO_PASSAGE, dtype=np.int64)
        scores_QK = np.zeros((len(queries), k), dtype=np.float32)
        rows = np.array([row for row, query in enumerate(queries) if query.strip()], dtype=np.int64)
        parts = np.split(rows, range(QUERIES_AT_A_TIME, len(rows), QUERIES_AT_A_TIME))
        for some in track(parts, "Retrieving", len(parts)) if len(parts) > 1 else parts:
            vectors_QD = self._encoder.encode_queries([queries[row] for row in some])
            numbers, scores = self._search(vectors_QD, min(k, self._index.ntotal))
            numbers_QK[some, : numbers.shape[1]], scores_QK[some, : numbers.shape[1]] = numbers, scores
        return Hits(numbers_QK=numbers_QK, scores_QK=scores_QK)

    def _search(self, vectors_QD: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
        if not np.isfinite(vectors_QD).all():
            raise ModelError(
                "the encoder gives a vector with NaN or infinity for a query; its weights are damaged, or overflow in "
                "the number format that the index was built with."
            )
        scores, numbers = self._index.search(vectors_QD, k)
        missing = numbers == NO_PASSAGE
        order = np.lexsort((numbers, np.where(missing, np.inf, -scores)), axis=1)
        numbers = np.take_along_axis(numbers, order, axis=1)
        scores = np.take_along_axis(np.where(missing, 0, scores), order, axis=1)
        return numbers, scores


def open_dense(
    folder: Path,
    encoder: Encoder,
    options: DenseSearchOptions | None = None,
    *,
    fingerprint: str | None = None,
    file: Path | None = None,
    passages: int | None = None,
    sha256: str | None = None,
) -> Dense:
    """The retriever over what `DenseBuilder` wrote; `fingerprint` is what the encoder of queries must have, if given.

    `file` names the vectors where they were opened before; `passages`, `sha256`: how many vectors there must be, and
    the checksum of the file. Raises OtherEncoderError where the encoder has another fingerprint, DamagedFolderError
    where there are no such vectors.
    """
    index = open_vectors(file or folder / VECTORS, folder / VECTORS, passages, sha256)
    dense = Dense(index, encoder, options)
    if fingerprint is not None and encoder.query_fingerprint != fingerprint:
        raise OtherEncoderError(
            f"the index at {folder.parent} was built with another encoder than this one (its weights are "
            f"{fingerprint}, these {encoder.query_fingerprint}); use that one, or say --any-encoder if you know that "
            "their vectors go together."
        )
    return dense


def open_vectors(file: Path, name: Path, passages: int | None = None, sha256: str | None = None) -> faiss.Index:
    """A FAISS index, memory-mapped where its kind allows it; `name` is what messages call it.

    FAISS believes what it reads, so a flat index must be of the size that it says, and others are compared with their
    checksum, up to 4 GiB: a damaged one could end the process. Raises DamagedFolderError where the file is none, or has
    not so many vectors as there are passages.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(_HEAD.size + _COUNT.size)
    except OSError as error:
        raise DamagedFolderError(f"{name} cannot be read ({error.strerror}); build the index again.") from None
    kind, dimension, count, _, _, trained, metric = _head(head, name)
    flat_bytes = _HEAD.size + _COUNT.size + 4 * count * dimension
    if kind == _FLAT:
        stands = (metric, *_COUNT.unpack_from(head, _HEAD.size)) == (faiss.METRIC_INNER_PRODUCT, count * dimension)
        sound = stands and size == flat_bytes
    else:
        sound = sha256 is None or size > _COMPARED_BYTES or whole_checksum(file) == sha256
    if not (sound and trained and dimension > 0 and count >= 0) or passages not in (None, count):
        raise DamagedFolderError(
            f"{name} is damaged: {count:,} vectors of {dimension:,} dimensions in {size:,} bytes, "
            f"{'altered' if passages in (None, count) else f'for {passages:,} passages'}; build the index again."
        )
    try:
        return faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
    except (RuntimeError, MemoryError) as error:
        raise DamagedFolderError(f"{name} is no FAISS index ({error}); build the index again.") from None


def _head(head: bytes, name: Path) -> tuple[bytes, int, int, int, int, bool, int]:
    if len(head) < _HEAD.size + _COUNT.size:
        raise DamagedFolderError(f"{name} is no FAISS index: it has {len(head)} bytes; build the index again.")
    kind, dimension, count, first, second, trained, metric = _HEAD.unpack_from(head)
    return kind, dimension, count, first, second, trained, metric


def _set_effort(index: faiss.Index, options: DenseSearchOptions) -> dict[str, JsonValue]:
    """Set what the index can be set to; the values that were."""
    effort: dict[str, JsonValue] = {}
    for name, asked, usual, kind in (
        ("nprobe", options.nprobe, _NPROBE, "IVF"),
        ("efSearch", options.ef_search, _EF_SEARCH, "HNSW"),
    ):
        value = usual if asked is None else asked
        try:
            faiss.ParameterSpace().set_index_parameter(index, name, value)
            effort[name] = value
        except RuntimeError:
            if asked is not None:
                raise UsageError(
                    f"{name} {asked} is for an {kind} index and this is a {type(index).__name__}; leave it out."
                ) from None
    return effort
