"""Writes the arrays of a BM25 index (`ralm.retrieval.bm25.arrays` lists them) into a folder, in bounded memory.

A run holds the postings of consecutive passages, as many as fit into the buffer, sorted by term and then by passage.
Later runs have later passages, so merging takes each term's postings from one run after the other, for a range of terms
at a time. The code table is written when all pairs of frequency and length have been counted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ralm.retrieval.bm25 import arrays, formula, kernels
from ralm.terminal import progress_bar

_USUAL_FREQUENCIES: Final = 256
_INT: Final = np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class IndexCounts:
    """How much an index holds."""

    passages: int
    terms: int
    postings: int
    tokens: int


def write_totals(folder: Path, tokens: int, with_terms: int) -> None:
    """Write the number of terms in all passages, and the number of passages with any term."""
    np.save(folder / "totals.npy", np.array([tokens, with_terms], np.int64))


def write_vocabulary(
    folder: Path, vocabulary: NDArray[np.uint8], sizes: NDArray[np.int64], ids: NDArray[np.int32]
) -> None:
    """Write the terms in byte order, as UTF-8 and one after the other, their sizes in bytes, and their ids."""
    np.save(folder / "vocabulary.npy", vocabulary)
    np.save(folder / "term_sizes.npy", arrays.narrow(sizes))
    np.save(folder / "term_ids.npy", ids)


def write_postings(
    folder: Path,
    offsets: NDArray[np.int64],
    code_table: NDArray[np.int32],
    postings: Iterable[tuple[NDArray[np.int32], NDArray[np.int32]]],
) -> None:
    """Write offsets, codes and all postings: passages and rows of the code table, in the order of the terms."""
    total = int(offsets[-1])
    np.save(folder / "offsets.npy", arrays.narrow(offsets))
    np.save(folder / "code_table.npy", code_table)
    escaped, escaped_rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    written = 0
    with (
        (folder / "passages.npy").open("wb") as passages_file,
        (folder / "codes.npy").open("wb") as codes_file,
        progress_bar("Merging postings", total) as advance,
    ):
        _begin_array(passages_file, np.int32, total)
        _begin_array(codes_file, np.uint8, total)
        for passages, rows in postings:
            passages_file.write(passages.data)
            codes_file.write(np.minimum(rows, arrays.ESCAPE).astype(np.uint8).data)
            places = np.flatnonzero(rows > arrays.ESCAPE)
            escaped.append(places + written)
            escaped_rows.append(rows[places])
            written += len(passages)
            advance(len(passages))
    np.save(folder / "escaped.npy", np.concatenate(escaped))
    np.save(folder / "escaped_rows.npy", np.concatenate(escaped_rows))


def _begin_array(stream: BinaryIO, dtype: DTypeLike, length: int) -> None:
    """Write the head of an .npy file; the numbers are written after it, piece by piece."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": (length,)})


@dataclass(frozen=True, slots=True, eq=False)
class CodeTable:
    """A table of the frequency and the length, as Lucene stores it, of each row: `pairs` (int32, C x 2).

    `usual`, `rare_pairs` and `rare` map a pair, written as `frequency << 8 | length byte`, to its row.
    """

    pairs: NDArray[np.int32]
    usual: NDArray[np.int32]
    rare_pairs: NDArray[np.int64]
    rare: NDArray[np.int32]

    def rows(
        self, passages: NDArray[np.int32], frequencies: NDArray[np.int32], lengths: NDArray[np.uint8]
    ) -> NDArray[np.int32]:
        """Return the row of each posting, whose pair must be in the table; `lengths` are length bytes by passage."""
        rows = np.empty(len(passages), np.int32)
        _find_rows(passages, frequencies, lengths, self.usual, self.rare_pairs, self.rare, rows)
        return rows


