"""Builds the arrays of a BM25 index from a stream of passages, or from older arrays, in bounded memory.

Passages are analysed in batches, and their term ids collect in a buffer. A full buffer becomes a sorted run on disk,
and at the end the runs are merged (`ralm.retrieval.bm25.writing`). Only the vocabulary, and one byte per passage, grow
in memory with the corpus. `merge_arrays` joins the kept postings of an older index with those of new passages.

Letters of shapes: P passages, V terms and C rows of the code table of a source, M terms of all sources in byte order.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ralm.errors import CorpusError
from ralm.retrieval.analysis import ENGLISH, Analysis
from ralm.retrieval.bm25 import formula, kernels, writing
from ralm.retrieval.bm25.arrays import Arrays, PostingCodes, row_of
from ralm.retrieval.bm25.words import Ids, WordIds

_PASSAGES_A_BATCH: Final = 1024
_CHARACTERS_A_BATCH: Final = 1 << 20
NOT_KEPT: Final = -1
"""In place of the new number of a passage that is not kept."""
_NO_TERM: Final = -1


class BM25Builder:
    """A writer of the arrays of passages into `folder`: call `add` for each passage in order, then `finish`."""

    def __init__(self, folder: Path, build: formula.BuildOptions | None = None, analysis: Analysis = ENGLISH) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._capacity = (build or formula.BuildOptions()).buffered_terms
        self._vocabulary: dict[str, int] = {}
        self._word_ids = WordIds(self._vocabulary, analysis)
        self._batch: list[str] = []
        self._characters = 0
        self._buffer: list[Ids] = []
        self._buffered = 0
        self._length_bytes = bytearray()
        self._tokens = self._with_terms = 0
        self._pairs = writing.PairCounts()
        self._runs: list[writing.SortedRun] = []

    def add(self, contents: str) -> None:
        """Index the next passage; CorpusError if there are more than BM25 can number."""
        self._batch.append(contents)
        self._characters += len(contents)
        if self._characters >= _CHARACTERS_A_BATCH or len(self._batch) >= min(_PASSAGES_A_BATCH, self._capacity):
            self._analyse()

    def finish(self) -> writing.IndexCounts:
        """Write the arrays and remove the runs; CorpusError if nothing was added, or more than BM25 can number."""
        self._analyse()
        self._spill()
        passages = len(self._length_bytes)
        if not passages:
            raise CorpusError("the corpus has no passages to index: give documents that are not empty.")
        vocabulary = self._vocabulary
        writing.write_totals(self._folder, self._tokens, self._with_terms)
        terms = sorted(vocabulary)  # the order of UTF-8 bytes is that of the characters
        texts = [term.encode("utf-8", "surrogatepass") for term in terms]
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        ids = np.fromiter(map(vocabulary.__getitem__, terms), np.int32, len(terms))
        writing.write_vocabulary(self._folder, np.frombuffer(b"".join(texts), np.uint8), sizes, ids)
        table = self._pairs.table()
        offsets = writing.term_offsets(self._runs, len(vocabulary))
        lengths = np.frombuffer(self._length_bytes, np.uint8)
        postings = writing.merge_runs(self._runs, offsets, self._capacity)
        rows = ((numbers, table.rows(numbers, frequencies, lengths)) for numbers, frequencies in postings)
        writing.write_postings(self._folder, offsets, table.pairs, rows)
        for run in self._runs:
            run.file.unlink()
        return writing.IndexCounts(passages, len(vocabulary), int(offsets[-1]), self._tokens)

    def _analyse(self) -> None:
        """Put the term ids of the batch into the buffer."""
        batch, self._batch, self._characters = self._batch, [], 0
        if not batch:
            return
        ids, sizes = self._word_ids.of_texts(batch)
        self._buffer.append((ids, sizes))
        self._buffered += max(len(ids), len(sizes))
        if self._buffered >= self._capacity:
            self._spill()

    def _spill(self) -> None:
        """Write the buffer as a run, and empty it."""
        if not self._buffer:
            return
        terms, lengths = (np.concatenate(parts) for parts in zip(*self._buffer, strict=True))
        self._buffer, self._buffered = [], 0
        self._tokens += len(terms)
        self._with_terms += int(np.count_nonzero(lengths))
        first = len(self._length_bytes)
        kernels.check_passage_count(first + len(lengths))
        self._length_bytes += formula.length_bytes(lengths).tobytes()
        begins = np.concatenate([[0], np.cumsum(lengths)])
        postings = writing.sort_by_term(terms, begins, len(self._vocabulary), first)
        self._pairs.add(postings[2] - first, postings[3], formula.length_bytes(lengths))
        self._runs.append(writing.SortedRun(self._folder / f"run-{len(self._runs)}", *postings))


class _PostingCounts(NamedTuple):
    """The kept postings of a source: by term, the first passage of each term, by row, and the passages with terms."""

    frequency_V: NDArray[np.int64]
    first_V: NDArray[np.int64]
    count_C: NDArray[np.int64]
    has_terms_P: NDArray[np.bool_]


def merge_arrays(
    sources: Sequence[Arrays], numbers: Sequence[NDArray[np.int32]], folder: Path, at_a_time: int
) -> writing.IndexCounts:
    """Write the arrays of the kept passages of one or two sources, some `at_a_time` postings at a time.

    `numbers`: the new number of each passage of a source, or `NOT_KEPT`. The arrays equal those that are built of the
    same passages at once, byte for byte; no text is analysed again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    passages = sum(int(np.count_nonzero(number_P != NOT_KEPT)) for number_P in numbers)
    kernels.check_passage_count(passages)
    every_kept = [*map(_kept, sources, numbers)]
    merged, place_VM = _merged_terms(sources)
    frequency_M, first_M = np.zeros(len(merged), np.int64), np.full(len(merged), passages, np.int64)
    for kept, place_V in zip(every_kept, place_VM, strict=True):
        frequency_M[place_V] += kept.frequency_V
        first_M[place_V] = np.minimum(first_M[place_V], kept.first_V)
    stays = np.flatnonzero(frequency_M)
    ids = np.empty(len(stays), np.int32)
    ids[np.argsort(first_M[stays], kind="stable")] = np.arange(len(ids))
    id_M = np.full(len(merged), _NO_TERM, np.int64)
    id_M[stays] = ids
    offsets = np.zeros(len(ids) + 1, np.int64)
    offsets[ids + 1] = frequency_M[stays]
    np.cumsum(offsets, out=offsets)
    _, ends, content = merged.take(pa.Array.from_buffers(pa.int64(), len(stays), [None, pa.py_buffer(stays)])).buffers()
    sizes = np.diff(np.frombuffer(ends, np.int64)[: len(stays) + 1])
    writing.write_vocabulary(folder, np.frombuffer(content or b"", np.uint8)[: sizes.sum()], sizes, ids)
    counted, codes, tokens = writing.PairCounts(), [], 0
    for source, kept in zip(sources, every_kept, strict=True):
        frequency_C, length_C = source.code_table.T
        codes.append((np.flatnonzero(kept.count_C), frequency_C, formula.length_bytes(length_C)))
        counted.add_counted(frequency_C.astype(np.int64) << 8 | codes[-1][-1], kept.count_C)
        tokens += int(kept.count_C @ frequency_C.astype(np.int64))
    table, rows = counted.table(), []
    for occurs, frequency_C, byte_C in codes:
        rows.append(np.zeros(len(byte_C), np.int32))
        rows[-1][occurs] = table.rows(occurs.astype(np.int32), np.ascontiguousarray(frequency_C[occurs]), byte_C)
    writing.write_totals(folder, tokens, sum(int(np.count_nonzero(kept.has_terms_P)) for kept in every_kept))
    postings = _postings(sources, numbers, [id_M[place_V] for place_V in place_VM], rows, offsets, at_a_time)
    writing.write_postings(folder, offsets, table.pairs, postings)
    return writing.IndexCounts(passages, len(ids), int(offsets[-1]), tokens)


