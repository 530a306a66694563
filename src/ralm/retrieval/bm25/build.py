"""Building the arrays of a BM25 index from a stream of passages, in bounded memory.

Passages are analysed as they come. Their terms collect in a buffer; when it is full it becomes a run on disk: postings
sorted by term, then passage. At the end the runs are merged, some terms at a time, and written end to end. What grows
with the corpus in memory is the vocabulary, and a byte a passage.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

import numba as nb
import numpy as np
from numpy.typing import DTypeLike, NDArray

from ralm.errors import CorpusError
from ralm.progress import progress_bar
from ralm.retrieval.analysis import Analyser
from ralm.retrieval.bm25.formula import BM25Options, impact, length_bytes, stored_lengths

BUFFERED_TERMS: Final = 1 << 21
"""Terms of passages in the buffer, and postings merged at a time: some 50 MB of memory in all."""
_REMEMBERED: Final = 1 << 17
_LONGEST_REMEMBERED: Final = 64
_USUAL_FREQUENCIES: Final = 256
_MOST_CODES: Final = 1 << 16
_INT: Final = np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class Counts:
    """What went into an index."""

    passages: int
    terms: int
    postings: int
    tokens: int


class Builder:
    """Collects passages and writes the arrays into `folder`; call `add` for each passage in order, then `finish`."""

    def __init__(self, folder: Path, options: BM25Options, buffered_terms: int = BUFFERED_TERMS) -> None:
        self._folder = folder
        self._options = options
        self._capacity = buffered_terms
        self._vocabulary: dict[str, int] = {}
        self._ids_of_run = _IdsOfRun(self._vocabulary)
        self._terms = array("i")
        self._begins = array("q", [0])
        self._length_bytes = bytearray()
        self._tokens = self._with_terms = 0
        self._kinds = _Kinds()
        self._runs: list[_Run] = []

    def add(self, contents: str) -> None:
        """Index the next passage."""
        self._terms.extend(chain.from_iterable(map(self._ids_of_run.__getitem__, contents.split())))
        self._begins.append(len(self._terms))
        if len(self._terms) >= self._capacity or len(self._begins) >= self._capacity:
            self._spill()

    def finish(self) -> Counts:
        """Write the arrays and remove what was spilled.

        Raises CorpusError where nothing was added.
        """
        self._spill()
        passages = len(self._length_bytes)
        if not passages:
            raise CorpusError("the corpus has no passages: nothing to index.")
        self._ids_of_run.clear()
        np.save(self._folder / "totals.npy", np.array([self._tokens, self._with_terms], np.int64))
        _write_vocabulary(self._folder, self._vocabulary)
        codes = self._kinds.codes(self._tokens / max(self._with_terms, 1), self._options)
        np.save(self._folder / "code_table.npy", codes.table)
        offsets = _offsets(self._runs, len(self._vocabulary))
        np.save(self._folder / "offsets.npy", offsets)
        lengths = np.frombuffer(self._length_bytes, np.uint8)
        _write_postings(self._folder, self._runs, offsets, lengths, codes, self._capacity)
        for run in self._runs:
            run.file.unlink()
        return Counts(passages, len(self._vocabulary), int(offsets[-1]), self._tokens)

    def _spill(self) -> None:
        """Turn the buffer into a run, and empty it."""
        begins = np.frombuffer(self._begins, np.int64)
        lengths = np.diff(begins)
        if not len(lengths):
            return
        self._tokens += int(begins[-1])
        self._with_terms += int(np.count_nonzero(lengths))
        first = len(self._length_bytes)
        self._length_bytes += length_bytes(lengths).tobytes()
        terms = np.frombuffer(self._terms, np.int32) if self._terms else np.zeros(0, np.int32)
        postings = _sort_by_term(terms, begins, len(self._vocabulary), first)
        self._kinds.add(postings[2] - first, postings[3], length_bytes(lengths))
        self._runs.append(_write_run(self._folder / f"run-{len(self._runs)}", *postings))
        self._terms, self._begins = array("i"), array("q", [0])


class _IdsOfRun(dict[str, tuple[int, ...]]):
    """The term ids of a run of characters without white space, worked out once; new terms enter the vocabulary.

    Most of a text is repetition, so this is what makes building fast. Forgets everything when it is full.
    """

    def __init__(self, vocabulary: dict[str, int]) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._terms_of_run = Analyser().fresh_run

    def __missing__(self, run: str) -> tuple[int, ...]:
        vocabulary = self._vocabulary
        ids = tuple([vocabulary.setdefault(term, len(vocabulary)) for term in self._terms_of_run(run)])
        if len(run) <= _LONGEST_REMEMBERED:
            if len(self) >= _REMEMBERED:
                self.clear()
            self[run] = ids
        return ids


@dataclass(frozen=True, slots=True, eq=False)
class _Codes:
    """The rows of the code table, and the row of each pair of frequency and length byte (`frequency << 8 | byte`)."""

    table: NDArray[np.int32]
    usual: NDArray[np.uint16]
    rare_pairs: NDArray[np.int64]
    rare: NDArray[np.uint16]

    @property
    def dtype(self) -> DTypeLike:
        """The narrowest type that numbers the rows."""
        return np.uint8 if len(self.table) <= 256 else np.uint16


class _Kinds:
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

    def codes(self, average_length: float, options: BM25Options) -> _Codes:
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
        return _Codes(table, usual, rare, rows[len(pairs) - len(rare) :])


@dataclass(frozen=True, slots=True)
class _Run:
    """Postings of one bufferful in a file of int32: terms, postings of each, then all passages, all frequencies."""

    file: Path
    terms: int
    postings: int

    def read(self, begin: int, count: int) -> NDArray[np.int32]:
        """A stretch of the file, in numbers."""
        return np.fromfile(self.file, _INT, count, offset=begin * _INT.itemsize)

    def terms_before(self, term: int) -> int:
        """How many of its terms are below `term`."""
        if not self.terms:
            return 0
        return int(np.searchsorted(np.memmap(self.file, _INT, "r", shape=(self.terms,)), term))


class _Reader:
    """Reads a run from its first term to its last, as many terms at a time as are asked for."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._term = self._posting = 0

    def read_below(self, term: int) -> tuple[NDArray[np.int32], ...]:
        """Terms not read yet that are below `term`: terms, postings of each, passages, frequencies."""
        run, begin = self._run, self._posting
        count = run.terms_before(term) - self._term
        terms, sizes = run.read(self._term, count), run.read(run.terms + self._term, count)
        size = int(sizes.sum(dtype=np.int64))
        self._term, self._posting = self._term + count, begin + size
        passages = run.read(2 * run.terms + begin, size)
        return terms, sizes, passages, run.read(2 * run.terms + run.postings + begin, size)


