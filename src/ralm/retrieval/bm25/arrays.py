"""The arrays of a BM25 index, by name, memory-mapped from a folder.

    offsets.npy        uint, terms + 1    where each term's postings begin, and where the last ones end
    passages.npy       int32, postings    passage numbers, ascending within a term
    codes.npy          uint8, postings    the row of each posting in the code table; 255 if it is among the escaped
    escaped.npy        int64              the positions of the postings with code 255, rising
    escaped_rows.npy   int32              their rows of the code table
    code_table.npy     int32, rows x 2    term frequency and passage length (as Lucene stores it); row 255 is empty
    totals.npy         int64, 2           terms in all passages, and passages with any term: for the average length
    vocabulary.npy     uint8              the terms in byte order, UTF-8, concatenated
    term_sizes.npy     uint, terms        the length of each of those in bytes
    term_ids.npy       int32, terms       the row of each of those in `offsets`

That is five bytes per posting and about 15 per term, without loss. A uint is as narrow as its largest number allows.

The code of a posting is its row in the code table, in which the commonest pairs of frequency and length come first. If
the row is greater than `ESCAPE`, the code is `ESCAPE` and the row is listed separately. Row `ESCAPE` itself has
frequency 0 and adds nothing, so a loop over postings needs no branch; the escaped postings are added afterwards.

Kernels check no bounds, so no file is trusted, whatever its checksum: heads are checked when files are mapped, small
arrays when they are opened, and the postings of a term on first use.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ralm.errors import DamagedFolderError
from ralm.retrieval.bm25.kernels import kernel

ESCAPE: Final = 255
"""The code of postings whose row is listed separately; the row of this number is empty."""
_UINTS: Final = ("|u1", "<u2", "<u4", "<u8")
_KINDS: Final = {
    "offsets": _UINTS,
    "passages": ("<i4",),
    "codes": ("|u1",),
    "escaped": ("<i8",),
    "escaped_rows": ("<i4",),
    "code_table": ("<i4",),
    "totals": ("<i8",),
    "vocabulary": ("|u1",),
    "term_sizes": _UINTS,
    "term_ids": ("<i4",),
}
ARRAY_NAMES: Final = tuple(_KINDS)
_TABLE: Final = "code_table"
MappedArrays: TypeAlias = Mapping[str, NDArray[Any]]
"""The arrays of a folder as they are in its files, by name."""


class PostingCodes(NamedTuple):
    """The codes of all postings, and the positions (rising) and rows of those whose code is `ESCAPE`."""

    codes: NDArray[np.uint8]
    escaped: NDArray[np.int64]
    escaped_rows: NDArray[np.int32]


@kernel
def row_of(codes: NDArray[np.uint8], escaped: NDArray[np.int64], escaped_rows: NDArray[np.int32], posting: int) -> int:
    """Return the row of a posting in the code table; too slow for loops over all postings of a term."""
    code = codes[posting]
    return int(code) if code != ESCAPE else _escaped_row(escaped, escaped_rows, posting)


@kernel
def _escaped_row(escaped: NDArray[np.int64], escaped_rows: NDArray[np.int32], posting: int) -> int:
    return int(escaped_rows[np.searchsorted(escaped, posting)])


@kernel
def _rises_within(numbers: NDArray[np.int32], count: int) -> bool:
    """Return whether numbers are strictly rising, at least 0 and below `count`."""
    if len(numbers) == 0:
        return True
    return bool(np.sum(numbers[1:] <= numbers[:-1]) == 0 and numbers[0] >= 0 and numbers[-1] < count)


@kernel
def _has_valid_codes(codes: NDArray[np.uint8], escaped: NDArray[np.int64], begin: int, end: int, rows: int) -> bool:
    """Return whether codes are rows of a table or `ESCAPE` and listed as escaped; the list must be checked."""
    part = codes[begin:end]
    first, last = np.searchsorted(escaped, begin), np.searchsorted(escaped, end)
    if np.sum(part == ESCAPE) != last - first or (rows < ESCAPE and np.any((part >= rows) & (part != ESCAPE))):
        return False
    return bool(np.all(codes[escaped[first:last]] == ESCAPE))


@kernel
def _first_invalid(
    terms: NDArray[np.int64],
    offsets: NDArray[np.int64],
    passages: NDArray[np.int32],
    codes: NDArray[np.uint8],
    escaped: NDArray[np.int64],
    count: int,
    rows: int,
) -> tuple[int, bool]:
    """Return the place of the first term with invalid postings, or the number of terms, and if only codes are."""
    for place in range(len(terms)):
        begin, end = offsets[terms[place]], offsets[terms[place] + 1]
        if not _rises_within(passages[begin:end], count):
            return place, False
        if not _has_valid_codes(codes, escaped, begin, end, rows):
            return place, True
    return len(terms), True


@dataclass(frozen=True, eq=False)
class Arrays:
    """The arrays of the module's docstring, `offsets` and `term_ends` in memory; call `check_terms` before a kernel."""

    folder: Path
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
        """Return the codes in the form that kernels take."""
        return PostingCodes(self.codes, self.escaped, self.escaped_rows)

    @cached_property
    def _checked_V(self) -> NDArray[np.bool_]:
        """Return which terms have been checked; threads may write it without a lock, as all write the same value."""
        return np.zeros(len(self.offsets) - 1, np.bool_)

    def check_terms(self, terms: NDArray[np.int64], passages: int) -> None:
        """Check the postings of terms, each once, in an index of this many passages; raises DamagedFolderError."""
        new = terms[~self._checked_V[terms]]
        if len(new) == 0:
            return
        place, passages_valid = _first_invalid(
            new, self.offsets, self.passages, self.codes, self.escaped, passages, len(self.code_table)
        )
        if place < len(new):
            name, what = ("codes.npy", "codes") if passages_valid else ("passages.npy", "numbers")
            _damaged(self.folder, f"{name} has invalid {what} among the postings of term {new[place]}")
        self._checked_V[new] = True

    def check_totals(self, passages: int) -> None:
        """Check the numbers that BM25's formula divides by; raises DamagedFolderError."""
        tokens, with_terms = self.totals.tolist()
        max_frequency = int(np.diff(self.offsets).max(initial=0))
        if not max_frequency <= with_terms <= passages or not with_terms <= tokens:
            _damaged(self.folder, f"totals.npy says {tokens:,} terms in {with_terms:,} of {passages:,} passages")

    def check(self, passages: int) -> None:
        """Check every posting and the numbers of terms; raises DamagedFolderError."""
        self.check_totals(passages)
        terms = len(self.term_ids)
        self.check_terms(np.arange(terms), passages)
        if len(np.unique(self.term_ids)) < terms:
            _damaged(self.folder, "term_ids.npy has a duplicate number")

    def term(self, term: str) -> int:
        """Return the row of `offsets` of a term; -1 if no passage has it."""
        content = term.encode("utf-8", "surrogatepass")
        place = bisect_left(range(len(self.term_ends)), content, key=self._term_bytes)
        there = place < len(self.term_ends) and self._term_bytes(place) == content
        return int(self.term_ids[place]) if there else -1

    def _term_bytes(self, position: int) -> bytes:
        begin = int(self.term_ends[position - 1]) if position else 0
        return self.vocabulary[begin : int(self.term_ends[position])].tobytes()


