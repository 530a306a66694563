"""An event loop in a thread of its own, so that code without async can have many requests under way.

It works in any thread, and inside a program that has its own event loop. The user may interrupt the main thread between
any two steps. So it waits at queues, whose `get` is a single step; a future has a lock that could stay locked for ever.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar, cast

from ralm.errors import UsageError

_Result = TypeVar("_Result")
_Work: TypeAlias = Callable[[], Coroutine[Any, Any, _Result]]
_SECONDS_TO_END: Final = 10.0
"""For the thread to end; one that does not ends with the process."""


class Background:
    """A thread that runs async functions; it starts with the first one, and ends with `close` after running `last`."""

    def __init__(self, last: _Work[None]) -> None:
        self._last = last
        self._lock = threading.Lock()
        self._ending = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, work: _Work[None]) -> None:
        """Have the thread run `work`, which says itself what came of it. Raises UsageError after `close`."""
        with self._lock:
            if self._closed:
                raise UsageError("this client is closed; make another one.")
            self._running_loop().call_soon_threadsafe(self._begin, work)

    def run(self, work: _Work[_Result]) -> _Result:
        """Have the thread run `work`, and wait for its result. Raises what it raises, and UsageError after `close`."""
        outcome: queue.SimpleQueue[tuple[_Result | None, Exception | None]] = queue.SimpleQueue()

        async def report() -> None:
            try:
                outcome.put((await work(), None))
            except asyncio.CancelledError:
                outcome.put((None, UsageError("this client was closed meanwhile.")))
            except Exception as error:  # noqa: BLE001  (raised below)
                outcome.put((None, error))

        self.start(report)
        result, error = outcome.get()
        if error is not None:
            raise error
        return cast("_Result", result)

    def close(self) -> None:
        """Cancel what runs and end the thread; further calls do nothing."""
        with self._lock:
            closed, self._closed = self._closed, True
        if self._loop is None or self._thread is None or closed or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._ending.set)
        if self._thread is not threading.current_thread():  # the garbage collector may call this anywhere
            self._thread.join(_SECONDS_TO_END)

    def _begin(self, work: _Work[None]) -> None:
        task = asyncio.ensure_future(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """The loop, in a thread that was started."""
        if self._loop is not None:
            return self._loop
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

        def live() -> None:
            with runner:
                runner.run(self._until_the_end())

        self._thread = threading.Thread(target=live, name="ralm-api", daemon=True)
        self._loop = runner.get_loop()
        self._thread.start()  # waits until it has started, so it is likely to be interrupted
        return self._loop

    async def _until_the_end(self) -> None:
        await self._ending.wait()
        await self._last()
