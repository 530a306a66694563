"""Finds with FAISS the passages whose vectors have the largest inner products with that of a query.

Letters of shapes: Q queries, K hits per query, D dimensions.
"""

import struct
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, Final, Self

import faiss
import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.errors import DamagedFolderError, FolderError, ModelError, UsageError
from ralm.protocols import Encoder
from ralm.records import NO_PASSAGE, BoolArray, FloatArray, Hits, IntArray
from ralm.retrieval.allowed import mask_config
from ralm.retrieval.dense.options import DenseSearchOptions
from ralm.retrieval.layout import VectorSet
from ralm.storage.manifest import whole_checksum
from ralm.terminal import track
from ralm.validation import check_search

_QUERIES_AT_A_TIME: Final = 1024
_HITS_AT_A_TIME: Final = 1 << 22
_NPROBE: Final = 16
_EF_SEARCH: Final = 128
_HEAD: Final = struct.Struct("<4siqqq?i")
"""The head of every FAISS index: kind, dimensions, vectors, two unused numbers, trained, metric."""
_COUNT: Final = struct.Struct("<Q")
_FLAT: Final = b"IxFI"
_ADVICE: Final = "use that one, or pass `any_encoder=True` if you know that their vectors are compatible."
_SKIPPING: Final = (
    # Private: FAISS' classes and the head of its files; round trips.
    faiss.IndexFlat,
    faiss.IndexScalarQuantizer,
    faiss.IndexHNSWFlat,
    faiss.IndexHNSWSQ,
    faiss.IndexIVFFlat,
    faiss.IndexIVFScalarQuantizer,
    faiss.IndexIVFPQ,
)
"""The kinds of index that can skip vectors."""
_FEW: Final = 0.1
"""The graph of HNSW is not used if at most this share of its vectors may be found."""
_MORE: Final = 4
_MANY: Final = 0.4
"""So many times k hits are searched if at least this share of the vectors may be found."""
_COMPARED_BYTES: Final = 4 << 30
"""An index that is not flat is compared with its checksum before use, up to this size, which takes some seconds at
most."""


