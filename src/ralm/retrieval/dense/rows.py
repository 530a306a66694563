"""The vectors of passages by number, read from the files of an index; encodes and searches nothing."""

from collections.abc import Sequence
from itertools import accumulate

import faiss
import numpy as np

from ralm.corpus.numbering import Numbering
from ralm.errors import UsageError
from ralm.records import NO_PASSAGE, FloatArray, IntArray
from ralm.retrieval.dense.merging import keeps_vectors


class PassageVectors:
    """The vectors of the passages of an index: one FAISS index for each of its segments, in the order of the passages.

    Vectors of the kinds `Flat` and `SQfp16` stay on disk, and are read as they are asked for. `removed`: the rows
    (int64, rising), counted through all segments, whose passages were removed. `name` is what messages call the
    vectors. Raises UsageError if the kind of index rounds its vectors more than to 16 bits, because then they cannot be
    read back.
    """

    def __init__(self, parts: Sequence[faiss.Index], name: str, removed: IntArray | Sequence[int] = ()) -> None:
        lossy = next((part for part in parts if not keeps_vectors(part)), None)
        if lossy is not None:
            raise UsageError(
                f"{name} are in a FAISS {type(lossy).__name__}, which keeps only approximations of them; encode the "
                'passages again with `faiss="Flat"` (`ralm encode`).'
            )
        self.dimension: int = parts[0].d
        """The length of a vector."""
        self._parts = [_readable(part) for part in parts]
        self._ends = np.array([*accumulate(part.ntotal for part in parts)], dtype=np.int64)
        self._numbering = Numbering(int(self._ends[-1]), removed)

    def __len__(self) -> int:
        return len(self._numbering)

    def of(self, numbers: IntArray) -> FloatArray:
        """The vectors (float32, with one more axis than `numbers`) of the passages with these numbers (int64, any
        shape); zeros for `NO_PASSAGE`."""
        distinct, places = np.unique(numbers, return_inverse=True)
        vectors_PD = np.zeros((len(distinct), self.dimension), dtype=np.float32)
        there = distinct != NO_PASSAGE
        vectors_PD[there] = self._read(self._numbering.rows(distinct[there]))
        return vectors_PD[places.reshape(numbers.shape)]

    def _read(self, rows: IntArray) -> FloatArray:
        """The vectors of some rows (rising)."""
        of_parts = np.split(rows, np.searchsorted(rows, self._ends[:-1]))
        firsts = [0, *self._ends[:-1].tolist()]
        read = [
            part.reconstruct_batch(own - first)
            for part, own, first in zip(self._parts, of_parts, firsts, strict=True)
            if len(own)
        ]
        return np.concatenate(read) if read else np.zeros((0, self.dimension), dtype=np.float32)


def _readable(index: faiss.Index) -> faiss.Index:
    """An index that finds a vector by its place; those with lists need a map of the places."""
    if isinstance(index, faiss.IndexIVF):
        index.make_direct_map()
    return index
