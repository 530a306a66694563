"""Continuous batching: the decoder's loop with a queue. One thread reads the texts of all requests, step after step.

Requests join and leave between steps. A step reads the last token of each text that grew by one, a chunk of the texts
that are new, and then as many tokens of sequences to score. The decoder keeps what the texts of the step before have
read, and its blocks what others have, so a request that misses a step continues where it was. If a batch fails, each
request is read alone, so that only the failing ones raise. If the thread itself fails, all calls fail from then on.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter
from typing import Any, Final, TypeAlias

from ralm.errors import DeviceMemoryError, ModelError
from ralm.lm.scoring import groups_that_fit
from ralm.protocols import WritingModel
from ralm.reading.sampling import draw_tokens
from ralm.records import Draw, Drawn, FloatArray, IntArray, ScoringSequence
from ralm.serving.errors import StoppedError

_LOG: Final = logging.getLogger(__name__)
_PATIENCE: Final = 0.2
"""How long a step waits for requests of the step before, as a fraction of the duration of a step."""
_TORCH_OUT_OF_MEMORY: Final = "OutOfMemoryError"

_Check: TypeAlias = Callable[[], None]
"""Raises an error once a request must end."""
_Read: TypeAlias = Callable[[Sequence[ScoringSequence]], Iterable[FloatArray]]
"""`score` or `distributions` of a model."""


@dataclass(slots=True, eq=False)
class _Drawing:
    """What request `number` draws after its texts (int64), and how many tokens of each are read; empty before any."""

    number: int
    check: _Check
    texts: Sequence[IntArray]
    draws: Sequence[Draw]
    read: list[int] = field(default_factory=list)
    answer: "Future[list[Drawn]]" = field(default_factory=Future)

    @property
    def unread(self) -> list[int]:
        """The number of unread tokens of each text."""
        return [len(text) - read for text, read in zip(self.texts, self.read, strict=True)]

    @property
    def beginnings(self) -> list[IntArray]:
        """What is read of each text."""
        return [text[:read] for text, read in zip(self.texts, self.read, strict=True) if read]

    def advance(self, tokens: int) -> int:
        """Read at most so many tokens more, those of the first texts first; return how many remain."""
        for place, unread in enumerate(self.unread):
            self.read[place] += min(tokens, unread)
            tokens -= min(tokens, unread)
        return tokens


@dataclass(slots=True, eq=False)
class _Scoring:
    """A sequence that a request scores."""

    check: _Check
    read: _Read
    sequence: ScoringSequence
    answer: "Future[FloatArray]" = field(default_factory=Future)


class Batcher:
    """Reads for other threads, in a thread of its own, until it is closed.

    A step reads at most `chunk` tokens of new texts, and of sequences to score (at least one sequence). The texts of a
    step have at most `cache` tokens, padding included; requests that do not fit wait, the oldest go first. `failed` is
    the error that ended the thread, if any.
    """

    def __init__(self, model: WritingModel, chunk: int, cache: int) -> None:
        self.failed: BaseException | None = None
        self._model = model
        self._chunk = chunk
        self._cache = cache
        self._continuations: Any = model.continuations()
        self._rows = set[bytes]()
        """The texts that the step before has read, which the continuations still have."""
        self._queue: list[_Drawing | _Scoring] = []
        self._expected = set[int]()
        """The requests of the step before that have not asked again."""
        self._numbers = count()
        self._changed = threading.Condition()
        self._closed = False
        self._steps = 0
        self._patient_until = 0.0
        """When a step begins without the expected requests, by `time.perf_counter`."""
        self._failures_logged: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="ralm-batch", daemon=True)
        self._thread.start()

    def enter(self) -> int:
        """Return the number of a new request; raises StoppedError once closed, and ModelError if the thread failed."""
        self._check_open()
        return next(self._numbers)

    def leave(self, number: int) -> None:
        """Do not expect a request any more."""
        with self._changed:
            self._expected.discard(number)
            self._changed.notify_all()

    def draw(self, number: int, texts: Sequence[IntArray], draws: Sequence[Draw], check: _Check) -> list[Drawn]:
        """Return what request `number` draws after texts; raises the error of reading them, of `check`, or `enter`."""
        if not texts:
            raise ModelError("nothing is drawn without a text: give at least one.")
        drawing = _Drawing(number, check, texts, draws)
        self._ask([drawing])
        return drawing.answer.result()

    def read(self, read: _Read, sequences: Sequence[ScoringSequence], check: _Check) -> list[FloatArray]:
        """Return the results of a method of the model for sequences; raises its error, that of `check`, or `enter`."""
        scorings = [_Scoring(check, read, sequence) for sequence in sequences]
        self._ask(scorings)
        return [scoring.answer.result() for scoring in scorings]

    def close(self) -> None:
        """End the thread after its current step; threads that wait get StoppedError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _ask(self, requests: Sequence[_Drawing | _Scoring]) -> None:
        with self._changed:
            self._check_open()
            self._queue += requests
            self._expected -= {request.number for request in requests if isinstance(request, _Drawing)}
            self._changed.notify_all()

    def _end(self, request: _Drawing | _Scoring, result: Any) -> None:
        """Give the thread of a request its result, or raise the error there."""
        with self._changed:
            self._queue.remove(request)
            if isinstance(result, Exception):
                request.answer.set_exception(result)
                return
            if isinstance(request, _Drawing):
                self._expected.add(request.number)
            request.answer.set_result(result)

    def _check_open(self) -> None:
        if self.failed is not None:
            message = f"the batcher of the model has failed: {self.failed!r}; restart the server."
            raise ModelError(message) from self.failed
        if self._closed:
            raise StoppedError

    def _end_stopped(self) -> None:
        """End the requests that must end; all once the batcher is closed or has failed."""
        for request in [*self._queue]:
            try:
                self._check_open()
                request.check()
            except Exception as error:  # noqa: BLE001  # raised in the thread of the request
                self._end(request, error)

    def _run(self) -> None:
        try:
            while not self._closed:
                self._step()
        except BaseException as error:  # noqa: BLE001  # raised in all threads that wait
            _LOG.critical("the batcher of the model has failed; restart the server", exc_info=error)
            self.failed = error
        with self._changed:
            self._end_stopped()

    def _step(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queue)
            patience = max(0.0, self._patient_until - time.perf_counter())
            self._changed.wait_for(lambda: self._closed or not self._expected, patience)
            self._end_stopped()
            self._expected.clear()
        if drawings := self._next_drawings():
            begin = time.perf_counter()
            self._draw(drawings)
            end = time.perf_counter()
            self._patient_until = end + _PATIENCE * (end - begin)
            self._steps += 1
        scorings = [request for request in self._queue if isinstance(request, _Scoring)]
        self._score(scorings[: _count_that_fit([[len(scoring.sequence)] for scoring in scorings], self._chunk)])

    def _next_drawings(self) -> list[_Drawing]:
        """Return the oldest requests whose texts fit, advanced.

        Those whose texts grew by a token are read to the end, the others by a chunk together. It goes to the oldest and
        to the shortest first in turn, so that short texts are soon read, and long ones do not wait for ever.
        """
        waiting = [request for request in self._queue if isinstance(request, _Drawing)]
        waiting.sort(key=attrgetter("number"))
        taken = waiting[: _count_that_fit([[*map(len, drawing.texts)] for drawing in waiting], self._cache)]
        for drawing in waiting[len(taken) :]:
            drawing.read = []
        for drawing in taken:
            drawing.read = drawing.read or [self._read_before(text) for text in drawing.texts]
        chunk = self._chunk if hasattr(self._continuations, "known") else sys.maxsize
        for drawing in taken if self._steps % 2 else sorted(taken, key=lambda drawing: sum(drawing.unread)):
            if max(drawing.unread, default=0) > 1:
                chunk = drawing.advance(chunk)
            else:
                drawing.advance(sys.maxsize)
        return taken

    def _read_before(self, text: IntArray) -> int:
        """Return how many tokens of a text need not be read; its last token is always read."""
        if text[:-1].tobytes() in self._rows:
            return len(text) - 1
        longest: Callable[[IntArray], int] = getattr(self._continuations, "known", lambda _: 0)
        return longest(text[:-1])

    def _draw(self, drawings: Sequence[_Drawing]) -> None:
        """Answer requests together; if that fails, each alone and from a new beginning."""
        try:
            self._answer(drawings)
            return
        except Exception as error:  # noqa: BLE001  # raised in the threads that it belongs to
            self._log_failure(len(drawings), error)
            if isinstance(error, DeviceMemoryError):
                lengths = [len(text) for drawing in drawings for text in drawing.beginnings]
                self._cache = min(self._cache, len(lengths) * max(lengths) // 2)
                _LOG.warning(
                    "%s From now on a step has at most %d tokens, and other requests wait.", error, self._cache
                )
        for drawing in drawings:
            self._continuations = self._model.continuations()
            drawing.advance(sys.maxsize)
            try:
                self._answer([drawing])
            except Exception as error:  # noqa: BLE001  # raised in the thread that waits for it
                self._end(drawing, error)

    def _answer(self, drawings: Sequence[_Drawing]) -> None:
        """Read the beginnings of texts, and answer the requests that are read to the end."""
        texts = {text.tobytes(): text for drawing in drawings for text in drawing.beginnings}
        rows = {text: row for row, text in enumerate(texts)}
        ready = [drawing for drawing in drawings if not any(drawing.unread)]
        draws = [
            replace(draw, rows=[rows[drawing.texts[row].tobytes()] for row in draw.rows])
            for drawing in ready
            for draw in drawing.draws
        ]
        self._rows = set()
        drawn = iter(draw_tokens(self._continuations, [*texts.values()], draws))
        self._rows = {*texts}
        for drawing in ready:
            self._end(drawing, [next(drawn) for _ in drawing.draws])

    def _log_failure(self, requests: int, error: Exception) -> None:
        """Warn once of an error that neither a text nor a lack of memory explains; reading alone may hide it."""
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        # torch has an OutOfMemoryError of its own, and serving does not import torch
        expected = isinstance(error, (ModelError, MemoryError)) or type(error).__name__ == _TORCH_OUT_OF_MEMORY
        if not expected and what not in self._failures_logged:
            message = "reading %d requests together failed (%s); each is read alone, which is slower"
            _LOG.warning(message, requests, what, exc_info=error)
        self._failures_logged.add(what)

    def _score(self, scorings: Sequence[_Scoring]) -> None:
        """Score sequences together, longest first."""
        for read in {scoring.read for scoring in scorings}:
            same = [scoring for scoring in scorings if scoring.read == read]
            same.sort(key=lambda scoring: -len(scoring.sequence))
            try:
                results = [*read([scoring.sequence for scoring in same])]
            except Exception as error:  # noqa: BLE001  # raised in the threads that it belongs to
                if len(same) == 1:
                    self._end(same[0], error)
                    continue
                self._log_failure(len(same), error)
                for scoring in same:
                    self._score([scoring])
            else:
                for scoring, result in zip(same, results, strict=True):
                    self._end(scoring, result)


def _count_that_fit(lengths: Sequence[Sequence[int]], tokens: int) -> int:
    """Return how many of the first requests have at most so many tokens, padding included; at least one."""
    return len(next(groups_that_fit(lengths, tokens), ()))
