"""The code of a posting: a byte or two for the pair of its term frequency and its passage's length.

An index has few such pairs. They are numbered by rising impact, and a table has the pair of each number.
"""

from dataclasses import dataclass
from typing import Any, Final

import numba as nb
import numpy as np
from numpy.typing import DTypeLike, NDArray

from ralm.errors import CorpusError
from ralm.retrieval.bm25.formula import BM25Options, impact, stored_lengths

_USUAL_FREQUENCIES: Final = 256
_MOST_CODES: Final = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """The rows of the code table, and the row of each pair of frequency and length byte (`frequency << 8 | byte`)."""

    table: NDArray[np.int32]
    usual: NDArray[np.uint16]
    rare_pairs: NDArray[np.int64]
    rare: NDArray[np.uint16]

    @property
    def dtype(self) -> DTypeLike:
        """The narrowest type that numbers the rows."""
        return np.uint8 if len(self.table) <= 256 else np.uint16

    def of(
        self, passages: NDArray[np.int32], frequencies: NDArray[np.int32], lengths: NDArray[np.uint8]
    ) -> NDArray[np.unsignedinteger[Any]]:
        """The code of each posting; `lengths` by passage."""
        found = np.empty(len(passages), np.uint16)
        _encode(passages, frequencies, lengths, self.usual, self.rare_pairs, self.rare, found)
        return found.astype(self.dtype, copy=False)


class Kinds:
    """The distinct pairs of term frequency and length byte seen so far: a table, and a set for huge frequencies."""

    def __init__(self) -> None:
        self._usual = np.zeros(_USUAL_FREQUENCIES << 8, np.bool_)
        self._rare: set[int] = set()

    def add(self, rows: NDArray[np.int32], frequencies: NDArray[np.int32], lengths: NDArray[np.uint8]) -> None:
        """Note the pairs of postings; `lengths` by row."""
        _mark(rows, frequencies, lengths, self._usual)
        huge = frequencies >= _USUAL_FREQUENCIES
        if huge.any():
            self._rare.update((frequencies[huge].astype(np.int64) << 8 | lengths[rows[huge]]).tolist())

    def codes(self, average_length: float, options: BM25Options) -> Codes:
        """Number the pairs by rising impact.

        Raises CorpusError where they are more than two bytes can number.
        """
        rare = np.array(sorted(self._rare), np.int64)
        pairs = np.concatenate([np.flatnonzero(self._usual), rare])
        if len(pairs) > _MOST_CODES:
            raise CorpusError(
                f"the corpus has {len(pairs):,} distinct pairs of term frequency and passage length, more than the "
                f"{_MOST_CODES:,} that an index can hold; split it into shorter passages."
            )
        frequency, length = pairs >> 8, stored_lengths((pairs & 255).astype(np.uint8))
        order = np.lexsort((length, frequency, impact(frequency, length, average_length, options)))
        rows = np.empty(len(pairs), np.uint16)
        rows[order] = np.arange(len(pairs))
        usual = np.zeros(len(self._usual), np.uint16)
        usual[pairs[: len(pairs) - len(rare)]] = rows[: len(pairs) - len(rare)]
        table = np.stack([frequency, length], axis=1)[order].astype(np.int32)
        return Codes(table, usual, rare, rows[len(pairs) - len(rare) :])


@nb.njit(cache=True, nogil=True)
def _mark(rows: NDArray[Any], frequencies: NDArray[Any], lengths: NDArray[Any], seen: NDArray[Any]) -> None:
    """Mark the pairs of frequency and length byte that fit in the table."""
    for i in range(len(rows)):
        pair = np.int64(frequencies[i]) << 8 | lengths[rows[i]]
        if pair < len(seen):
            seen[pair] = True


@nb.njit(cache=True, nogil=True)
def _encode(
    passages: NDArray[Any],
    frequencies: NDArray[Any],
    lengths: NDArray[Any],
    usual: NDArray[Any],
    rare_pairs: NDArray[Any],
    rare: NDArray[Any],
    codes: NDArray[Any],
) -> None:
    """The code of each posting."""
    for i in range(len(passages)):
        pair = np.int64(frequencies[i]) << 8 | lengths[passages[i]]
        codes[i] = usual[pair] if pair < len(usual) else rare[np.searchsorted(rare_pairs, pair)]
