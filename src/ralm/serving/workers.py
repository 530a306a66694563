"""The threads of requests: so many at once, so many that wait, and requests that end before their time.

A request is a generator of events that runs in a thread of its own. Its place is free when its thread has ended, not
when the client goes away: what computes counts. Knows nothing of HTTP or of what is computed.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Final, TypeAlias

from ralm.serving.batching.batcher import Closed
from ralm.serving.batching.model import ending_with

_END: Final = object()


class BusyError(Exception):
    """As many requests wait as may."""


class StoppedError(Exception):
    """The client went away, or the server stops."""


class TimeUpError(Exception):
    """A request takes longer than it may."""


Check: TypeAlias = Callable[[], None]
"""Raises StoppedError or TimeUpError once a request is to end."""
Job: TypeAlias = Callable[[Check], Iterator[Any]]
"""What a request does: it calls the check often, and yields events."""


class Workers:
    """Runs at most `at_once` jobs, each for `seconds` at most; `most_waiting` more wait. Belongs to one event loop.

    `under_way` and `waiting` count the jobs that run and wait.
    """

    def __init__(self, at_once: int, most_waiting: int, seconds: float) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._most_waiting = most_waiting
        self._seconds = seconds
        self._going: set[Going] = set()
        self.waiting = 0

    @property
    def under_way(self) -> int:
        """How many jobs run."""
        return len(self._going)

    async def start(self, job: Job) -> "Going":
        """Begin a job, perhaps after others; BusyError if too many wait already."""
        if self._free.locked() and self.waiting >= self._most_waiting:
            raise BusyError
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        going = Going(job, time.monotonic() + self._seconds, self._ended)
        self._going.add(going)
        going.thread.start()
        return going

    def stop(self) -> None:
        """End all jobs soon."""
        for going in self._going:
            going.stop()

    def _ended(self, going: "Going") -> None:
        self._going.discard(going)
        self._free.release()


class Going:
    """A job under way: its events, once and in order; `stop` ends it soon."""

    def __init__(self, job: Job, deadline: float, ended: Callable[["Going"], None]) -> None:
        self._job = job
        self._deadline = deadline
        self._on_end = ended
        self._stopped = Event()
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self.thread = Thread(target=self._run, daemon=True, name="ralm-request")

    def stop(self) -> None:
        """Let the thread end at its next check."""
        self._stopped.set()

    async def events(self) -> AsyncGenerator[Any]:
        """What the job yields; raises what it raises, and stops it if it is not read to its end."""
        try:
            while (event := await self._events.get()) is not _END:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self.stop()

    def _check(self) -> None:
        if self._stopped.is_set():
            raise StoppedError
        if time.monotonic() > self._deadline:
            raise TimeUpError

    def _run(self) -> None:
        try:
            with ending_with(self._stopped):
                for event in self._job(self._check):
                    self._tell(self._events.put_nowait, event)
                    self._check()
            self._tell(self._events.put_nowait, _END)
        except Closed:
            self._tell(self._events.put_nowait, StoppedError())
        except BaseException as error:  # noqa: BLE001  # raised again where the events are read
            self._tell(self._events.put_nowait, error)
        finally:
            self._tell(self._on_end, self)

    def _tell(self, call: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the server is gone, and its loop with it
            self._loop.call_soon_threadsafe(call, *arguments)