def open_arrays(folder: Path) -> Arrays:
    """Map the arrays of a folder and check the small ones; raises DamagedFolderError."""
    return check_arrays(folder, map_arrays(folder))


def map_arrays(folder: Path) -> MappedArrays:
    """Map the arrays of a folder, also if files are replaced later; DamagedFolderError if one is missing or invalid."""
    return {name: _map(folder / f"{name}.npy", kinds) for name, kinds in _KINDS.items()}


def check_arrays(folder: Path, mapped: MappedArrays) -> Arrays:
    """Return the arrays of a folder; DamagedFolderError if the small ones are invalid or do not fit together."""
    arrays = dict(mapped)
    for name, wrong in _errors(arrays):
        _damaged(folder, f"{name}.npy {wrong}")
    arrays["offsets"] = arrays["offsets"].astype(np.int64)
    arrays["term_ends"] = np.cumsum(arrays.pop("term_sizes"), dtype=np.int64)
    return Arrays(folder=folder, **arrays)


def narrow(numbers: NDArray[np.int64]) -> NDArray[np.unsignedinteger[Any]]:
    """Return the same numbers, none negative, in the narrowest uint that holds the largest."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _errors(arrays: MappedArrays) -> Iterator[tuple[str, str]]:
    """Yield the name of an array that is invalid, and how; each check relies on those before."""
    offsets, postings = arrays["offsets"], len(arrays["passages"])
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != postings or (offsets[1:] < offsets[:-1]).any():
        yield "offsets", f"does not divide the {postings:,} postings among the terms"
    if len(offsets) - 1 != len(arrays["term_ids"]):
        yield "offsets", "has a different number of terms than term_ids.npy"
    if len(arrays["codes"]) != postings:
        yield "codes", f"has {len(arrays['codes']):,} codes for {postings:,} postings"
    escaped = arrays["escaped"]
    if len(escaped) and not (escaped[0] >= 0 and escaped[-1] < postings and (escaped[1:] > escaped[:-1]).all()):
        yield "escaped", "has positions that do not rise or are out of range"
    table, rows = arrays["code_table"], arrays["escaped_rows"]
    if table.shape[1] != 2 or (table < 0).any():
        yield "code_table", "is not a table of frequencies and lengths"
    if len(rows) != len(escaped):
        yield "escaped_rows", "has a different number of rows than escaped.npy"
    if len(rows) and not (rows.min() > ESCAPE and rows.max() < len(table)):
        yield "escaped_rows", "has rows that are not in the table of codes"
    if len(arrays["totals"]) != 2:
        yield "totals", "does not have two numbers"
    yield from _vocabulary_errors(arrays)


def _vocabulary_errors(arrays: MappedArrays) -> Iterator[tuple[str, str]]:
    sizes, ids, size = arrays["term_sizes"], arrays["term_ids"], len(arrays["vocabulary"])
    if len(sizes) != len(ids):
        yield "term_sizes", "has a different number of terms than term_ids.npy"
    if sizes.max(initial=0) > size or int(sizes.sum(dtype=np.uint64)) != size:
        yield "term_sizes", f"does not divide the {size:,} bytes of vocabulary.npy"
    if len(ids) and not (ids.min() >= 0 and ids.max() < len(ids)):
        yield "term_ids", "has numbers that no term has"


def _map(file: Path, kinds: tuple[str, ...]) -> NDArray[Any]:
    """Map an array of one of these dtypes."""
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(file, mode="r")
    except (FileNotFoundError, IsADirectoryError):
        _damaged(file.parent, f"{file.name} is missing")
    except Exception as error:  # noqa: BLE001  # a damaged head fails in ways that cannot be listed
        _damaged(file.parent, f"{file.name} cannot be read ({error})")
    if array.dtype.str not in kinds or array.ndim != 1 + (file.stem == _TABLE) or not array.flags.c_contiguous:
        _damaged(file.parent, f"{file.name} has an invalid head")
    return np.asarray(array)


def _damaged(folder: Path, how: str) -> NoReturn:
    raise DamagedFolderError(f"{folder} is damaged: {how}; build the index again or restore it from a copy.")
