"""The kinds of FAISS indexes: how one is made and trained, and which of them keep vectors without loss."""

import re
from collections.abc import Iterator
from typing import Final

import faiss

from ralm.errors import UsageError
from ralm.records import FloatArray

_MIN_NEIGHBOURS: Final = 2
"""With fewer neighbours in a graph, FAISS crashes the process."""
_MAX_NEIGHBOURS: Final = 2048
"""A graph with more would take more memory than the vectors."""
_LOSSLESS_CODES: Final = (faiss.ScalarQuantizer.QT_fp16, faiss.ScalarQuantizer.QT_bf16)


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
        raise _no_index(string, dimension, short_reason(error)) from None
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
