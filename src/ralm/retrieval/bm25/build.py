"""Builds the arrays of a BM25 index from a stream of passages, in bounded memory.

Passages are analysed in batches, and their term ids collect in a buffer. A full buffer becomes a sorted run on disk,
and at the end the runs are merged (`ralm.retrieval.bm25.writing`). Only the vocabulary, and one byte per passage, grow
in memory with the corpus.
"""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.errors import CorpusError
from ralm.retrieval.analysis import ENGLISH, Analysis
from ralm.retrieval.bm25 import formula, kernels, writing
from ralm.retrieval.bm25.words import Ids, WordIds

_PASSAGES_A_BATCH: Final = 1024
_CHARACTERS_A_BATCH: Final = 1 << 20


class BM25Builder:
    """A writer of the arrays of passages into `folder`: call `add` for each passage in order, then `finish`."""

    def __init__(self, folder: Path, build: formula.BuildOptions | None = None, analysis: Analysis = ENGLISH) -> None:
        build = build or formula.BuildOptions()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._capacity = build.buffered_terms
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
        writing.write_vocabulary(self._folder, *_in_byte_order(vocabulary))
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


def _in_byte_order(vocabulary: dict[str, int]) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int32]]:
    """Return the terms of a vocabulary in byte order: their bytes, the size of each, and its id."""
    terms = sorted(vocabulary)  # the order of UTF-8 bytes is that of the characters
    texts = [term.encode("utf-8", "surrogatepass") for term in terms]
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    ids = np.fromiter(map(vocabulary.__getitem__, terms), np.int32, len(terms))
    return np.frombuffer(b"".join(texts), np.uint8), sizes, ids
