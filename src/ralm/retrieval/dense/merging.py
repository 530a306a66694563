"""Vectors of passages that are added to an index, and the vectors of several segments as one; encodes nothing."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import faiss
import numpy as np

from ralm.errors import UsageError
from ralm.records import FloatArray, IntArray
from ralm.retrieval.dense.build import CHUNK, new_faiss_index, train
from ralm.retrieval.dense.options import VECTORS, VectorOptions

FLAT: Final = "Flat"
_EXACT_CODES: Final = (faiss.ScalarQuantizer.QT_fp16, faiss.ScalarQuantizer.QT_bf16)


def kind_of_added(dimension: int, string: str) -> str:
    """The kind of FAISS index for the vectors of a segment that is added to an index of the kind `string`.

    It is the same kind if that compares all vectors and needs no training, and Flat otherwise: a small segment is
    searched exactly.
    """
    index = new_faiss_index(dimension, string)
    return string if index.is_trained and isinstance(index, faiss.IndexFlat | faiss.IndexScalarQuantizer) else FLAT


def keeps_vectors(index: faiss.Index) -> bool:
    """Whether the vectors can be read back from an index as they were added, so that it can be merged with others."""
    if isinstance(index, faiss.IndexScalarQuantizer):
        return index.sq.qtype in _EXACT_CODES
    return isinstance(index, faiss.IndexFlat | faiss.IndexIVFFlat | faiss.IndexHNSWFlat)


def merge_vectors(
    parts: Sequence[faiss.Index], removed: Sequence[IntArray], options: VectorOptions, folder: Path
) -> None:
    """Write into `folder` one index of the vectors of some segments, except the rows of each in `removed` (rising).

    It is made like `options` say, as if all vectors had been added at once; but Flat if there are too few of them to
    train on, so that all are compared.
    """
    kept = [np.delete(np.arange(part.ntotal), gone) for part, gone in zip(parts, removed, strict=True)]
    index = _empty_index(parts, kept, options)
    for part, rows in zip(parts, kept, strict=True):
        for vectors_PD in _vectors(part, rows):
            index.add(vectors_PD)
    faiss.write_index(index, str(folder / VECTORS))


def _empty_index(parts: Sequence[faiss.Index], kept: Sequence[IntArray], options: VectorOptions) -> faiss.Index:
    """An index for the vectors that are kept of some segments, trained if its kind needs that."""
    index = new_faiss_index(parts[0].d, options.faiss)
    if index.is_trained:
        return index
    try:
        train(index, _sample(parts, kept, options), options.faiss)
    except UsageError:
        return new_faiss_index(parts[0].d, FLAT)
    return index


def _sample(parts: Sequence[faiss.Index], kept: Sequence[IntArray], options: VectorOptions) -> FloatArray:
    """The vectors to train on, drawn as when an index is built."""
    count = sum(map(len, kept))
    drawn = np.random.default_rng(options.seed).choice(count, min(options.training_sample, count), replace=False)
    drawn.sort()
    chosen, first = [], 0
    for part, rows in zip(parts, kept, strict=True):
        mine = drawn[(drawn >= first) & (drawn < first + len(rows))] - first
        chosen += list(_vectors(part, rows[mine]))
        first += len(rows)
    return np.concatenate(chosen)


def _vectors(part: faiss.Index, rows: IntArray) -> Iterator[FloatArray]:
    """The vectors (float32, P x D) of some rows (rising), a chunk at a time."""
    for first in range(0, part.ntotal, CHUNK):
        last = min(first + CHUNK, part.ntotal)
        begin, end = np.searchsorted(rows, (first, last))
        if begin < end:
            yield part.reconstruct_n(first, last - first)[rows[begin:end] - first]
