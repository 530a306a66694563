"""Builds the arrays of a BM25 index from a stream of passages, in bounded memory.

Passages are analysed in batches (`ralm.retrieval.bm25.term_ids`). Their terms collect in a buffer. A full buffer
becomes a run on disk, and at the end the runs are merged (`ralm.retrieval.bm25.runs`). Only the vocabulary, and one
byte per passage, grow in memory with the corpus.
"""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from ralm.errors import CorpusError
from ralm.retrieval.analysis import ENGLISH, Analysis
from ralm.retrieval.bm25.best import check_passage_count
from ralm.retrieval.bm25.codes import PairCounts
from ralm.retrieval.bm25.formula import length_bytes
from ralm.retrieval.bm25.options import BuildOptions
from ralm.retrieval.bm25.runs import Run, merged, offsets_of, sort_by_term, write_run
from ralm.retrieval.bm25.term_ids import Ids, TermIds
from ralm.retrieval.bm25.writing import write_postings, write_totals, write_vocabulary

_PASSAGES_A_BATCH: Final = 1024
_CHARACTERS_A_BATCH: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Counts:
    """How much went into an index."""

    passages: int
    terms: int
    postings: int
    tokens: int


class Builder:
    """Collects passages and writes the arrays into `folder`; call `add` for each passage in order, then `finish`.

    `analysis`: how passages become terms. Use it in a `with` block, which ends any worker processes that it started.
    """

    def __init__(self, folder: Path, build: BuildOptions | None = None, analysis: Analysis = ENGLISH) -> None:
        build = build or BuildOptions()
        self._folder = folder
        self._capacity = build.buffered_terms
        self._term_ids = TermIds(build.workers, analysis)
        self._batch: list[str] = []
        self._characters = 0
        self._buffer: list[Ids] = []
        self._buffered = 0
        self._length_bytes = bytearray()
        self._tokens = self._with_terms = 0
        self._pairs = PairCounts()
        self._runs: list[Run] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._term_ids.close()

    def add(self, contents: str) -> None:
        """Index the next passage.

        Raises CorpusError if there are more passages than BM25 can number.
        """
        self._batch.append(contents)
        self._characters += len(contents)
        if self._characters >= _CHARACTERS_A_BATCH or len(self._batch) >= min(_PASSAGES_A_BATCH, self._capacity):
            self._analyse()

    def finish(self) -> Counts:
        """Write the arrays and remove the runs.

        Raises CorpusError if nothing was added, or more passages than BM25 can number.
        """
        self._analyse()
        for ids in self._term_ids.rest():
            self._keep(ids)
        self._spill()
        self._term_ids.close()
        passages = len(self._length_bytes)
        if not passages:
            raise CorpusError("the corpus has no passages: nothing to index.")
        vocabulary = self._term_ids.vocabulary
        write_totals(self._folder, self._tokens, self._with_terms)
        write_vocabulary(self._folder, list(vocabulary))
        table = self._pairs.table()
        offsets = offsets_of(self._runs, len(vocabulary))
        lengths = np.frombuffer(self._length_bytes, np.uint8)
        postings = merged(self._runs, offsets, self._capacity)
        rows = ((numbers, table.rows(numbers, frequencies, lengths)) for numbers, frequencies in postings)
        write_postings(self._folder, offsets, table.pairs, rows)
        for run in self._runs:
            run.file.unlink()
        return Counts(passages, len(vocabulary), int(offsets[-1]), self._tokens)

    def _analyse(self) -> None:
        """Submit the batch, and take the results that are done."""
        batch, self._batch, self._characters = self._batch, [], 0
        if batch:
            for ids in self._term_ids.of(batch):
                self._keep(ids)

    def _keep(self, ids: Ids) -> None:
        """Put the term ids of some passages into the buffer."""
        self._buffer.append(ids)
        self._buffered += max(len(ids[0]), len(ids[1]))
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
        check_passage_count(first + len(lengths))
        self._length_bytes += length_bytes(lengths).tobytes()
        begins = np.concatenate([[0], np.cumsum(lengths)])
        postings = sort_by_term(terms, begins, len(self._term_ids.vocabulary), first)
        self._pairs.add(postings[2] - first, postings[3], length_bytes(lengths))
        self._runs.append(write_run(self._folder / f"run-{len(self._runs)}", *postings))
