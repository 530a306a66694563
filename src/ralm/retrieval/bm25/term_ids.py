"""Numbers the terms of passages, in this process or shared among worker processes.

The id of a term is its position in the order in which terms are first seen, so it does not matter which process
computes it. Worker processes number terms on their own and report new terms. This process renumbers those, text by text
in the original order.

A worker process imports this module alone: it does not need what writes an index.
"""

import os
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ralm.errors import WorkerError
from ralm.processes import end_with_parent, starting_processes
from ralm.retrieval.analysis import ENGLISH, Analysis
from ralm.retrieval.bm25.words import WordIds

Ids: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int64]]
"""The term ids of some texts, concatenated, and how many each text has."""

_BATCHES_ALONE: Final = 16
"""Batches that are analysed here before worker processes are started, so that small corpora do not wait for them."""
_MAX_WORKER_TERMS: Final = 1 << 20
"""Terms after which a worker process begins a new numbering, so that its memory is bounded."""


class TermIds:
    """The vocabulary of a corpus and the ids of its texts, which are submitted batch by batch.

    With `workers` above 1, that many processes share the work; call `close` at the end.
    """

    def __init__(self, workers: int = 1, analysis: Analysis = ENGLISH) -> None:
        self.vocabulary: dict[str, int] = {}
        self._analysis = analysis
        self._here = WordIds(self.vocabulary, analysis)
        self._workers = workers
        self._batches = 0
        self._pool: ProcessPoolExecutor | None = None
        self._pending: deque[Future[_WorkerResult]] = deque()
        self._ids_of_worker: dict[int, array[int]] = {}

    def submit(self, texts: Sequence[str]) -> Iterator[Ids]:
        """Submit a batch of texts; yields the ids of the batches that are done, in order.

        Raises WorkerError if a process died.
        """
        self._batches += 1
        if self._workers == 1 or self._batches <= _BATCHES_ALONE:
            yield self._here.of_texts(texts)
            return
        if self._pool is None:
            self._here.clear()
            with starting_processes():
                self._pool = ProcessPoolExecutor(
                    self._workers, get_context("spawn"), initializer=_start_worker, initargs=(self._analysis,)
                )
        with _dead_workers_reported(), starting_processes():
            self._pending.append(self._pool.submit(_analyse_batch, texts))
        while len(self._pending) > 2 * self._workers:
            yield self._next()

    def drain(self) -> Iterator[Ids]:
        """Wait for the remaining batches; yields their ids."""
        while self._pending:
            yield self._next()

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _next(self) -> Ids:
        with _dead_workers_reported():
            result = self._pending.popleft().result()
        if result.is_new_numbering:
            self._ids_of_worker.pop(result.process, None)
        ids = self._ids_of_worker.setdefault(result.process, array("i"))
        vocabulary = self.vocabulary
        ids.extend([vocabulary.setdefault(term, len(vocabulary)) for term in result.new_terms])
        return np.frombuffer(ids, np.int32)[result.ids] if ids else result.ids, result.sizes


@contextmanager
def _dead_workers_reported() -> Iterator[None]:
    """Raise WorkerError if a worker process has died."""
    try:
        yield
    except BrokenProcessPool:
        raise WorkerError(
            "a process that analyses the passages has died, perhaps because memory ran out: run again with fewer "
            '`workers`. A script of your own needs `if __name__ == "__main__":` around what it runs.'
        ) from None


@dataclass(frozen=True, slots=True)
class _WorkerResult:
    """A batch of a worker process: ids in its own numbering, which may be a new one, and terms that were new to it."""

    process: int
    is_new_numbering: bool
    new_terms: list[str]
    ids: NDArray[np.int32]
    sizes: NDArray[np.int64]


def _start_worker(analysis: Analysis) -> None:
    """Prepare a worker process."""
    global _worker_ids
    end_with_parent()
    _worker_ids = WordIds({}, analysis)


_worker_ids: WordIds


def _analyse_batch(texts: Sequence[str]) -> _WorkerResult:
    """Analyse a batch in a worker process."""
    vocabulary = _worker_ids._vocabulary
    is_new_numbering = len(vocabulary) > _MAX_WORKER_TERMS
    if is_new_numbering:
        vocabulary.clear()
        _worker_ids.clear()
    before = len(vocabulary)
    ids, sizes = _worker_ids.of_texts(texts)
    return _WorkerResult(os.getpid(), is_new_numbering, list(vocabulary)[before:], ids, sizes)
