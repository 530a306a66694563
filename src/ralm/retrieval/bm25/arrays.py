"""The arrays of a BM25 index, by name, mapped from a folder.

    offsets.npy      int64, terms + 1     where each term's postings begin
    passages.npy     int32, postings      passage numbers, ascending within a term
    codes.npy        uint8 or uint16      for each posting a row of the code table
    code_table.npy   int32, codes x 2     term frequency and passage length (as Lucene stores it), by rising impact
    totals.npy       int64, 2             terms in all passages, and passages that have any: what averages divide
    vocabulary.npy   uint8                the terms in byte order, UTF-8, end to end
    term_ends.npy    int64, terms         where each of those ends
    term_ids.npy     int32, terms         the row of `offsets` that is its

Five bytes a posting where there are at most 256 distinct pairs of frequency and length, and nothing is lost.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

NAMES: Final = ("offsets", "passages", "codes", "code_table", "totals", "vocabulary", "term_ends", "term_ids")


@dataclass(frozen=True, eq=False)
class Arrays:
    """The arrays, memory-mapped; see the page's legend."""

    offsets: NDArray[np.int64]
    passages: NDArray[np.int32]
    codes: NDArray[np.unsignedinteger[Any]]
    code_table: NDArray[np.int32]
    totals: NDArray[np.int64]
    vocabulary: NDArray[np.uint8]
    term_ends: NDArray[np.int64]
    term_ids: NDArray[np.int32]

    @cached_property
    def _found(self) -> dict[str, int]:
        return {}

    def term(self, term: str) -> int:
        """The row of `offsets` of a term, or -1 where no passage has it."""
        row = self._found.get(term)
        if row is None:
            row = self._found[term] = self._look_up(term.encode("utf-8", "surrogatepass"))
        return row

    def _look_up(self, term: bytes) -> int:
        low, high = 0, len(self.term_ends)
        while low < high:
            middle = (low + high) // 2
            if self._spelt(middle) < term:
                low = middle + 1
            else:
                high = middle
        return int(self.term_ids[low]) if low < len(self.term_ends) and self._spelt(low) == term else -1

    def _spelt(self, position: int) -> bytes:
        begin = int(self.term_ends[position - 1]) if position else 0
        return self.vocabulary[begin : int(self.term_ends[position])].tobytes()


def open_arrays(folder: Path) -> Arrays:
    """Map the arrays of a folder."""
    return Arrays(**{name: _mapped(folder / f"{name}.npy") for name in NAMES})


def _mapped(file: Path) -> NDArray[Any]:
    """An array, mapped; an empty one, which cannot be mapped, read."""
    array = np.load(file, mmap_mode=None if file.stat().st_size <= 128 else "r", allow_pickle=False)
    return np.asarray(array)