def _write_run(file: Path, *parts: NDArray[np.int32]) -> _Run:
    with file.open("wb") as stream:
        for part in parts:
            stream.write(part.data)
    return _Run(file, terms=len(parts[0]), postings=len(parts[2]))


def _write_vocabulary(folder: Path, vocabulary: dict[str, int]) -> None:
    """The terms in the order of their bytes, which is that of their characters, for binary search on disk."""
    terms = sorted(vocabulary)
    ends = np.cumsum(np.fromiter((len(_spelt(term)) for term in terms), np.int64, len(terms)), dtype=np.int64)
    np.save(folder / "term_ends.npy", ends)
    np.save(folder / "term_ids.npy", np.fromiter((vocabulary[term] for term in terms), np.int32, len(terms)))
    with (folder / "vocabulary.npy").open("wb") as stream:
        _begin_array(stream, np.uint8, int(ends[-1]) if len(ends) else 0)
        stream.writelines(map(_spelt, terms))


def _spelt(term: str) -> bytes:
    return term.encode("utf-8", "surrogatepass")


def _offsets(runs: list[_Run], terms: int) -> NDArray[np.int64]:
    """Where the postings of each term begin, and after them where the last ones end."""
    offsets = np.zeros(terms + 1, np.int64)
    for run in runs:
        offsets[run.read(0, run.terms) + 1] += run.read(run.terms, run.terms)
    return np.cumsum(offsets, out=offsets)


def _write_postings(
    folder: Path,
    runs: list[_Run],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.uint8],
    codes: _Codes,
    at_a_time: int,
) -> None:
    """Merge the runs into passages.npy and codes.npy, so many postings at a time."""
    readers = [_Reader(run) for run in runs]
    total = int(offsets[-1])
    with (
        (folder / "passages.npy").open("wb") as passages_file,
        (folder / "codes.npy").open("wb") as codes_file,
        progress_bar("Merging postings", total) as advance,
    ):
        _begin_array(passages_file, np.int32, total)
        _begin_array(codes_file, codes.dtype, total)
        for first, last in _some_terms(offsets, at_a_time):
            passages, frequencies = _merge(readers, first, last, offsets)
            passages_file.write(passages.data)
            found = np.empty(len(passages), np.uint16)
            _encode(passages, frequencies, lengths, codes.usual, codes.rare_pairs, codes.rare, found)
            codes_file.write(found.astype(codes.dtype, copy=False).data)
            advance(len(passages))


def _begin_array(stream: BinaryIO, dtype: DTypeLike, length: int) -> None:
    """Write the head of an .npy file; the numbers follow piece by piece."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": (length,)})


def _some_terms(offsets: NDArray[np.int64], postings: int) -> Iterator[tuple[int, int]]:
    """Ranges of terms with at most so many postings, or of one term."""
    first, terms = 0, len(offsets) - 1
    while first < terms:
        last = int(np.searchsorted(offsets, offsets[first] + postings, side="right")) - 1
        last = min(max(last, first + 1), terms)
        yield first, last
        first = last


def _merge(
    readers: list[_Reader], first: int, last: int, offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Passages and frequencies of terms first to last from all runs; a later run has later passages."""
    count = int(offsets[last] - offsets[first])
    passages, frequencies = np.empty(count, np.int32), np.empty(count, np.int32)
    filled = offsets[first:last] - offsets[first]
    for reader in readers:
        terms, *postings = reader.read_below(last)
        _place(terms - np.int32(first), *postings, filled, passages, frequencies)
    return passages, frequencies


@nb.njit(cache=True, nogil=True)
def _sort_by_term(
    terms: NDArray[Any], begins: NDArray[Any], vocabulary: int, first: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Postings of consecutive passages, numbered from `first`: terms, postings of each, passages, frequencies.

    Counts the passages of each term, then places each posting behind those of its term that stand already.
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


@nb.njit(cache=True, nogil=True)
def _place(
    terms: NDArray[Any],
    sizes: NDArray[Any],
    run_passages: NDArray[Any],
    run_frequencies: NDArray[Any],
    filled: NDArray[Any],
    passages: NDArray[Any],
    frequencies: NDArray[Any],
) -> None:
    """Append each term's postings of a run to what is there of it already."""
    i = 0
    for term, size in zip(terms, sizes):  # noqa: B905 - numba knows no strict
        to = filled[term]
        for j in range(size):
            passages[to + j] = run_passages[i + j]
            frequencies[to + j] = run_frequencies[i + j]
        filled[term] = to + size
        i += size
