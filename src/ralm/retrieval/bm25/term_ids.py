"""Turns texts into the ids of their terms, in this process and, once there are many, in worker processes.

An id is the position of a term in the order in which terms are first seen, so it does not matter which process computes
it. Worker processes number terms on their own and report terms that are new to them. This process renumbers those, text
by text in the original order.
"""

import os
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ralm.errors import WorkerError
from ralm.processes import end_with_parent, starting_processes
from ralm.retrieval.analysis import ENGLISH, MOST_TERMS_REMEMBERED, Analysis

Ids: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int64]]
"""The term ids of some texts, concatenated, and how many each text has."""

_ALONE: Final = 16
"""Batches that are analysed here before worker processes are started, so that small corpora do not wait for them."""
_REMEMBERED: Final = 1 << 18
_LONGEST_REMEMBERED: Final = 64
_MOST_TERMS: Final = 1 << 20


class TermIds:
    """The vocabulary of a corpus and the ids of its texts, which are submitted batch by batch.

    With `workers` above 1, that many processes share the work; call `close` at the end.
    """

    def __init__(self, workers: int = 1, analysis: Analysis = ENGLISH) -> None:
        self.vocabulary: dict[str, int] = {}
        self._analysis = analysis
        self._here = _IdsOfRun(self.vocabulary, analysis)
        self._workers = workers
        self._batches = 0
        self._pool: ProcessPoolExecutor | None = None
        self._pending: deque[Future[_Answer]] = deque()
        self._ids_there: dict[int, array[int]] = {}

    def of(self, texts: Sequence[str]) -> Iterator[Ids]:
        """Submit a batch of texts; gives the ids of the batches that are done, in order.

        Raises WorkerError if a process died.
        """
        self._batches += 1
        if self._workers == 1 or self._batches <= _ALONE:
            yield self._here.of(texts)
            return
        if self._pool is None:
            self._here.clear()
            with starting_processes():
                self._pool = ProcessPoolExecutor(
                    self._workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(self._analysis,)
                )
        with _alive(), starting_processes():
            self._pending.append(self._pool.submit(_work, texts))
        while len(self._pending) > 2 * self._workers:
            yield self._next()

    def rest(self) -> Iterator[Ids]:
        """The ids of the batches that are not done yet."""
        while self._pending:
            yield self._next()

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _next(self) -> Ids:
        with _alive():
            answer = self._pending.popleft().result()
        if answer.anew:
            self._ids_there.pop(answer.process, None)
        ids = self._ids_there.setdefault(answer.process, array("i"))
        vocabulary = self.vocabulary
        ids.extend([vocabulary.setdefault(term, len(vocabulary)) for term in answer.new_terms])
        return np.frombuffer(ids, np.int32)[answer.ids] if ids else answer.ids, answer.sizes


@contextmanager
def _alive() -> Iterator[None]:
    """Raise WorkerError if a process has died."""
    try:
        yield
    except BrokenProcessPool:
        raise WorkerError(
            "a process that analyses the passages has died, perhaps because memory ran out; run again with fewer "
            "`workers`."
        ) from None


class _IdsOfRun(dict[str, tuple[int, ...]]):
    """The term ids of a run of characters without white space, cached; new terms enter the vocabulary.

    Most of a text repeats, so this is what makes building fast. The cache is cleared when it is full.
    """

    def __init__(self, vocabulary: dict[str, int], analysis: Analysis) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._terms_of_run = analysis.prepare()

    def __missing__(self, run: str) -> tuple[int, ...]:
        vocabulary = self._vocabulary
        ids = tuple([vocabulary.setdefault(term, len(vocabulary)) for term in self._terms_of_run(run)])
        if len(run) <= _LONGEST_REMEMBERED and len(ids) <= MOST_TERMS_REMEMBERED:
            if len(self) >= _REMEMBERED:
                self.clear()
            self[run] = ids
        return ids

    def of(self, texts: Sequence[str]) -> Ids:
        """The ids of some texts."""
        ids, ends = array("i"), [0]
        for text in texts:
            ids.extend(chain.from_iterable(map(self.__getitem__, text.split())))
            ends.append(len(ids))
        return np.frombuffer(ids, np.int32) if ids else np.zeros(0, np.int32), np.diff(ends)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a worker process made of a batch: ids in its own numbering, and the terms that were new to it.

    `anew`: it cleared its numbering before this batch.
    """

    process: int
    anew: bool
    new_terms: list[str]
    ids: NDArray[np.int32]
    sizes: NDArray[np.int64]


def _begin(analysis: Analysis) -> None:
    """Prepare a worker process."""
    global _there
    end_with_parent()
    _there = _IdsOfRun({}, analysis)


_there: _IdsOfRun


def _work(texts: Sequence[str]) -> _Answer:
    """Analyse a batch in a worker process."""
    vocabulary = _there._vocabulary
    anew = len(vocabulary) > _MOST_TERMS
    if anew:
        vocabulary.clear()
        _there.clear()
    before = len(vocabulary)
    ids, sizes = _there.of(texts)
    return _Answer(os.getpid(), anew, list(vocabulary)[before:], ids, sizes)