class PairCounts:
    """Counts of pairs of term frequency and length byte: in a table, and in a counter for very high frequencies."""

    def __init__(self) -> None:
        self._usual = np.zeros(_USUAL_FREQUENCIES << 8, np.int64)
        self._rare: Counter[int] = Counter()

    def add(self, rows: NDArray[np.int32], frequencies: NDArray[np.int32], lengths: NDArray[np.uint8]) -> None:
        """Count the pairs of postings; `lengths` has the length byte of each row."""
        _count(rows, frequencies, lengths, self._usual)
        huge = frequencies >= _USUAL_FREQUENCIES
        if huge.any():
            self._rare.update((frequencies[huge].astype(np.int64) << 8 | lengths[rows[huge]]).tolist())

    def add_counted(self, pairs: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Add the counts of distinct pairs, written as `frequency << 8 | length byte`; some may be 0."""
        usual = pairs < len(self._usual)
        rare = ~usual & (counts > 0)
        self._usual[pairs[usual]] += counts[usual]
        self._rare.update(dict(zip(pairs[rare].tolist(), counts[rare].tolist(), strict=True)))

    def table(self) -> CodeTable:
        """Return the table of all pairs that were counted, the commonest first."""
        rare = np.array(sorted(self._rare), np.int64)
        seen = np.flatnonzero(self._usual)
        pairs = np.concatenate([seen, rare])
        counts = np.concatenate([self._usual[seen], [self._rare[pair] for pair in rare.tolist()]])
        order = np.lexsort((pairs, -counts))
        rows = np.empty(len(pairs), np.int32)
        rows[order] = np.arange(len(pairs))
        rows += rows >= arrays.ESCAPE  # row ESCAPE stays empty
        usual = np.zeros(len(self._usual), np.int32)
        usual[seen] = rows[: len(seen)]
        table = np.zeros((int(rows.max(initial=-1)) + 1, 2), np.int32)
        table[rows] = np.stack([pairs >> 8, formula.stored_lengths((pairs & 255).astype(np.uint8))], axis=1)
        return CodeTable(table, usual, rare, rows[len(seen) :])


@kernels.kernel
def _count(rows: NDArray[Any], frequencies: NDArray[Any], lengths: NDArray[Any], counts: NDArray[Any]) -> None:
    """Count the pairs of frequency and length byte that fit in the table."""
    for i in range(len(rows)):
        pair = np.int64(frequencies[i]) << 8 | lengths[rows[i]]
        if pair < len(counts):
            counts[pair] += 1


@kernels.kernel
def _find_rows(
    passages: NDArray[Any],
    frequencies: NDArray[Any],
    lengths: NDArray[Any],
    usual: NDArray[Any],
    rare_pairs: NDArray[Any],
    rare: NDArray[Any],
    rows: NDArray[Any],
) -> None:
    for i in range(len(passages)):
        pair = np.int64(frequencies[i]) << 8 | lengths[passages[i]]
        rows[i] = usual[pair] if pair < len(usual) else rare[np.searchsorted(rare_pairs, pair)]


class SortedRun:
    """What `sort_by_term` returns in a file of int32, read from its first term to its last, a range at a time."""

    def __init__(self, file: Path, *parts: NDArray[np.int32]) -> None:
        self.file = file
        self._terms, self._postings = len(parts[0]), len(parts[2])
        self._next_term = self._next_posting = 0
        with file.open("wb") as stream:
            for part in parts:
                stream.write(part.data)

    def sizes(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the terms, and the number of postings of each."""
        return self._read(0, self._terms), self._read(self._terms, self._terms)

    def read_below(self, term: int) -> tuple[NDArray[np.int32], ...]:
        """Return the unread terms below `term`: terms, number of postings of each, passages, frequencies."""
        begin, posting, count = self._next_term, self._next_posting, 0
        if self._terms:
            terms = np.memmap(self.file, _INT, "r", shape=(self._terms,))
            count = int(np.searchsorted(terms, term)) - begin
        sizes = self._read(self._terms + begin, count)
        size = int(sizes.sum(dtype=np.int64))
        self._next_term, self._next_posting = begin + count, posting + size
        passages = self._read(2 * self._terms + posting, size)
        frequencies = self._read(2 * self._terms + self._postings + posting, size)
        return self._read(begin, count), sizes, passages, frequencies

    def _read(self, begin: int, count: int) -> NDArray[np.int32]:
        """Return `count` numbers of the file, from number `begin` on."""
        return np.fromfile(self.file, _INT, count, offset=begin * _INT.itemsize)


def term_offsets(runs: list[SortedRun], terms: int) -> NDArray[np.int64]:
    """Return where the postings of each term begin, and where the last ones end."""
    offsets = np.zeros(terms + 1, np.int64)
    for run in runs:
        own_terms, sizes = run.sizes()
        offsets[own_terms + 1] += sizes
    return np.cumsum(offsets, out=offsets)


def merge_runs(
    runs: list[SortedRun], offsets: NDArray[np.int64], at_a_time: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Yield the passages and frequencies of all postings by term, about `at_a_time` at a time."""
    for first, last in term_ranges(offsets, at_a_time):
        count = int(offsets[last] - offsets[first])
        passages, frequencies = np.empty(count, np.int32), np.empty(count, np.int32)
        filled = offsets[first:last] - offsets[first]
        for run in runs:
            terms, *postings = run.read_below(last)
            _append_run(terms - np.int32(first), *postings, filled, passages, frequencies)
        yield passages, frequencies


def term_ranges(offsets: NDArray[np.int64], postings: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of terms that have at most `postings` postings, or are one term."""
    first, terms = 0, len(offsets) - 1
    while first < terms:
        last = int(np.searchsorted(offsets, offsets[first] + postings, side="right")) - 1
        last = min(max(last, first + 1), terms)
        yield first, last
        first = last


@kernels.kernel
def sort_by_term(
    terms: NDArray[Any], begins: NDArray[Any], vocabulary: int, first: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Sort the postings of passages from `first` on by term; return terms, sizes, passages, frequencies."""
    sizes = np.zeros(vocabulary, np.int32)
    last_seen = np.full(vocabulary, -1, np.int32)
    for passage in range(len(begins) - 1):
        for i in range(begins[passage], begins[passage + 1]):
            if last_seen[terms[i]] != passage:
                last_seen[terms[i]] = passage
                sizes[terms[i]] += 1
    present = np.flatnonzero(sizes).astype(np.int32)
    filled = last_seen  # its memory is used again: where the postings of each term begin
    total = 0
    for term in present:
        filled[term] = total
        total += sizes[term]
    passages = np.empty(total, np.int32)
    frequencies = np.empty(total, np.int32)
    ends = filled.copy()
    for passage in range(len(begins) - 1):
        for i in range(begins[passage], begins[passage + 1]):
            term = terms[i]
            last = ends[term] - 1
            if last >= filled[term] and passages[last] == first + passage:
                frequencies[last] += 1
            else:
                passages[last + 1] = first + passage
                frequencies[last + 1] = 1
                ends[term] += 1
    return present, sizes[present], passages, frequencies


@kernels.kernel
def _append_run(
    terms: NDArray[Any],
    sizes: NDArray[Any],
    run_passages: NDArray[Any],
    run_frequencies: NDArray[Any],
    filled: NDArray[Any],
    passages: NDArray[Any],
    frequencies: NDArray[Any],
) -> None:
    """Append each term's postings of a run to those from earlier runs."""
    i = 0
    for term, size in zip(terms, sizes):  # noqa: B905 - numba does not support strict
        to = filled[term]
        for j in range(size):
            passages[to + j] = run_passages[i + j]
            frequencies[to + j] = run_frequencies[i + j]
        filled[term] = to + size
        i += size
