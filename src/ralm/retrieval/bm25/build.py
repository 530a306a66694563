"""Building the arrays of a BM25 index from a stream of passages, in bounded memory.

Passages are analysed as they come. Their terms collect in a buffer; when it is full it is turned into a run: postings
sorted by term, then passage, on disk. At the end the runs are merged, some terms at a time, and written end to end.
What grows with the corpus in memory is the vocabulary alone, and a byte a passage.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numba as nb
import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from ralm.errors import CorpusError
from ralm.retrieval.analysis import Analyser
from ralm.retrieval.bm25.formula import BM25Options, impact, length_bytes, stored_lengths

BUFFERED_TERMS: Final = 1 << 23
"""Terms of passages in the buffer, and postings merged at a time: some 200 MB of memory in all."""
_MOST_CODES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Counts:
    """What went into an index."""

    passages: int
    terms: int
    postings: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Postings of one bufferful on disk: `offsets` (terms known then, + 1) into passages and frequencies."""

    offsets: NDArray[np.int64]
    passages: Path
    frequencies: Path

    def read(self, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        """The postings of terms first to last: offsets among them, passages, frequencies."""
        known = len(self.offsets) - 1
        begin, end = self.offsets[min(first, known)], self.offsets[min(last, known)]
        offsets = self.offsets[np.minimum(np.arange(first, last + 1), known)] - begin
        count = int(end - begin)
        passages = np.fromfile(self.passages, np.int32, count, offset=int(begin) * 4)
        return offsets, passages, np.fromfile(self.frequencies, np.int32, count, offset=int(begin) * 4)


class Builder:
    """Collects passages and writes the arrays into `folder`; call `add` for each passage in order, then `finish`."""

    def __init__(self, folder: Path, options: BM25Options, buffered_terms: int = BUFFERED_TERMS) -> None:
        self._folder = folder
        self._options = options
        self._capacity = buffered_terms
        self._analyser = Analyser()
        self._ids: dict[str, int] = {}
        self._terms = array("i")
        self._begins = array("q", [0])
        self._lengths = array("q")
        self._runs: list[_Run] = []

    def add(self, contents: str) -> None:
        """Index the next passage."""
        ids, terms, run = self._ids, self._terms, self._analyser.run
        for characters in contents.split():
            for term in run(characters):
                terms.append(ids.setdefault(term, len(ids)))
        self._begins.append(len(terms))
        self._lengths.append(len(terms) - self._begins[-2])
        if len(terms) >= self._capacity:
            self._spill()

    def finish(self) -> Counts:
        """Write the arrays and remove what was spilled.

        Raises CorpusError where nothing was added.
        """
        if not self._lengths:
            raise CorpusError("the corpus has no passages: nothing to index.")
        self._spill()
        lengths = np.frombuffer(self._lengths, np.int64)
        tokens, with_terms = int(lengths.sum()), int(np.count_nonzero(lengths))
        np.save(self._folder / "totals.npy", np.array([tokens, with_terms], np.int64))
        _write_vocabulary(self._folder, self._ids)
        average = tokens / max(with_terms, 1)
        postings = _merge(self._folder, self._runs, length_bytes(lengths), average, len(self._ids), self._options)
        for run in self._runs:
            run.passages.unlink()
            run.frequencies.unlink()
        return Counts(passages=len(lengths), terms=len(self._ids), postings=postings, tokens=tokens)

    def _spill(self) -> None:
        """Turn the buffer into a run."""
        if not len(self._begins) > 1:
            return
        first = len(self._lengths) - (len(self._begins) - 1)
        terms = np.frombuffer(self._terms, np.int32) if len(self._terms) else np.zeros(0, np.int32)
        offsets, passages, frequencies = _sort_by_term(
            terms, np.frombuffer(self._begins, np.int64), len(self._ids), first
        )
        run = _Run(offsets, *(self._folder / f"run-{len(self._runs)}.{part}" for part in ("passages", "frequencies")))
        passages.tofile(run.passages)
        frequencies.tofile(run.frequencies)
        self._runs.append(run)
        self._terms, self._begins = array("i"), array("q", [0])


def _write_vocabulary(folder: Path, ids: dict[str, int]) -> None:
    """The terms in byte order, for binary search on disk."""
    spelt = sorted((term.encode("utf-8", "surrogatepass"), number) for term, number in ids.items())
    np.save(folder / "vocabulary.npy", np.frombuffer(b"".join(term for term, _ in spelt), np.uint8))
    np.save(folder / "term_ends.npy", np.cumsum([len(term) for term, _ in spelt], dtype=np.int64))
    np.save(folder / "term_ids.npy", np.array([number for _, number in spelt], dtype=np.int32))


def _merge(
    folder: Path, runs: list[_Run], length_codes: NDArray[np.uint8], average: float, terms: int, options: BM25Options
) -> int:
    """Write offsets, passages, codes and the code table from the runs; the number of postings."""
    document_frequency = np.zeros(terms, np.int64)
    for run in runs:
        document_frequency[: len(run.offsets) - 1] += np.diff(run.offsets)
    offsets = np.zeros(terms + 1, np.int64)
    np.cumsum(document_frequency, out=offsets[1:])
    np.save(folder / "offsets.npy", offsets)
    table, code_of = _code_table(runs, length_codes, average, options)
    np.save(folder / "code_table.npy", table)
    kind = np.uint8 if len(table) <= 256 else np.uint16
    total = int(offsets[-1])
    with (
        _Column(folder / "passages.npy", np.int32, total) as passages,
        _Column(folder / "codes.npy", kind, total) as codes,
    ):
        for first, last in _some_terms(offsets):
            merged = _merge_terms(runs, first, last, offsets)
            passages.append(merged[0])
            codes.append(code_of[merged[1], length_codes[merged[0]]].astype(kind))
    return total


def _code_table(
    runs: list[_Run], length_codes: NDArray[np.uint8], average: float, options: BM25Options
) -> tuple[NDArray[np.int32], NDArray[np.uint16]]:
    """The distinct pairs of frequency and stored length by rising impact, and the row of each pair."""
    seen = np.zeros((1, 256), np.bool_)
    for run in runs:
        for begin in range(0, int(run.offsets[-1]), BUFFERED_TERMS):
            passages = np.fromfile(run.passages, np.int32, BUFFERED_TERMS, offset=begin * 4)
            frequencies = np.fromfile(run.frequencies, np.int32, BUFFERED_TERMS, offset=begin * 4)
            if (highest := int(frequencies.max(initial=0))) >= len(seen):
                seen = np.concatenate([seen, np.zeros((highest + 1 - len(seen), 256), np.bool_)])
            seen[frequencies, length_codes[passages]] = True
    frequency, code = np.nonzero(seen)
    length = stored_lengths(code.astype(np.uint8))
    if len(frequency) > _MOST_CODES:
        raise CorpusError(
            f"the corpus has {len(frequency):,} distinct pairs of term frequency and passage length, more than the "
            f"{_MOST_CODES:,} an index can hold: split it into shorter passages."
        )
    order = np.lexsort((length, frequency, impact(frequency, length, average, options)))
    code_of = np.zeros(seen.shape, np.uint16)
    code_of[frequency[order], code[order]] = np.arange(len(order))
    return np.stack([frequency, length], axis=1)[order].astype(np.int32), code_of


def _some_terms(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of terms with as many postings as are merged at a time, at least one term each."""
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + BUFFERED_TERMS, side="right")) - 1
        last = min(max(last, first + 1), len(offsets) - 1)
        yield first, last
        first = last


def _merge_terms(
    runs: list[_Run], first: int, last: int, offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Passages and frequencies of terms first to last from all runs; a later run has later passages."""
    count = int(offsets[last] - offsets[first])
    passages, frequencies = np.empty(count, np.int32), np.empty(count, np.int32)
    filled = offsets[first:last] - offsets[first]
    for run in runs:
        _place(*run.read(first, last), filled, passages, frequencies)
    return passages, frequencies


class _Column:
    """An .npy file of known length, written piece by piece without being mapped."""

    def __init__(self, path: Path, kind: type[np.generic], length: int) -> None:
        open_memmap(path, mode="w+", dtype=kind, shape=(length,)).flush() if length else np.save(
            path, np.zeros(0, kind)
        )
        self._stream = path.open("r+b")
        self._stream.seek(path.stat().st_size - length * np.dtype(kind).itemsize)

    def append(self, piece: NDArray[Any]) -> None:
        """Write the next piece."""
        self._stream.write(piece.tobytes())

    def __enter__(self) -> "_Column":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


@nb.njit(cache=True, nogil=True)
def _sort_by_term(
    terms: NDArray[np.int32], begins: NDArray[np.int64], vocabulary: int, first: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Postings of consecutive passages, numbered from `first`, sorted by term and then passage.

    Counts the distinct terms of each passage, then places each where its term's postings stand.
    """
    offsets = np.zeros(vocabulary + 1, np.int64)
    last_seen = np.full(vocabulary, -1, np.int64)
    for passage in range(len(begins) - 1):
        for i in range(begins[passage], begins[passage + 1]):
            term = terms[i]
            if last_seen[term] != passage:
                last_seen[term] = passage
                offsets[term + 1] += 1
    for term in range(vocabulary):
        offsets[term + 1] += offsets[term]
    filled = offsets[:-1].copy()
    passages = np.empty(offsets[-1], np.int32)
    frequencies = np.empty(offsets[-1], np.int32)
    last_seen[:] = -1
    for passage in range(len(begins) - 1):
        for i in range(begins[passage], begins[passage + 1]):
            term = terms[i]
            if last_seen[term] == passage:
                frequencies[filled[term] - 1] += 1
            else:
                last_seen[term] = passage
                passages[filled[term]] = first + passage
                frequencies[filled[term]] = 1
                filled[term] += 1
    return offsets, passages, frequencies


@nb.njit(cache=True, nogil=True)
def _place(
    offsets: NDArray[np.int64],
    run_passages: NDArray[np.int32],
    run_frequencies: NDArray[np.int32],
    filled: NDArray[np.int64],
    passages: NDArray[np.int32],
    frequencies: NDArray[np.int32],
) -> None:
    """Append each term's postings of a run to what is there of it already."""
    for term in range(len(offsets) - 1):
        for i in range(offsets[term], offsets[term + 1]):
            passages[filled[term]] = run_passages[i]
            frequencies[filled[term]] = run_frequencies[i]
            filled[term] += 1
