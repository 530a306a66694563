"""The thread that reads: what many threads wait for, together, step after step.

A step reads the last tokens of all texts that grew, a chunk of the texts that are new or changed, and then as many
tokens of the passes that are to be scored. A thread that draws a token asks again soon, so a step waits for it a
little; a thread that retrieves for longer misses a step, and its texts are held for it. If reading fails, each line is
read alone, so that only those fail that cannot be read. If the thread itself fails, all fail, now and later.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import numpy as np

from ralm.errors import ModelError
from ralm.lm.scoring import common_prefix_length
from ralm.protocols import Continuations
from ralm.records import FloatArray, IntArray, NextTokens, ScoringSequence
from ralm.serving.errors import StoppedError

_LOG: Final = logging.getLogger(__name__)
_PATIENCE: Final = 0.2
"""How long a step waits for threads that took part in the one before, as a part of the seconds that a step takes."""
_STEPS_HELD: Final = 64
"""Steps after which texts that nobody asked for are no longer held."""

_TORCH_OUT_OF_MEMORY: Final = "OutOfMemoryError"

_ReadPasses: TypeAlias = Callable[[Sequence[ScoringSequence]], Iterable[FloatArray]]
"""A method of a model that reads passes: `score` or `distributions`."""


class ReadModel(Protocol):
    """What is read of a model."""

    def continuations(self) -> Continuations:
        """A new state for continuing texts."""


@dataclass(slots=True, eq=False)
class Line:
    """The texts (int64) that one thread waits for, how many tokens of each are read, and what is held of them.

    `held` are the texts whose keys and values the model has. Without `texts` nothing is waited for, and the line is
    idle.
    """

    texts: Sequence[IntArray] = ()
    held: Sequence[IntArray] = ()
    read: list[int] = field(default_factory=list)

    def wait_for(self, texts: Sequence[IntArray]) -> None:
        """Wait for the next tokens of these texts; what they share with the texts held is read."""
        self.texts = texts
        self.read = [self._shared(place, text) for place, text in enumerate(texts)]

    def drop(self) -> None:
        """Forget what is held."""
        self.held, self.read = (), [0] * len(self.texts)

    @property
    def left(self) -> int:
        """Tokens to read before the next tokens of all its texts are known."""
        return sum(len(text) - read for text, read in zip(self.texts, self.read, strict=True))

    @property
    def grew(self) -> bool:
        """Whether no text has more than one token to read."""
        return all(len(text) - read <= 1 for text, read in zip(self.texts, self.read, strict=True))

    @property
    def columns(self) -> int:
        """Tokens of its longest text."""
        return max(map(len, self.texts or self.held), default=0)

    def advance(self, tokens: int) -> None:
        """Read this many tokens more, of the first texts first."""
        for place, text in enumerate(self.texts):
            new = min(tokens, len(text) - self.read[place])
            self.read[place] += new
            tokens -= new
        self.held = [text[:read] for text, read in zip(self.texts, self.read, strict=True) if read]

    @property
    def complete(self) -> bool:
        """Whether all of its texts are held whole."""
        return all(read == len(text) for text, read in zip(self.texts, self.read, strict=True))

    def _shared(self, place: int, text: IntArray) -> int:
        """How many tokens a text shares with one that is held, but for its last."""
        grown = place < len(self.held) and np.array_equal(self.held[place], text[:-1])
        if grown:
            return len(text) - 1
        return min(max((common_prefix_length(one, text) for one in self.held), default=0), len(text) - 1)


@dataclass(slots=True, eq=False)
class Caller:
    """A thread's line, what it waits for, and whether its request goes on."""

    gone: threading.Event
    line: Line = field(default_factory=Line)
    answer: "Future[NextTokens] | None" = None
    steps_idle: int = 0