class Dense:
    """A retriever over the passage vectors of an index, whose rows are the numbers of the passages."""

    def __init__(
        self,
        vectors: faiss.Index,
        encoder: Encoder,
        options: DenseSearchOptions | None = None,
        *,
        fingerprint: str = "",
    ) -> None:
        if encoder.dimension != vectors.d:
            raise FolderError(
                f"the index has vectors of {vectors.d} dimensions and this encoder gives {encoder.dimension}; use "
                "the encoder that the index was built with, or build it again with this one."
            )
        self._vectors = vectors
        self._encoder = encoder
        self._fingerprint = fingerprint
        self._effort = _set_effort(vectors, options or DenseSearchOptions())
        self._mask_N: BoolArray | None = None
        self._excluded: IntArray = np.zeros(0, np.int64)
        self._selector: Any = None

    def only(self, mask_N: BoolArray) -> Self:
        """Return the same retriever with only the passages of a mask.

        A flat or IVF index is searched with the others masked, so it finds the best of those that it compares. Other
        indexes are searched for that many more hits. If only a tenth of the vectors of HNSW may be found, or an
        approximate index finds fewer than k of them, these are compared one by one.
        """
        other = copy(self)
        other._mask_N = mask_N if self._mask_N is None else self._mask_N & mask_N
        other._excluded = np.flatnonzero(~other._mask_N)
        if len(other._excluded):
            other._selector = faiss.IDSelectorBitmap(np.packbits(other._mask_N, bitorder="little"))
        return other

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return everything that decides the hits: the index, the query encoder, and how much is searched."""
        return {
            "retriever": "dense",
            "fingerprint": self._fingerprint,
            "query_encoder": self._encoder.query_config,
            **self._effort,
            **mask_config(self._mask_N),
        }

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """Return the k best passages for each query, none for a blank one; equal scores are ordered by number."""
        check_search(queries, k)
        k = min(k, max(self._vectors.ntotal, 1))
        rows = np.array([row for row, query in enumerate(queries) if query.strip()], dtype=np.int64)
        step = max(1, min(_QUERIES_AT_A_TIME, _HITS_AT_A_TIME // self._search_size(k)))
        hits = Hits.none(len(queries), k)
        chunks = np.split(rows, range(step, len(rows), step))
        for chunk in track(chunks, "Retrieving", len(chunks)) if len(chunks) > 1 else chunks:
            if len(chunk):
                vectors_QD = self._encoder.encode_queries([queries[row] for row in chunk])
                hits.numbers_QK[chunk], hits.scores_QK[chunk] = self._search(vectors_QD, k)
        return hits

    def _search_size(self, k: int) -> int:
        """Return the number of hits that FAISS must return for the k best of a query."""
        skips = self._selector is None or isinstance(self._vectors, _SKIPPING)
        return _MORE * k if skips else k + len(self._excluded)

    def _search(self, vectors_QD: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
        """Return the numbers and scores of the k best that may be found."""
        if not np.isfinite(vectors_QD).all():
            raise ModelError(
                "the encoder gives a vector with NaN or infinity for a query; its weights are damaged or overflow in "
                "the number format that the index was built with."
            )
        index, allowed = self._vectors, self._vectors.ntotal - len(self._excluded)
        if self._selector is None or not isinstance(index, _SKIPPING):
            return self._of_all(vectors_QD, k + len(self._excluded), k)
        if isinstance(index, faiss.IndexIVF):
            parameters = faiss.SearchParametersIVF(sel=self._selector, nprobe=index.nprobe)
            best = _ordered(index.search(vectors_QD, k, params=parameters), k)
        elif isinstance(index, faiss.IndexHNSW) and allowed > _FEW * index.ntotal:
            effort = round(index.hnsw.efSearch * index.ntotal / allowed)
            parameters = faiss.SearchParametersHNSW(sel=self._selector, efSearch=effort)
            best = _ordered(index.search(vectors_QD, k, params=parameters), k)
        elif not isinstance(index, faiss.IndexHNSW) and allowed >= _MANY * index.ntotal:  # half as slow as skipping
            best = self._of_all(vectors_QD, min(_MORE * k, index.ntotal), k)
        else:
            return self._compared(vectors_QD, k)
        numbers_QK, scores_QK = best
        short = np.count_nonzero(numbers_QK != NO_PASSAGE, axis=1) < min(k, allowed)
        if short.any():
            numbers_QK[short], scores_QK[short] = self._compared(vectors_QD[short], k)
        return numbers_QK, scores_QK

    def _of_all(self, vectors_QD: FloatArray, hits: int, k: int) -> tuple[IntArray, FloatArray]:
        """Return the k best that may be found among so many hits of all vectors."""
        scores_QM, numbers_QM = self._vectors.search(vectors_QD, hits)
        numbers_QM[np.isin(numbers_QM, self._excluded)] = NO_PASSAGE
        return _ordered((scores_QM, numbers_QM), k)

    def _compared(self, vectors_QD: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
        """Return the k best, by comparing all vectors that may be found."""
        index = self._vectors
        parameters = faiss.SearchParameters(sel=self._selector)
        if isinstance(index, faiss.IndexHNSW):
            index = faiss.downcast_index(index.storage)
        elif isinstance(index, faiss.IndexIVF):
            parameters = faiss.SearchParametersIVF(sel=self._selector, nprobe=index.nlist)
        return _ordered(index.search(vectors_QD, k, params=parameters), k)


def _ordered(answer: tuple[FloatArray, IntArray], k: int) -> tuple[IntArray, FloatArray]:
    """Return the k best of the scores and numbers of FAISS; equal scores by number, `NO_PASSAGE` last."""
    scores_QM, numbers_QM = answer
    missing = numbers_QM == NO_PASSAGE
    order = np.lexsort((numbers_QM, np.where(missing, np.inf, -scores_QM)), axis=1)[:, :k]
    numbers_QK = np.take_along_axis(numbers_QM, order, axis=1)
    scores_QK = np.take_along_axis(np.where(missing, 0, scores_QM), order, axis=1)
    return numbers_QK, scores_QK


def check_encoder(index: Path, encoder: Encoder, vectors: VectorSet, *, advice: str = _ADVICE) -> None:
    """Raise FolderError if an encoder of queries reads otherwise than, or was not trained for, a set of vectors."""
    trained_for = getattr(encoder, "trained_for", None)
    if encoder.query_fingerprint != vectors.query_fingerprint:
        if trained_for is None:
            how = f"its weights are {vectors.query_fingerprint}, these {encoder.query_fingerprint}"
            raise FolderError(f"the index at {index} was built with another encoder than this one ({how}); {advice}")
        if trained_for != vectors.passage_fingerprint:
            how = f"{trained_for}) than those of the index at {index} ({vectors.passage_fingerprint}"
            raise FolderError(f"this query encoder was trained for passages encoded by other weights ({how}); {advice}")
    reading = encoder.query_config.get("reading")
    for name, value in vectors.query_reading.items():
        here = reading.get(name, value) if isinstance(reading, dict) else value
        if here != value:
            raise FolderError(
                f"the index at {index} was built with another encoder than this one (the same weights, but "
                f"{name.replace('_', ' ')} is {here!r} here and was {value!r} there); {advice}"
            )


def open_vectors(file: Path, name: Path, passages: int | None = None, sha256: str | None = None) -> faiss.Index:
    """Open a FAISS index, memory-mapped if its kind allows it; `name` is its name in messages.

    FAISS trusts what it reads, and a damaged file could crash the process. So a flat index must have the size that its
    head states, and other kinds are compared with their checksum, up to 4 GiB. Raises DamagedFolderError if the file is
    not such an index, or its number of vectors is not `passages`.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(_HEAD.size + _COUNT.size)
    except OSError as error:
        raise DamagedFolderError(f"{name} cannot be read ({error.strerror}); build the index again.") from None
    if len(head) < _HEAD.size + _COUNT.size:
        raise DamagedFolderError(f"{name} is not a FAISS index: it has {len(head)} bytes; build the index again.")
    kind, dimension, count, _, _, trained, metric = _HEAD.unpack_from(head)
    flat_bytes = _HEAD.size + _COUNT.size + 4 * count * dimension
    if kind == _FLAT:
        stated = (metric, *_COUNT.unpack_from(head, _HEAD.size))
        sound = stated == (faiss.METRIC_INNER_PRODUCT, count * dimension) and size == flat_bytes
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
        raise DamagedFolderError(f"{name} is not a FAISS index ({error}); build the index again.") from None