def _kept(arrays: Arrays, number_P: NDArray[np.int32]) -> _PostingCounts:
    """Check the postings of a source, and count those that are kept."""
    arrays.check(len(number_P))
    terms = len(arrays.offsets) - 1
    kept = _PostingCounts(
        np.zeros(terms, np.int64),
        np.full(terms, np.iinfo(np.int64).max),
        np.zeros(len(arrays.code_table), np.int64),
        np.zeros(len(number_P), np.bool_),
    )
    _count_kept(arrays.offsets, arrays.passages, arrays.posting_codes, number_P, kept)
    return kept


def _merged_terms(sources: Sequence[Arrays]) -> tuple[pa.Array, list[NDArray[np.int64]]]:
    """Return all terms in byte order, and the place of each term of each source, by its id, among them."""
    import pyarrow.compute as pc

    terms_S = []
    for arrays in sources:
        ends = np.concatenate([[0], arrays.term_ends])
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(arrays.vocabulary))]
        terms_S.append(pa.Array.from_buffers(pa.large_binary(), len(arrays.term_ends), buffers))
    merged = pc.unique(pa.concat_arrays(terms_S))
    merged = merged.take(pc.sort_indices(merged))
    place_VM = []
    for arrays, terms in zip(sources, terms_S, strict=True):
        place_V = np.empty(len(terms), np.int64)
        place_V[arrays.term_ids] = np.from_dlpack(pc.index_in(terms, value_set=merged))
        place_VM.append(place_V)
    return merged, place_VM


