"""The kinds of FAISS indexes: how one is made and trained, and which of them keep vectors without loss."""

import re
from typing import Final

import faiss

from ralm.errors import UsageError
from ralm.records import FloatArray

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


def new_faiss_index(dimension: int, string: str) -> faiss.Index:
    """An empty FAISS index for inner products of vectors of `dimension`, made by `index_factory`.

    Raises UsageError if the string is of no kind that compares by inner products and takes vectors in order and in
    parts, or if FAISS cannot use it for that dimension.
    """
    reason = "of its kinds, use Flat, SQ8, SQfp16, PQ64, HNSW32, or IVF4096 or OPQ64 before one, as in IVF4096,PQ64"
    if _KIND.fullmatch(string):
        try:
            return faiss.index_factory(dimension, string, faiss.METRIC_INNER_PRODUCT)
        except (RuntimeError, MemoryError) as error:
            reason = short_reason(error)
    raise UsageError(f"FAISS cannot make an index {string!r} for vectors of {dimension} dimensions ({reason}).")


def train_faiss(index: faiss.Index, vectors_PD: FloatArray, string: str) -> None:
    """Train an index on these vectors (float32).

    Raises UsageError if there are too few of them.
    """
    try:
        index.train(vectors_PD)
    except RuntimeError as error:
        raise UsageError(
            f"a FAISS index {string!r} cannot be trained on {len(vectors_PD):,} vectors ({short_reason(error)}); use "
            "one with fewer lists or centroids, a larger training sample, or Flat."
        ) from None


def keeps_vectors(index: faiss.Index) -> bool:
    """Return whether an index stores vectors without loss, or in 16 bits, so that they can be read back."""
    if isinstance(index, faiss.IndexScalarQuantizer):
        return index.sq.qtype in _LOSSLESS_CODES
    return isinstance(index, faiss.IndexFlat | faiss.IndexIVFFlat | faiss.IndexHNSWFlat)


def short_reason(error: RuntimeError | MemoryError) -> str:
    """Return the last part of a FAISS message, whose first part is a place in its source."""
    return str(error).strip().splitlines()[-1].rpartition(": ")[2]
