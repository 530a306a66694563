"""Sorted runs of postings on disk, and how they are merged.

A run holds the postings of consecutive passages, as many as fit into the buffer, sorted by term and then by passage.
Later runs have later passages. So merging takes each term's postings from one run after the other, for a range of terms
at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.compiled import kernel

_INT: Final = np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class Run:
    """Postings of one buffer in a file of int32: terms, number of postings of each, all passages, all frequencies."""

    file: Path
    terms: int
    postings: int

    def read(self, begin: int, count: int) -> NDArray[np.int32]:
        """`count` numbers of the file, from number `begin` on."""
        return np.fromfile(self.file, _INT, count, offset=begin * _INT.itemsize)

    def terms_before(self, term: int) -> int:
        """How many of its terms are below `term`."""
        if not self.terms:
            return 0
        return int(np.searchsorted(np.memmap(self.file, _INT, "r", shape=(self.terms,)), term))


class _Reader:
    """Reads a run from its first term to its last, a range of terms at a time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._term = self._posting = 0

    def read_below(self, term: int) -> tuple[NDArray[np.int32], ...]:
        """The unread terms below `term`: terms, number of postings of each, passages, frequencies."""
        run, begin = self._run, self._posting
        count = run.terms_before(term) - self._term
        terms, sizes = run.read(self._term, count), run.read(run.terms + self._term, count)
        size = int(sizes.sum(dtype=np.int64))
        self._term, self._posting = self._term + count, begin + size
        passages = run.read(2 * run.terms + begin, size)
        return terms, sizes, passages, run.read(2 * run.terms + run.postings + begin, size)


def write_run(file: Path, *parts: NDArray[np.int32]) -> Run:
    """Write the result of `sort_by_term`."""
    with file.open("wb") as stream:
        for part in parts:
            stream.write(part.data)
    return Run(file, terms=len(parts[0]), postings=len(parts[2]))


def offsets_of(runs: list[Run], terms: int) -> NDArray[np.int64]:
    """Where the postings of each term begin, and where the last ones end."""
    offsets = np.zeros(terms + 1, np.int64)
    for run in runs:
        offsets[run.read(0, run.terms) + 1] += run.read(run.terms, run.terms)
    return np.cumsum(offsets, out=offsets)


def merged(
    runs: list[Run], offsets: NDArray[np.int64], at_a_time: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """The passages and frequencies of all postings, in the order of the terms, about `at_a_time` at a time."""
    readers = [_Reader(run) for run in runs]
    for first, last in some_terms(offsets, at_a_time):
        yield _merge(readers, first, last, offsets)


def some_terms(offsets: NDArray[np.int64], postings: int) -> Iterator[tuple[int, int]]:
    """Ranges of terms with at most `postings` postings, or of one term."""
    first, terms = 0, len(offsets) - 1
    while first < terms:
        last = int(np.searchsorted(offsets, offsets[first] + postings, side="right")) - 1
        last = min(max(last, first + 1), terms)
        yield first, last
        first = last


def _merge(
    readers: list[_Reader], first: int, last: int, offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Passages and frequencies of terms `first` to `last` from all runs, in the order of the runs."""
    count = int(offsets[last] - offsets[first])
    passages, frequencies = np.empty(count, np.int32), np.empty(count, np.int32)
    filled = offsets[first:last] - offsets[first]
    for reader in readers:
        terms, *postings = reader.read_below(last)
        _place(terms - np.int32(first), *postings, filled, passages, frequencies)
    return passages, frequencies


@kernel
def sort_by_term(
    terms: NDArray[Any], begins: NDArray[Any], vocabulary: int, first: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Sort the postings of consecutive passages, numbered from `first`, by term; returns terms, number of postings of
    each, passages, frequencies.

    Counts the passages of each term, then appends each posting to those of its term.
    """
    sizes = np.zeros(vocabulary, np.int32)
    last_seen = np.full(vocabulary, -1, np.int32)
    for passage in range(len(begins) - 1):
        for i in range(begins[passage], begins[passage + 1]):
            if last_seen[terms[i]] != passage:
                last_seen[terms[i]] = passage
                sizes[terms[i]] += 1
    present = np.flatnonzero(sizes).astype(np.int32)
    filled = last_seen
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


@kernel
def _place(
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
