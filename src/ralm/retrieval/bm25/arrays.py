"""The arrays of a BM25 index, by name, mapped from a folder.

    offsets.npy        uint, terms + 1    where each term's postings begin, and where the last end
    passages.npy       int32, postings    passage numbers, ascending within a term
    codes.npy          uint8, postings    the row of the code table of each posting, or 255: it is among the escaped
    escaped.npy        int64              the places of the postings with code 255, rising
    escaped_rows.npy   int32              their rows of the code table
    code_table.npy     int32, rows x 2    term frequency and passage length (as Lucene stores it); 255 is empty
    totals.npy         int64, 2           terms in all passages, and passages that have any: what averages divide
    vocabulary.npy     uint8              the terms in byte order, UTF-8, end to end
    term_sizes.npy     uint, terms        how many bytes each of those has
    term_ids.npy       int32, terms       the row of `offsets` that is its

Five bytes a posting and some 15 a term, and nothing is lost. A uint is as narrow as the largest number allows.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.codes import PostingCodes

NAMES: Final = (
    "offsets",
    "passages",
    "codes",
    "escaped",
    "escaped_rows",
    "code_table",
    "totals",
    "vocabulary",
    "term_sizes",
    "term_ids",
)


@dataclass(frozen=True, eq=False)
class Arrays:
    """The arrays, memory-mapped; see the page's legend. Offsets, and the ends of the terms, are read and widened."""

    offsets: NDArray[np.int64]
    passages: NDArray[np.int32]
    codes: NDArray[np.uint8]
    escaped: NDArray[np.int64]
    escaped_rows: NDArray[np.int32]
    code_table: NDArray[np.int32]
    totals: NDArray[np.int64]
    vocabulary: NDArray[np.uint8]
    term_ends: NDArray[np.int64]
    term_ids: NDArray[np.int32]

    @property
    def posting_codes(self) -> PostingCodes:
        """The codes as kernels take them."""
        return PostingCodes(self.codes, self.escaped, self.escaped_rows)

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
    arrays = {name: _mapped(folder / f"{name}.npy") for name in NAMES}
    arrays["offsets"] = arrays["offsets"].astype(np.int64)
    arrays["term_ends"] = np.cumsum(arrays.pop("term_sizes"), dtype=np.int64)
    return Arrays(**arrays)


def narrow(numbers: NDArray[np.int64]) -> NDArray[np.unsignedinteger[Any]]:
    """The same numbers, none below 0, in as few bytes as hold the largest."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _mapped(file: Path) -> NDArray[Any]:
    """An array, mapped; an empty one, which cannot be mapped, read."""
    array = np.load(file, mmap_mode=None if file.stat().st_size <= 128 else "r", allow_pickle=False)
    return np.asarray(array)