def _set_effort(index: faiss.Index, options: DenseSearchOptions) -> dict[str, JsonValue]:
    """Set the search parameters of an index; return their values."""
    effort: dict[str, JsonValue] = {}
    for name, chosen, default, kind in (
        ("nprobe", options.nprobe, _NPROBE, "IVF"),
        ("efSearch", options.ef_search, _EF_SEARCH, "HNSW"),
    ):
        if _is_of_kind(index, kind):
            value = min(default if chosen is None else chosen, max(index.ntotal, default))  # higher values add no work
            faiss.ParameterSpace().set_index_parameter(index, name, value)
            effort[name] = value
        elif chosen is not None:
            raise UsageError(
                f"{name} {chosen} is for an {kind} index, but this is a FAISS {type(index).__name__}; omit it."
            )
    return effort


def _is_of_kind(index: faiss.Index, kind: str) -> bool:
    """Return whether an index, or one inside it, is an IVF or HNSW index."""
    if kind in type(index).__name__:
        return True
    inner = (getattr(index, name, None) for name in ("base_index", "index", "quantizer"))
    return any(isinstance(part, faiss.Index) and _is_of_kind(faiss.downcast_index(part), kind) for part in inner)


class PassageVectors:
    """The vectors of the passages of an index, from FAISS or, if that only approximates them, the file `raw`."""

    def __init__(self, index: faiss.Index, raw: Path | None) -> None:
        self.dimension: int = index.d
        """The length of a vector."""
        self.is_rounded = isinstance(index, faiss.IndexScalarQuantizer) and raw is None
        """Whether they are stored in 16 bits."""
        self._index = index
        self._raw = None if raw is None else open_array(raw, np.dtype(np.float32), (index.ntotal, index.d))
        if self._raw is None and isinstance(index, faiss.IndexIVF):
            index.make_direct_map()  # it finds a vector by its place

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def of(self, numbers: IntArray) -> FloatArray:
        """Return vectors (float32, with one more axis than `numbers`, int64) of passages; zeros for `NO_PASSAGE`."""
        distinct, places = np.unique(numbers, return_inverse=True)
        vectors_PD = np.zeros((len(distinct), self.dimension), dtype=np.float32)
        there = distinct != NO_PASSAGE
        vectors_PD[there] = self.read(distinct[there])
        return vectors_PD[places.reshape(numbers.shape)]

    def read(self, rows: IntArray) -> FloatArray:
        """Return the vectors (float32, P x D) of some rows."""
        if not len(rows):
            return np.zeros((0, self.dimension), np.float32)
        return self._index.reconstruct_batch(rows) if self._raw is None else np.asarray(self._raw[rows])


def open_array(file: Path, kind: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Map an array of this kind and shape; raises DamagedFolderError if the file holds no such array."""
    try:
        array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DamagedFolderError(f"{file} is damaged ({error}); build the index again.") from None
    if array.dtype != kind or array.shape != shape:
        raise DamagedFolderError(f"{file} is damaged: it is no array {shape} of {kind}; build the index again.")
    return array