@dataclass(slots=True, eq=False)
class _Scoring:
    """Passes that a thread waits for, and what is known of them."""

    reads: _ReadPasses
    passes: Sequence[ScoringSequence]
    gone: threading.Event
    answer: "Future[list[FloatArray]]" = field(default_factory=Future)
    found: list[FloatArray] = field(default_factory=list)

    @property
    def next(self) -> ScoringSequence:
        return self.passes[len(self.found)]


@dataclass(slots=True)
class Counts:
    """What was read so far: steps, texts in them and their seconds, and passes that were scored."""

    steps: int = 0
    texts: int = 0
    seconds: float = 0.0
    passes: int = 0


class Batcher:
    """_ReadPasses what threads ask for until it is closed; a thread of its own uses the model.

    `failed` is the error that ended the thread before its time, if one did.

    `chunk` is how many tokens of new texts a step reads at most, and of passes (at least one pass); `cache` how many
    tokens are held at most, padding included. Lines that do not fit wait, the oldest first.
    """

    def __init__(self, model: ReadModel, chunk: int, cache: int) -> None:
        self.counts = Counts()
        self.failed: BaseException | None = None
        self._model = model
        self._chunk = chunk
        self._cache = cache
        self._continuations = model.continuations()
        self._keeps = getattr(self._continuations, "keeps_texts", False)
        self._callers: list[Caller] = []
        self._left: deque[Caller] = deque()
        self._scoring: deque[_Scoring] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._step_seconds = 0.0
        self._failures_logged: set[str] = set()
        self._thread = threading.Thread(target=self._live, name="ralm-batch", daemon=True)
        self._thread.start()

    def enter(self, gone: threading.Event) -> Caller:
        """A new line; waiting for it ends with StoppedError once `gone` is set. Raises ModelError if the batcher has
        failed."""
        caller = Caller(gone)
        with self._changed:
            self._check_open()
            self._callers.append(caller)
        return caller

    def leave(self, caller: Caller) -> None:
        """Drop a line; the garbage collector may call this anywhere, so it takes no lock."""
        self._left.append(caller)

    def next_tokens(self, caller: Caller, texts: Sequence[IntArray]) -> NextTokens:
        """The predictions for the texts of a line.

        Raises the error of reading them, StoppedError, and ModelError if the batcher has failed.
        """
        answer: Future[NextTokens] = Future()
        with self._changed:
            self._check_open()
            caller.answer = answer
            caller.line.wait_for(texts)
            self._changed.notify_all()
        return answer.result()

    def read(self, reads: _ReadPasses, passes: Sequence[ScoringSequence], gone: threading.Event) -> list[FloatArray]:
        """The results of a method of the model for some passes; raises its error, and what `next_tokens` raises."""
        if not passes:
            return []
        scoring = _Scoring(reads, passes, gone)
        with self._changed:
            self._check_open()
            self._scoring.append(scoring)
            self._changed.notify_all()
        return scoring.answer.result()

    def close(self) -> None:
        """End the thread after the step that it is reading; whoever waits gets StoppedError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def _over(self) -> bool:
        """Whether nothing is read any more."""
        return self._closed or self.failed is not None

    def _end(self) -> Exception:
        """What whoever waits gets when nothing is read for it any more."""
        if self.failed is None:
            return StoppedError()
        error = ModelError(f"what reads for all requests has failed: {self.failed!r}; start the server anew.")
        error.__cause__ = self.failed
        return error

    def _check_open(self) -> None:
        if self._over:
            raise self._end()

    def _live(self) -> None:
        try:
            self._read_until_closed()
        except BaseException as error:  # noqa: BLE001  # raised in all threads that wait
            _LOG.critical("what reads for all requests has failed; start the server anew", exc_info=error)
            with self._changed:
                self.failed = error
                self._drop_gone()

    def _read_until_closed(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting() or self._scoring)
                if not self._closed:
                    self._changed.wait_for(self._all_are_back, timeout=_PATIENCE * self._step_seconds)
                self._drop_gone()
                if self._closed:
                    return
                callers = self._next_step()
                scored = self._next_passes()
            if callers:
                self._step(callers)
            if scored:
                self._score(scored)

    def _waiting(self) -> list[Caller]:
        return [caller for caller in self._callers if caller.answer is not None]

    def _all_are_back(self) -> bool:
        """Whether everyone who was answered in the last step asks again, or left."""
        self._drop_left()
        return self._closed or all(caller.answer is not None or caller.steps_idle != 0 for caller in self._callers)

    def _drop_left(self) -> None:
        with suppress(IndexError):
            while True:
                caller = self._left.popleft()
                if caller in self._callers:
                    self._callers.remove(caller)

    def _drop_gone(self) -> None:
        """End what nobody waits for any more; all, once nothing is read."""
        self._drop_left()
        for caller in self._waiting():
            if self._over or caller.gone.is_set():
                _fail(caller, self._end())
        for scoring in [one for one in self._scoring if self._over or one.gone.is_set()]:
            self._scoring.remove(scoring)
            scoring.answer.set_exception(self._end())

    def _next_step(self) -> list[Caller]:
        """The callers whose texts are read or held in the next step, with their lines advanced."""
        waiting = self._waiting()
        if not waiting:
            return []
        idle = [caller for caller in self._callers if caller.answer is None and caller.line.held]
        for caller in idle:
            caller.steps_idle += 1
        held = [caller for caller in idle if self._keeps and caller.steps_idle <= _STEPS_HELD]
        by_line = {id(caller.line): caller for caller in self._callers}
        fit = that_fit([caller.line for caller in (*waiting, *held)], self._cache)
        taken = [by_line[id(line)] for line in fit]
        for caller in self._callers:
            if caller not in taken:
                caller.line.drop()
        self._advance([caller.line for caller in taken if caller.answer is not None])
        return taken

    def _advance(self, lines: Sequence[Line]) -> None:
        """Read more of lines: the last tokens of those that grew, and a share of the chunk of the others."""
        new = [line for line in lines if not line.grew]
        chunk = self._chunk if self._keeps else sum(line.left for line in new)
        for line, share in zip(new, shares([line.left for line in new], chunk), strict=True):
            line.advance(share)
        for line in lines:
            if line not in new:
                line.advance(line.left)

    def _step(self, callers: Sequence[Caller]) -> None:
        begin = time.perf_counter()
        try:
            self._answer(callers)
        except Exception as error:  # noqa: BLE001  # raised in the threads that it belongs to
            self._log_failure(len(callers), error)
            self._read_alone(callers)
        self._step_seconds = time.perf_counter() - begin
        self.counts.seconds += self._step_seconds
        self.counts.steps += 1

    def _log_failure(self, count: int, error: Exception) -> None:
        """Warn once of an error that no text or lack of memory explains; what is read alone may succeed unseen."""
        first, _, _ = str(error).partition("\n")
        what = f"{type(error).__name__}: {first}"
        # torch has an OutOfMemoryError of its own, and serving does not import torch
        expected = isinstance(error, (ModelError, MemoryError)) or type(error).__name__ == _TORCH_OUT_OF_MEMORY
        level = logging.DEBUG if expected or what in self._failures_logged else logging.WARNING
        self._failures_logged.add(what)
        _LOG.log(level, "reading %d texts together failed (%s); each is read alone, which is slower", count, what)
        _LOG.debug("the failure was:", exc_info=error)

    def _answer(self, callers: Sequence[Caller]) -> None:
        """Read what is held of lines, and answer those that are complete."""
        texts = {text.tobytes(): text for caller in callers for text in caller.line.held}
        rows = {text: row for row, text in enumerate(texts)}
        found = self._continuations.next_tokens([*texts.values()])
        self.counts.texts += len(texts)
        for caller in callers:
            if caller.answer is not None and caller.line.complete:
                _answer(caller, found.of([rows[text.tobytes()] for text in caller.line.held]))

    def _read_alone(self, callers: Sequence[Caller]) -> None:
        """Read the lines that wait one by one and whole; those that cannot be read get the error."""
        for caller in callers:
            self._continuations = self._model.continuations()
            caller.line.drop()
            if caller.answer is None:
                continue
            try:
                _answer(caller, self._continuations.next_tokens(list(caller.line.texts)))
            except Exception as error:  # noqa: BLE001  # raised in the thread that waits for it
                _fail(caller, error)

    def _next_passes(self) -> list[_Scoring]:
        """Those of whose next passes are read now: one of each in turn, as many as a chunk holds, one at least."""
        taken: list[_Scoring] = []
        tokens = 0
        for scoring in self._scoring:
            tokens += len(scoring.next)
            if taken and tokens > self._chunk:
                break
            taken.append(scoring)
        return taken

    def _score(self, taken: Sequence[_Scoring]) -> None:
        """Read the next pass of each of these."""
        for reads in {scoring.reads for scoring in taken}:
            same = sorted((one for one in taken if one.reads == reads), key=lambda one: -len(one.next))
            found: list[FloatArray | Exception]
            try:
                found = [*reads([scoring.next for scoring in same])]
            except Exception as error:  # noqa: BLE001  # raised in the threads that it belongs to
                self._log_failure(len(same), error)
                found = [_read_pass(scoring) for scoring in same]
            for scoring, one in zip(same, found, strict=True):
                self._scored(scoring, one)

    def _scored(self, scoring: _Scoring, found: FloatArray | Exception) -> None:
        """Note what is known of a pass; who waits for more passes goes to the end of the queue."""
        self.counts.passes += 1
        with self._changed:
            self._scoring.remove(scoring)
            if isinstance(found, Exception):
                scoring.answer.set_exception(found)
                return
            scoring.found.append(found)
            if len(scoring.found) < len(scoring.passes):
                self._scoring.append(scoring)
            else:
                scoring.answer.set_result(scoring.found)


def _answer(caller: Caller, given: NextTokens) -> None:
    assert caller.answer is not None
    answer, caller.answer, caller.steps_idle = caller.answer, None, 0
    caller.line.texts, caller.line.read = (), []
    answer.set_result(given)


def _fail(caller: Caller, error: Exception) -> None:
    assert caller.answer is not None
    answer, caller.answer = caller.answer, None
    caller.line.texts = ()
    caller.line.drop()
    answer.set_exception(error)


def _read_pass(scoring: _Scoring) -> FloatArray | Exception:
    """The next pass, read alone, or the error that it raises."""
    try:
        [found] = scoring.reads([scoring.next])
    except Exception as error:  # noqa: BLE001  # raised in the thread that waits for it
        return error
    return found


def shares(wanted: Sequence[int], most: int) -> list[int]:
    """`most` divided among wishes, the oldest first in the list: half goes to the oldest, the rest to the smallest.

    So a small wish is soon fulfilled, a large one is not put off for good, and few are fulfilled in small parts.
    """
    places = range(len(wanted))
    oldest = _poured(wanted, places, most - most // 2)
    left = [want - given for want, given in zip(wanted, oldest, strict=True)]
    smallest = _poured(left, sorted(places, key=left.__getitem__), most - sum(oldest))
    return [first + more for first, more in zip(oldest, smallest, strict=True)]


def _poured(wanted: Sequence[int], order: Iterable[int], most: int) -> list[int]:
    """`most` divided among wishes: each gets, in this order, what it wants of what is left."""
    given = [0] * len(wanted)
    for place in order:
        given[place] = min(wanted[place], most)
        most -= given[place]
    return given


def that_fit(lines: Iterable[Line], tokens: int) -> list[Line]:
    """The lines, in order, whose texts fit into a cache of this many tokens when padded to the longest; the first one
    always."""
    fit: list[Line] = []
    rows = longest = 0
    for line in lines:
        more = rows + len(line.texts or line.held)
        wide = max(longest, line.columns)
        if not fit or more * wide <= tokens:
            fit.append(line)
            rows, longest = more, wide
    return fit
