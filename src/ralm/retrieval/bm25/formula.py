"""The BM25 of Lucene (since version 8): its formula, its options, and weights of query terms.

    score(q, d) = sum over terms t of q:  idf(t) * tf / (tf + k1 * (1 - b + b * length(d) / average length))
    idf(t)      = ln(1 + (N - df(t) + 0.5) / (df(t) + 0.5))

A term that occurs twice in the query counts twice. N and the average are over passages that have any term. Lengths are
counted in terms and rounded to one byte like Lucene's norms. Scores are summed as integers, so the sum does not depend
on its order, and equal passages score equal.
"""

import os
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray

from ralm.options import Checked, Option

_MAX_K1: Final = 1000.0
"""With a higher k1, one occurrence adds less than the resolution of a fixed-point score."""
_EXACT_LENGTHS: Final = 24
_MAX_MEGABYTES: Final = 1 << 20
_BYTES_A_TERM: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class BM25Options(Checked):
    """The constants of BM25: how slowly repeated terms stop counting (`k1`), and the penalty of long passages (`b`).

    The defaults are Anserini's, which the papers use. Raises UsageError if a value is invalid.
    """

    k1: Annotated[float, Option("BM25: how slowly repeated terms stop counting.", maximum=_MAX_K1)] = 0.9
    b: Annotated[float, Option("BM25: how strongly long passages are penalised.", maximum=1)] = 0.4


def idf(document_frequency: NDArray[np.int64], passages: int) -> NDArray[np.float64]:
    """Return the idf (float64) of terms with these document frequencies among `passages` passages."""
    return np.log1p((passages - document_frequency + 0.5) / (document_frequency + 0.5))


def impact(
    frequency: NDArray[np.int64], length: NDArray[np.int64], average_length: float, options: BM25Options
) -> NDArray[np.float64]:
    """Return the factor of the idf (float64, below 1) for term frequencies in passages of these lengths, in terms."""
    relative = length / average_length if average_length > 0 else np.zeros(len(length))
    return frequency / (frequency + options.k1 * (1 - options.b + options.b * relative))


def stored_lengths(codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the lengths that Lucene decodes from bytes: exact below 24, above that with four significant bits."""
    code = codes.astype(np.int64) - _EXACT_LENGTHS
    shift = (code >> 3) - 1
    rounded = np.where(shift < 0, code & 7, ((code & 7) | 8) << np.maximum(shift, 0))
    return np.where(code < 0, codes, _EXACT_LENGTHS + rounded).astype(np.int64)


_STORED_LENGTHS: Final = stored_lengths(np.arange(256).astype(np.uint8))
"""The length of each byte, rising."""


def length_bytes(lengths: NDArray[np.signedinteger[Any]]) -> NDArray[np.uint8]:
    """Return lengths as the bytes in which Lucene stores them: exact below 24, above that rounded down."""
    return (np.searchsorted(_STORED_LENGTHS, lengths, side="right") - 1).astype(np.uint8)


def cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions(Checked):
    """The memory of a build, in `megabytes`: for terms before they are written to disk, and for merging.

    The vocabulary needs more on top. Every full buffer becomes a file, so there is a minimum. Raises UsageError if a
    value is invalid.
    """

    megabytes: Annotated[
        float,
        Option(
            "BM25: megabytes for buffered postings; the vocabulary needs more on top.",
            minimum=1,
            maximum=_MAX_MEGABYTES,
            flag="memory",
        ),
    ] = 256

    @property
    def buffered_terms(self) -> int:
        """Return how many terms are in the buffer, and postings merged at a time."""
        return int(self.megabytes * 1e6 / _BYTES_A_TERM)
