"""Continuous batching: one thread reads the texts of all requests together, step after step.

A step reads the last token of each text that grew by one, a chunk of the texts that are new or changed, and then as
many tokens of sequences to score. A thread that samples a token asks again soon, so a step waits a little for it; a
thread that retrieves for longer misses a step, and its texts stay in the cache. If a batch fails, each line is read
alone, so that only the failing ones raise. If the thread itself fails, all calls fail from then on.
"""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter
from typing import Final, TypeAlias
from weakref import WeakSet

import numpy as np

from ralm.errors import DeviceMemoryError, ModelError
from ralm.protocols import WritingModel
from ralm.reading.sampling import draw_tokens
from ralm.records import Draw, Drawn, FloatArray, IntArray, ScoringSequence
from ralm.serving.errors import StoppedError

_LOG: Final = logging.getLogger(__name__)
_PATIENCE: Final = 0.2
"""How long a step waits for threads of the step before, as a fraction of the duration of a step."""
_STEPS_HELD: Final = 64
"""Number of steps for which unused texts stay in the cache."""

_TORCH_OUT_OF_MEMORY: Final = "OutOfMemoryError"

_Read: TypeAlias = Callable[[Sequence[ScoringSequence]], Iterable[FloatArray]]
"""`score` or `distributions` of a model."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Line:
    """The texts (int64) that one thread continues, and how many tokens of each the cache of the model has read. The
    thread waits for the `answer`, what its `draws` draw; without one it waits for nothing. `gone` ends its request."""

    number: int
    gone: threading.Event
    texts: Sequence[IntArray] = ()
    draws: Sequence[Draw] = ()
    read: list[int] = field(default_factory=list)
    answer: "Future[list[Drawn]] | None" = None
    steps_idle: int = 1
    """Steps since the answer before; the thread is expected back after 0."""

    def wait_for(
        self, texts: Sequence[IntArray], draws: Sequence[Draw], known: Callable[[IntArray], int]
    ) -> "Future[list[Drawn]]":
        """Wait for draws. Of each text are read what it shares with a text before, and else `known` tokens."""
        read = [self._known(place, text, known) for place, text in enumerate(texts)]
        self.texts, self.draws, self.read, self.answer = texts, draws, read, Future()
        return self.answer

    def succeed(self, drawn: list[Drawn]) -> None:
        """Give the thread what is drawn; the texts stay in the cache."""
        assert self.answer is not None
        answer, self.answer, self.steps_idle = self.answer, None, 0
        answer.set_result(drawn)

    def fail(self, error: Exception) -> None:
        """Raise an error in the thread."""
        assert self.answer is not None
        answer, self.answer = self.answer, None
        self.drop()
        answer.set_exception(error)

    def drop(self) -> None:
        """Forget that texts are in the cache."""
        self.read, self.steps_idle = [0] * len(self.texts), 1

    @property
    def held(self) -> list[IntArray]:
        """What is read of each text."""
        return [text[:read] for text, read in zip(self.texts, self.read, strict=True) if read]

    @property
    def unread(self) -> list[int]:
        """The number of unread tokens of each text."""
        return [len(text) - read for text, read in zip(self.texts, self.read, strict=True)]

    def advance(self, tokens: int) -> None:
        """Read this many tokens more, those of the first texts first."""
        for place, unread in enumerate(self.unread):
            self.read[place] += min(tokens, unread)
            tokens -= min(tokens, unread)

    def _known(self, place: int, text: IntArray, known: Callable[[IntArray], int]) -> int:
        """Return how many tokens of a text need not be read; its last token is always read again."""
        held = self.held
        for beginning in (*held[place : place + 1], *held):
            if np.array_equal(beginning, text[: len(beginning)]):
                return min(len(beginning), len(text) - 1)
        return known(text[:-1])


@dataclass(slots=True, eq=False)
class _Scoring:
    """Sequences that a thread waits for, and the results so far."""

    read: _Read
    sequences: Sequence[ScoringSequence]
    gone: threading.Event
    answer: "Future[list[FloatArray]]" = field(default_factory=Future)
    results: list[FloatArray] = field(default_factory=list)

    @property
    def next(self) -> ScoringSequence:
        return self.sequences[len(self.results)]


@dataclass(slots=True)
class Counts:
    """The work so far: steps, their texts and seconds, and scored sequences."""

    steps: int = 0
    texts: int = 0
    seconds: float = 0.0
    passes: int = 0


class Batcher:
    """Reads for other threads, in a thread of its own, until it is closed.

    A step reads at most `chunk` tokens of new texts, and of sequences to score (at least one sequence). The cache of
    the model holds at most `cache` tokens, padding included; lines that do not fit wait, the oldest go first. `failed`
    is the error that ended the thread, if any.
    """

    def __init__(self, model: WritingModel, chunk: int, cache: int) -> None:
        self.counts = Counts()
        self.failed: BaseException | None = None
        self._model = model
        self._chunk = chunk
        self._cache = cache
        self._continuations = model.continuations()
        self._cuts = hasattr(self._continuations, "known")
        self._lines = WeakSet[Line]()  # a thread that ended leaves it
        self._numbers = count()
        self._scoring: deque[_Scoring] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._step_seconds = 0.0
        self._failures_logged: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="ralm-batch", daemon=True)
        self._thread.start()

    def enter(self, gone: threading.Event) -> Line:
        """Return a new line, whose calls end with StoppedError once `gone` is set; ModelError if the batcher failed."""
        with self._changed:
            self._check_open()
            line = Line(next(self._numbers), gone)
            self._lines.add(line)
        return line

    def draw(self, line: Line, texts: Sequence[IntArray], draws: Sequence[Draw]) -> list[Drawn]:
        """Return what is drawn after the texts of a line; raises the error of reading them, or that of `enter`."""
        with self._changed:
            self._check_open()
            known: Callable[[IntArray], int] = getattr(self._continuations, "known", lambda _: 0)
            answer = line.wait_for(texts, draws, known)
            self._changed.notify_all()
        return answer.result()

    def read(self, read: _Read, sequences: Sequence[ScoringSequence], gone: threading.Event) -> list[FloatArray]:
        """Return the results of a method of the model for some sequences; raises its error, and that of `enter`."""
        scoring = _Scoring(read, sequences, gone)
        with self._changed:
            self._check_open()
            self._scoring.append(scoring)
            self._changed.notify_all()
        return scoring.answer.result()

    def close(self) -> None:
        """End the thread after its current step; threads that wait get StoppedError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _end(self) -> Exception | None:
        """The error for threads that wait when the batcher is closed or has failed; None before."""
        if self.failed is None:
            return StoppedError() if self._closed else None
        error = ModelError(f"the batcher of the model has failed: {self.failed!r}; restart the server.")
        error.__cause__ = self.failed
        return error

    def _check_open(self) -> None:
        if (error := self._end()) is not None:
            raise error

    def _run(self) -> None:
        try:
            while not self._closed:
                self._step()
        except BaseException as error:  # noqa: BLE001  # raised in all threads that wait
            _LOG.critical("the batcher of the model has failed; restart the server", exc_info=error)
            self.failed = error
        with self._changed:
            self._drop_gone()

    def _step(self) -> None:
        """Wait for work, and do some of it."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting() or self._scoring)
            self._changed.wait_for(self._all_are_back, timeout=_PATIENCE * self._step_seconds)
            self._drop_gone()
            lines = self._next_lines()
            held = [text for line in lines for text in line.held]
            scored = self._next_sequences()
        if lines:
            self._read_lines(lines, held)
        if scored:
            self._score(scored)

    def _waiting(self) -> list[Line]:
        return [line for line in self._in_order() if line.answer is not None]

    def _in_order(self) -> list[Line]:
        """Return all lines, the oldest first."""
        return sorted(self._lines, key=attrgetter("number"))

    def _all_are_back(self) -> bool:
        """Return whether every thread that was answered in the last step asks again, or left."""
        return self._closed or all(line.answer is not None or line.steps_idle != 0 for line in self._lines)

    def _drop_gone(self) -> None:
        """End the calls of requests that are gone; all calls once the batcher is closed or has failed."""
        is_over = self._end() is not None
        for line in self._waiting():
            if is_over or line.gone.is_set():
                line.fail(self._end() or StoppedError())
        for scoring in [scoring for scoring in self._scoring if is_over or scoring.gone.is_set()]:
            self._scoring.remove(scoring)
            scoring.answer.set_exception(self._end() or StoppedError())

    def _next_lines(self) -> list[Line]:
        """Return the lines that are read or stay in the cache in the next step, advanced: to the end those that grew
        by a token, and the others by their share of the chunk."""
        waiting = self._waiting()
        if not waiting:
            return []
        idle = [line for line in self._in_order() if line.answer is None and any(line.read)]
        for line in idle:
            line.steps_idle += 1
        held = [line for line in idle if self._cuts and line.steps_idle <= _STEPS_HELD]
        taken = lines_that_fit([*waiting, *held], self._cache)
        for line in {*waiting, *idle} - {*taken}:
            line.drop()
        new = [line for line in taken if max(line.unread, default=0) > 1]
        chunk = self._chunk if self._cuts else sys.maxsize
        shares = dict(zip(new, chunk_shares([sum(line.unread) for line in new], chunk), strict=True))
        for line in taken:
            line.advance(shares.get(line, sys.maxsize))
        return taken

    def _read_lines(self, lines: Sequence[Line], held: Sequence[IntArray]) -> None:
        begin = time.perf_counter()
        try:
            self._answer(lines, held)
        except DeviceMemoryError as error:
            self._cache = len(held) * max(map(len, held)) // 2
            _LOG.warning(
                "%s From now on at most %d tokens are held at once, and other requests wait.", error, self._cache
            )
            self._read_alone(lines)
        except Exception as error:  # noqa: BLE001  # raised in the threads that it belongs to
            self._log_failure(len(lines), error)
            self._read_alone(lines)
        self._step_seconds = time.perf_counter() - begin
        self.counts.seconds += self._step_seconds
        self.counts.steps += 1

    def _log_failure(self, count: int, error: Exception) -> None:
        """Warn once of an error that neither a text nor a lack of memory explains; reading alone may hide it."""
        first, _, _ = str(error).partition("\n")
        what = f"{type(error).__name__}: {first}"
        # torch has an OutOfMemoryError of its own, and serving does not import torch
        expected = isinstance(error, (ModelError, MemoryError)) or type(error).__name__ == _TORCH_OUT_OF_MEMORY
        level = logging.DEBUG if expected or what in self._failures_logged else logging.WARNING
        self._failures_logged.add(what)
        _LOG.log(level, "reading %d texts together failed (%s); each is read alone, which is slower", count, what)
        _LOG.debug("the failure was:", exc_info=error)

    def _answer(self, lines: Sequence[Line], held: Sequence[IntArray]) -> None:
        """Read the held texts of lines, and answer the complete ones."""
        texts = {text.tobytes(): text for text in held}
        rows = {text: row for row, text in enumerate(texts)}
        ready = [line for line in lines if line.answer is not None and not any(line.unread)]
        draws = [
            replace(draw, rows=[rows[line.texts[row].tobytes()] for row in draw.rows])
            for line in ready
            for draw in line.draws
        ]
        drawn = iter(draw_tokens(self._continuations, [*texts.values()], draws))
        self.counts.texts += len(texts)
        for line in ready:
            line.succeed([next(drawn) for _ in line.draws])

    def _read_alone(self, lines: Sequence[Line]) -> None:
        """Read the waiting lines one by one and whole; failing ones get the error."""
        for line in lines:
            self._continuations = self._model.continuations()
            with self._changed:  # a thread that waits for nothing may ask at any time
                line.drop()
            if line.answer is None:
                continue
            try:
                line.advance(sys.maxsize)
                self._answer([line], line.texts)
            except Exception as error:  # noqa: BLE001  # raised in the thread that waits for it
                line.fail(error)

    def _next_sequences(self) -> list[_Scoring]:
        """The threads whose next sequence is read now: one of each in turn, as many as a chunk holds, at least one."""
        taken: list[_Scoring] = []
        tokens = 0
        for scoring in self._scoring:
            tokens += len(scoring.next)
            if taken and tokens > self._chunk:
                break
            taken.append(scoring)
        return taken

    def _score(self, taken: Sequence[_Scoring]) -> None:
        """Read the next sequence of each."""
        for read in {scoring.read for scoring in taken}:
            same = sorted((scoring for scoring in taken if scoring.read == read), key=lambda one: -len(one.next))
            try:
                results = [*read([scoring.next for scoring in same])]
            except Exception as error:  # noqa: BLE001  # raised in the threads that it belongs to
                if len(same) > 1:
                    self._log_failure(len(same), error)
                    for scoring in same:
                        self._score([scoring])
                else:
                    self._scored(same[0], error)
            else:
                for scoring, result in zip(same, results, strict=True):
                    self._scored(scoring, result)

    def _scored(self, scoring: _Scoring, result: FloatArray | Exception) -> None:
        """Keep a result; a thread that waits for more goes to the end of the queue."""
        self.counts.passes += 1
        with self._changed:
            self._scoring.remove(scoring)
            if isinstance(result, Exception):
                scoring.answer.set_exception(result)
                return
            scoring.results.append(result)
            if len(scoring.results) < len(scoring.sequences):
                self._scoring.append(scoring)
            else:
                scoring.answer.set_result(scoring.results)


def chunk_shares(unread: Sequence[int], chunk: int) -> list[int]:
    """Divide a chunk among lines with so many unread tokens: half to the oldest, the rest to those with the fewest. So
    short texts are soon read, and long ones do not wait for ever."""
    shares = [0] * len(unread)
    for place, tokens in enumerate(unread):
        shares[place] = min(tokens, chunk - chunk // 2 - sum(shares))
    for place in sorted(range(len(unread)), key=lambda place: unread[place] - shares[place]):
        shares[place] += min(unread[place] - shares[place], chunk - sum(shares))
    return shares


def lines_that_fit(lines: Iterable[Line], tokens: int) -> list[Line]:
    """Return the lines, in order, whose padded texts fit into a cache of this many tokens; always the first."""
    fit: list[Line] = []
    rows = longest = 0
    for line in lines:
        more, wide = rows + len(line.texts), max([longest, *map(len, line.texts)])
        if not fit or more * wide <= tokens:
            fit.append(line)
            rows, longest = more, wide
    return fit