def _postings(
    sources: Sequence[Arrays],
    numbers: Sequence[NDArray[np.int32]],
    ids: Sequence[NDArray[np.int64]],
    rows: Sequence[NDArray[np.int32]],
    offsets: NDArray[np.int64],
    at_a_time: int,
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Yield the kept postings, by term: new numbers of passages, and rows of the new code table."""
    old_terms = []
    for id_V in ids:  # the id in a source of each new term
        stays = np.flatnonzero(id_V != _NO_TERM)
        old = np.full(len(offsets) - 1, _NO_TERM, np.int64)
        old[id_V[stays]] = stays
        old_terms.append(old)
    for first, last in writing.term_ranges(offsets, at_a_time):
        merged, codes = np.empty((2, offsets[last] - offsets[first]), np.int32)
        begins = offsets[first:last] - offsets[first]
        ends = begins.copy()
        for arrays, number_P, old, row_C in zip(sources, numbers, old_terms, rows, strict=True):
            _insert_postings(
                old[first:last], arrays.offsets, arrays.passages, arrays.posting_codes, number_P, row_C, begins, ends,
                merged, codes,
            )  # fmt: skip
        yield merged, codes


@kernels.kernel
def _count_kept(
    offsets: NDArray[np.int64],
    passages: NDArray[np.int32],
    codes: PostingCodes,
    number_P: NDArray[np.int32],
    kept: _PostingCounts,
) -> None:
    """Count the kept postings by term and by row of the code table, and note the first passage of each term."""
    for term in range(len(kept.frequency_V)):
        for posting in range(offsets[term], offsets[term + 1]):
            number = number_P[passages[posting]]
            if number == NOT_KEPT:
                continue
            kept.first_V[term] = min(kept.first_V[term], number)
            kept.frequency_V[term] += 1
            kept.count_C[row_of(codes.codes, codes.escaped, codes.escaped_rows, posting)] += 1
            kept.has_terms_P[passages[posting]] = True


@kernels.kernel
def _insert_postings(
    old: NDArray[np.int64],
    offsets: NDArray[np.int64],
    passages: NDArray[np.int32],
    codes: PostingCodes,
    number_P: NDArray[np.int32],
    row_C: NDArray[np.int32],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    numbers: NDArray[np.int32],
    rows: NDArray[np.int32],
) -> None:
    """Insert kept postings among those from `begins` to `ends`, from the last to the first: each moves once."""
    for place in range(len(old)):
        if old[place] == _NO_TERM:
            continue
        first, last = offsets[old[place]], offsets[old[place] + 1]
        key, kept = np.empty(last - first, np.int64), 0
        rises = True
        for posting in range(first, last):
            number = number_P[passages[posting]]
            if number != NOT_KEPT:
                row = row_C[row_of(codes.codes, codes.escaped, codes.escaped_rows, posting)]
                key[kept] = np.int64(number) << 32 | row
                rises &= kept == 0 or key[kept - 1] < key[kept]
                kept += 1
        if not rises:
            key[:kept].sort()
        before, to = ends[place] - 1, ends[place] + kept - 1
        for i in range(kept - 1, -1, -1):
            number = key[i] >> 32
            while before >= begins[place] and numbers[before] > number:
                numbers[to], rows[to] = numbers[before], rows[before]
                before -= 1
                to -= 1
            numbers[to], rows[to] = number, key[i] & 0xFFFFFFFF
            to -= 1
        ends[place] += kept
