"""Continuous batching: one thread reads the texts of all requests together, step after step.

A step reads the last token of each text that grew by one, a chunk of the texts that are new or changed, and then as
many tokens of sequences to score. A thread that samples a token asks again soon, so a step waits a little for it; a
thread that retrieves for longer misses a step, and its texts stay in the cache. If a batch fails, each line is read
alone, so that only the failing ones raise. If the thread itself fails, all calls fail from then on.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, cast

import numpy as np

from ralm.errors import ModelError
from ralm.protocols import WritingModel
from ralm.reading.sampling import draw_token, draw_tokens
from ralm.records import Draw, Drawn, FloatArray, IntArray, NextTokens, ScoringSequence
from ralm.serving.errors import StoppedError

_LOG: Final = logging.getLogger(__name__)
_PATIENCE: Final = 0.2
"""How long a step waits for threads of the step before, as a fraction of the duration of a step."""
_STEPS_HELD: Final = 64
"""Number of steps for which unused texts stay in the cache."""

_TORCH_OUT_OF_MEMORY: Final = "OutOfMemoryError"

_Read: TypeAlias = Callable[[Sequence[ScoringSequence]], Iterable[FloatArray]]
"""`score` or `distributions` of a model."""


@dataclass(slots=True, eq=False)
class Line:
    """The texts (int64) that one thread continues, and how many tokens of each are read.

    `gone` ends its request. It waits for what its `draws` draw, or without them for the predictions. `held` are the
    texts in the cache of the model. Without an `answer` and `texts` the thread waits for nothing.
    """

    gone: threading.Event = field(default_factory=threading.Event)
    answer: "Future[NextTokens | list[Drawn]] | None" = None
    texts: Sequence[IntArray] = ()
    draws: Sequence[Draw] | None = None
    held: Sequence[IntArray] = ()
    read: list[int] = field(default_factory=list)
    steps_idle: int = 0

    def wait_for(
        self, texts: Sequence[IntArray], known: Callable[[IntArray], int], draws: Sequence[Draw] | None = None
    ) -> "Future[NextTokens | list[Drawn]]":
        """Wait for the next tokens of these texts. The held texts that they begin with are read already, and so are the
        first `known` tokens of any other text."""
        self.texts, self.draws = texts, draws
        self.read = [self._known(place, text, known) for place, text in enumerate(texts)]
        self.answer = Future()
        return self.answer

    def succeed(self, given: NextTokens | list[Drawn]) -> None:
        """Give the thread its predictions; the texts stay in the cache."""
        assert self.answer is not None
        answer, self.answer, self.steps_idle = self.answer, None, 0
        self.texts, self.read = (), []
        answer.set_result(given)

    def fail(self, error: Exception) -> None:
        """Raise an error in the thread."""
        assert self.answer is not None
        answer, self.answer = self.answer, None
        self.texts = ()
        self.drop()
        answer.set_exception(error)

    def drop(self) -> None:
        """Forget the held texts."""
        self.held, self.read = (), [0] * len(self.texts)

    @property
    def left(self) -> int:
        """The number of unread tokens."""
        return sum(len(text) - read for text, read in zip(self.texts, self.read, strict=True))

    @property
    def grew(self) -> bool:
        """Whether no text has more than one unread token."""
        return all(len(text) - read <= 1 for text, read in zip(self.texts, self.read, strict=True))

    @property
    def columns(self) -> int:
        """The length of the longest text."""
        return max(map(len, self.texts or self.held), default=0)

    def advance(self, tokens: int) -> None:
        """Read this many tokens more, those of the first texts first."""
        for place, text in enumerate(self.texts):
            new = min(tokens, len(text) - self.read[place])
            self.read[place] += new
            tokens -= new
        self.held = [text[:read] for text, read in zip(self.texts, self.read, strict=True) if read]

    @property
    def complete(self) -> bool:
        """Whether all texts are read to their ends."""
        return all(read == len(text) for text, read in zip(self.texts, self.read, strict=True))

    def _known(self, place: int, text: IntArray, known: Callable[[IntArray], int]) -> int:
        """The tokens of a text that need not be read; its last token is always read again."""
        begun = self.held[place : place + 1] if place < len(self.held) else ()
        for held in (*begun, *self.held):
            if np.array_equal(held, text[: len(held)]):
                return min(len(held), len(text) - 1)
        return known(text[:-1])


@dataclass(slots=True, eq=False)
class _Scoring:
    """Sequences that a thread waits for, and the results so far."""

    read: _Read
    sequences: Sequence[ScoringSequence]
    gone: threading.Event
    answer: "Future[list[FloatArray]]" = field(default_factory=Future)
    found: list[FloatArray] = field(default_factory=list)

    @property
    def next(self) -> ScoringSequence:
        return self.sequences[len(self.found)]


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
        self._known: Callable[[IntArray], int] | None = getattr(self._continuations, "known", None)
        self._lines: list[Line] = []
        self._left: deque[Line] = deque()
        self._scoring: deque[_Scoring] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._step_seconds = 0.0
        self._failures_logged: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="ralm-batch", daemon=True)
        self._thread.start()

    def enter(self, gone: threading.Event) -> Line:
        """A new line, whose calls end with StoppedError once `gone` is set; ModelError if the batcher has failed."""
        line = Line(gone)
        with self._changed:
            self._check_open()
            self._lines.append(line)
        return line

    def leave(self, line: Line) -> None:
        """Drop a line."""
        self._left.append(line)  # without the lock: the garbage collector may call this while this thread holds it

    def next_tokens(self, line: Line, texts: Sequence[IntArray]) -> NextTokens:
        """The predictions for the texts of a line; raises the error of reading them, or that of `enter`."""
        return cast("NextTokens", self._wait(line, texts, None))

    def draw(self, line: Line, texts: Sequence[IntArray], draws: Sequence[Draw]) -> list[Drawn]:
        """The tokens that are drawn from the predictions, with those of all lines; raises what `next_tokens` raises."""
        return cast("list[Drawn]", self._wait(line, texts, draws))

    def _wait(self, line: Line, texts: Sequence[IntArray], draws: Sequence[Draw] | None) -> NextTokens | list[Drawn]:
        known = self._known or (lambda _: 0)
        with self._changed:
            self._check_open()
            answer = line.wait_for(texts, known, draws)
            self._changed.notify_all()
        return answer.result()

    def read(self, read: _Read, sequences: Sequence[ScoringSequence], gone: threading.Event) -> list[FloatArray]:
        """The results of a method of the model for some sequences; raises its error, and what `next_tokens` raises."""
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
            if not self._closed:
                self._changed.wait_for(self._all_are_back, timeout=_PATIENCE * self._step_seconds)
            self._drop_gone()
            lines = self._next_lines()
            scored = self._next_sequences()
        if lines:
            self._read_lines(lines)
        if scored:
            self._score(scored)

    def _waiting(self) -> list[Line]:
        return [line for line in self._lines if line.answer is not None]

    def _all_are_back(self) -> bool:
        """Whether every thread that was answered in the last step asks again, or left."""
        self._drop_left()
        return self._closed or all(line.answer is not None or line.steps_idle != 0 for line in self._lines)

    def _drop_left(self) -> None:
        with suppress(IndexError):
            while True:
                line = self._left.popleft()
                if line in self._lines:
                    self._lines.remove(line)

    def _drop_gone(self) -> None:
        """End the calls of requests that are gone; all calls once the batcher is closed or has failed."""
        self._drop_left()
        is_over = self._end() is not None
        for line in self._waiting():
            if is_over or line.gone.is_set():
                line.fail(self._end() or StoppedError())
        for scoring in [one for one in self._scoring if is_over or one.gone.is_set()]:
            self._scoring.remove(scoring)
            scoring.answer.set_exception(self._end() or StoppedError())

    def _next_lines(self) -> list[Line]:
        """The lines that are read or stay in the cache in the next step, advanced."""
        waiting = self._waiting()
        if not waiting:
            return []
        idle = [line for line in self._lines if line.answer is None and line.held]
        for line in idle:
            line.steps_idle += 1
        held = [line for line in idle if self._known is not None and line.steps_idle <= _STEPS_HELD]
        taken = lines_that_fit([*waiting, *held], self._cache)
        for line in self._lines:
            if line not in taken:
                line.drop()
        self._advance([line for line in taken if line.answer is not None])
        return taken

    def _advance(self, lines: Sequence[Line]) -> None:
        """Advance lines: to the end those that grew by a token, and the others by their share of the chunk."""
        new = [line for line in lines if not line.grew]
        chunk = self._chunk if self._known is not None else sum(line.left for line in new)
        for line, share in zip(new, chunk_shares([line.left for line in new], chunk), strict=True):
            line.advance(share)
        for line in lines:
            if line not in new:
                line.advance(line.left)

    def _read_lines(self, lines: Sequence[Line]) -> None:
        begin = time.perf_counter()
        try:
            self._answer(lines)
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

    def _answer(self, lines: Sequence[Line]) -> None:
        """Read the held texts of lines, and answer the complete ones."""
        texts = {text.tobytes(): text for line in lines for text in line.held}
        rows = {text: row for row, text in enumerate(texts)}
        ready = [line for line in lines if line.answer is not None and line.complete]
        answers = self._next_tokens(
            [*texts.values()], ready, [[rows[one.tobytes()] for one in line.held] for line in ready]
        )
        self.counts.texts += len(texts)
        for line, answer in zip(ready, answers, strict=True):
            line.succeed(answer)

    def _next_tokens(
        self, texts: Sequence[IntArray], lines: Sequence[Line], rows: Sequence[Sequence[int]]
    ) -> list[NextTokens | list[Drawn]]:
        """Read texts; the answer to each line, which waits for some of the rows."""
        draws = [
            [replace(draw, rows=[own[row] for row in draw.rows]) for draw in line.draws or ()]
            for line, own in zip(lines, rows, strict=True)
        ]
        if all(line.draws is not None for line in lines):
            drawn = iter(draw_tokens(self._continuations, texts, [draw for own in draws for draw in own]))
            return [[next(drawn) for _ in own] for own in draws]
        given = self._continuations.next_tokens(texts)
        return [
            given.of(own) if line.draws is None else [draw_token(given.of(draw.rows), draw) for draw in some]
            for line, own, some in zip(lines, rows, draws, strict=True)
        ]

    def _read_alone(self, lines: Sequence[Line]) -> None:
        """Read the waiting lines one by one and whole; failing ones get the error."""
        for line in lines:
            self._continuations = self._model.continuations()
            line.drop()
            if line.answer is None:
                continue
            try:
                [answer] = self._next_tokens(line.texts, [line], [range(len(line.texts))])
                line.succeed(answer)
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
            same = sorted((one for one in taken if one.read == read), key=lambda one: -len(one.next))
            found: list[FloatArray | Exception]
            try:
                found = [*read([scoring.next for scoring in same])]
            except Exception as error:  # noqa: BLE001  # raised in the threads that it belongs to
                self._log_failure(len(same), error)
                found = [_read_alone_sequence(scoring) for scoring in same]
            for scoring, one in zip(same, found, strict=True):
                self._scored(scoring, one)

    def _scored(self, scoring: _Scoring, found: FloatArray | Exception) -> None:
        """Keep a result; a thread that waits for more goes to the end of the queue."""
        self.counts.passes += 1
        with self._changed:
            self._scoring.remove(scoring)
            if isinstance(found, Exception):
                scoring.answer.set_exception(found)
                return
            scoring.found.append(found)
            if len(scoring.found) < len(scoring.sequences):
                self._scoring.append(scoring)
            else:
                scoring.answer.set_result(scoring.found)


def _read_alone_sequence(scoring: _Scoring) -> FloatArray | Exception:
    """The result of the next sequence, read alone, or its error."""
    try:
        [found] = scoring.read([scoring.next])
    except Exception as error:  # noqa: BLE001  # raised in the thread that waits for it
        return error
    return found


def chunk_shares(wanted: Sequence[int], most: int) -> list[int]:
    """`most` tokens divided among `wanted` numbers, the oldest first: half to the oldest, the rest to the smallest.

    So short texts are soon read, and long ones do not wait for ever.
    """
    places = range(len(wanted))
    oldest = _poured(wanted, places, most - most // 2)
    left = [want - given for want, given in zip(wanted, oldest, strict=True)]
    smallest = _poured(left, sorted(places, key=left.__getitem__), most - sum(oldest))
    return [first + more for first, more in zip(oldest, smallest, strict=True)]


def _poured(wanted: Sequence[int], order: Iterable[int], most: int) -> list[int]:
    """`most` tokens divided among `wanted` numbers: each in this order gets as much of the rest as it wants."""
    given = [0] * len(wanted)
    for place in order:
        given[place] = min(wanted[place], most)
        most -= given[place]
    return given


def lines_that_fit(lines: Iterable[Line], tokens: int) -> list[Line]:
    """The lines, in order, whose padded texts fit into a cache of this many tokens; always the first."""
    fit: list[Line] = []
    rows = longest = 0
    for line in lines:
        more = rows + len(line.texts or line.held)
        wide = max(longest, line.columns)
        if not fit or more * wide <= tokens:
            fit.append(line)
            rows, longest = more, wide
    return fit
