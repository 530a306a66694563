"""Sends many requests to one server: several at once, equal ones once, none beyond the budget; answers keep the order.

A thread with an event loop sends requests. They are taken from the caller's iterable in the caller's thread, a few more
than are in flight. Answers are stored in a file as soon as they arrive.
"""

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Set
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Self, TypeAlias, TypeVar, cast

from pydantic import JsonValue

from ralm.errors import ServerError, UsageError
from ralm.lm.api.budget import ApiUsage, Budget
from ralm.lm.api.endpoint import ApiOptions, Endpoint
from ralm.lm.api.store import AnswerStore, answer_key, default_answers
from ralm.lm.api.transport import ApiRequest, JsonObject, Transport

_LOG: Final = logging.getLogger(__name__)
_AHEAD: Final = 4
"""Requests that are taken from the caller and wait, for each one that may be in flight."""
_SECONDS_TO_WAIT: Final = 30.0
"""To wait for answers in flight after an error, since they are paid for."""
_SECONDS_OF_SILENCE: Final = 1.0
"""Before a message about that wait."""
_CLOSED: Final = "the client was closed while its answers were awaited."


class Client:
    """Sends requests to a server; a context manager.

    `identity` is the hash that identifies the model. Until it is set, no answer is stored or reused. Then answers go to
    `store`, the file in `options` or the one in the user's cache. Any thread may use a client, also one with a running
    event loop.

    Raises InputError or StorageError if the file of answers cannot be used.
    """

    def __init__(self, endpoint: Endpoint, options: ApiOptions | None = None) -> None:
        self.endpoint = endpoint
        self.options = options or ApiOptions()
        self.identity = ""
        self._budget = Budget(self.options.max_requests)
        self._transport = Transport(endpoint, self.options, self._budget.retried)
        self._loop_thread = EventLoopThread(self._transport.close)
        self.store = AnswerStore(self.options.answers or default_answers())
        self._gate = _Gate(self.options.requests_at_once, self._budget)
        self._calls: set[_Call] = set()
        weakref.finalize(self, self._loop_thread.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def usage(self) -> ApiUsage:
        """The requests so far and their tokens."""
        return self._budget.usage

    def get(self, path: str) -> JsonObject:
        """The answer at a path; it is neither stored nor counted. Raises ServerError."""
        return self._loop_thread.run(partial(self._transport.get, path))

    def post(self, path: str, body: Mapping[str, JsonValue]) -> JsonObject:
        """The answer to a request that costs nothing; it is neither stored nor counted. Raises ServerError."""
        return self._loop_thread.run(partial(self._transport.post, path, body))

    def answers(self, requests: Iterable[ApiRequest]) -> Iterator[JsonObject]:
        """The answers to requests, in their order, each as soon as it and all before it are known.

        Equal requests are sent once. If one fails, or the caller stops, no more are sent; those in flight are awaited
        and stored. Raises ServerError if the server does not answer a request, BudgetError if no more may be sent,
        StorageError if an answer cannot be stored.
        """
        call, waiting, more = _Call(), iter(requests), True
        self._calls.add(call)
        try:
            while more or call.order:
                ahead = len(call.order) < _AHEAD * self.options.requests_at_once
                if more and ahead:
                    one = None if call.stopped else next(waiting, None)
                    if one is None:
                        more = False
                    else:
                        self._submit(call, one)
                if call.order and (call.first_is_known() or not (more and ahead)):
                    yield call.first(forget=bool(self.identity))
            if call.stopped:
                raise UsageError(_CLOSED)
        finally:
            self._end(call)

    def close(self) -> None:
        """Stop, store the answers in flight, and end the thread; further calls do nothing."""
        try:
            for call in list(self._calls):
                self._end(call)
        finally:
            self._loop_thread.close()
            self.store.close()

    def _submit(self, call: "_Call", request: ApiRequest) -> None:
        """Get the answer to a request: from an equal one, from the file, or from the server."""
        key = answer_key(self.identity, request.path, request.body)
        if key in call.requested:
            self._budget.reused()
        elif self.identity and (stored := self._stored(key, request)) is not None:
            self._budget.reused()
            call.outcomes[key] = stored
        else:
            call.requested.add(key)
            self._loop_thread.start(partial(self._request, call, key, request, keep=bool(self.identity)))
        call.order.append(key)

    async def _request(self, call: "_Call", key: bytes, request: ApiRequest, *, keep: bool) -> None:
        """Send a request once it is its turn; the outcome goes to the call. An error ends the call."""
        outcome: JsonObject | Exception = UsageError(_CLOSED)
        try:
            with call.task() as sent:
                async with self._gate.in_turn():
                    sent()
                    answer = await self._send(request)
                    self._budget.answered(request, answer)
                if keep:
                    await self._keep(key, request, answer)
            outcome = answer
        except Exception as error:  # noqa: BLE001  (raised in the caller's thread)
            call.stop()
            outcome = error
        finally:
            call.arrived.put((key, outcome))

    async def _send(self, request: ApiRequest) -> JsonObject:
        return await self._transport.send(request)

    def _stored(self, key: bytes, request: ApiRequest) -> JsonObject | None:
        """The stored answer to a request; None if it is not known or cannot be used."""
        stored = self.store.get(key)
        with suppress(ServerError):
            if stored is not None:
                request.check(stored)
                return stored
        return None

    async def _keep(self, key: bytes, request: ApiRequest, answer: JsonObject) -> None:
        """Store an answer. Raises ServerError if it cannot be used, and then stores nothing."""
        try:
            await asyncio.to_thread(request.check, answer)  # which may ask the server for its tokenizer
        except ServerError as error:
            raise ServerError(f"{error} The answer was not stored in {self.store.file}; run this again.", 200) from None
        self.store.put(key, answer)

    def _end(self, call: "_Call") -> None:
        """Send no more requests of a call, and wait for those in flight."""
        self._calls.discard(call)
        if call.is_waiting():
            with suppress(UsageError):  # the client is closed
                self._loop_thread.run(call.end)


class _Call:
    """One call of `answers`: the keys of awaited requests in `order`, those sent in `requested`, and the answers or
    errors in `outcomes`; more arrive in `arrived`. Its tasks belong to the event loop."""

    def __init__(self) -> None:
        self.order: deque[bytes] = deque()
        self.requested: set[bytes] = set()
        self.outcomes: dict[bytes, JsonObject | Exception] = {}
        self.arrived: SimpleQueue[tuple[bytes, JsonObject | Exception]] = SimpleQueue()
        self.stopped = False
        self._unsent: set[asyncio.Task[Any]] = set()
        self._sent: set[asyncio.Task[Any]] = set()

    def first_is_known(self) -> bool:
        """Whether the first answer is known."""
        self._take_arrived()
        return self.order[0] in self.outcomes

    def first(self, *, forget: bool) -> JsonObject:
        """The first answer, once it is known; with `forget` it is dropped from memory, since the file has it."""
        key = self.order[0]
        while key not in self.outcomes:
            found, outcome = self.arrived.get()
            self.outcomes[found] = outcome
        self.order.popleft()
        first = self.outcomes[key]
        if isinstance(first, Exception):
            raise first
        if forget and key not in self.order:
            del self.outcomes[key]
            self.requested.discard(key)
        return first

    def is_waiting(self) -> bool:
        """Whether an answer of the server is missing."""
        self._take_arrived()
        return not self.requested <= self.outcomes.keys()

    @contextmanager
    def task(self) -> Iterator[Callable[[], None]]:
        """Make the current task one of this call's; yields a function to call when its request is sent."""
        task = asyncio.current_task()
        assert task is not None
        if self.stopped:
            raise asyncio.CancelledError
        self._unsent.add(task)

        def sent() -> None:
            self._unsent.discard(task)
            self._sent.add(task)

        try:
            yield sent
        finally:
            self._unsent.discard(task)
            self._sent.discard(task)

    def stop(self) -> None:
        """Cancel the requests that are not sent."""
        self.stopped = True
        for task in self._unsent:
            task.cancel()

    async def end(self) -> None:
        """Cancel the requests that are not sent, and after a while those in flight."""
        self.stop()
        in_flight = await _after(_SECONDS_OF_SILENCE, self._sent)
        if in_flight:
            _LOG.info("waiting for %s answers in flight; interrupt to stop at once", len(in_flight))
        for task in await _after(_SECONDS_TO_WAIT, in_flight):
            task.cancel()

    def _take_arrived(self) -> None:
        with suppress(Empty):
            while True:
                key, outcome = self.arrived.get_nowait()
                self.outcomes[key] = outcome


async def _after(seconds: float, tasks: Set[asyncio.Task[Any]]) -> Set[asyncio.Task[Any]]:
    """The tasks that are still running after so many seconds."""
    return (await asyncio.wait(tasks, timeout=seconds))[1] if tasks else tasks


class _Gate:
    """Admits requests in their order: at most `limit` are in flight, within the budget."""

    def __init__(self, limit: int, budget: Budget) -> None:
        self._limit = limit
        self._budget = budget
        self._in_flight = 0
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()

    @asynccontextmanager
    async def in_turn(self) -> AsyncIterator[None]:
        """A request is in flight inside. Raises BudgetError if the budget is used up, once all others are answered."""
        async with self._turn:
            while self._in_flight and (self._in_flight == self._limit or self._budget.is_used_up):
                self._left.clear()
                await self._left.wait()
            self._budget.sent()
            self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._left.set()


_Result = TypeVar("_Result")
_Work: TypeAlias = Callable[[], Coroutine[Any, Any, _Result]]
_SECONDS_TO_END: Final = 10.0
"""To wait for the thread to end; otherwise it ends with the process."""


class EventLoopThread:
    """A thread that runs async functions for any thread; `close` ends it after running `last`."""

    def __init__(self, last: _Work[None]) -> None:
        self._last = last
        self._lock = threading.Lock()
        self._ending = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, work: _Work[None]) -> None:
        """Have the thread run `work`, which reports its own outcome. Raises UsageError after `close`."""
        with self._lock:
            if self._closed:
                raise UsageError("this client is closed; make another one.")
            self._running_loop().call_soon_threadsafe(self._begin, work)

    def run(self, work: _Work[_Result]) -> _Result:
        """Have the thread run `work`, and wait for its result. Raises what it raises, and UsageError after `close`."""
        # A user may interrupt the main thread between any two steps. The `get` of a queue is a single step; the lock
        # of a future could stay locked.
        outcome: SimpleQueue[tuple[_Result | None, Exception | None]] = SimpleQueue()

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
        """Cancel all tasks and end the thread; further calls do nothing."""
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
        """The loop, after its thread was started."""
        if self._loop is not None:
            return self._loop
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

        def live() -> None:
            with runner:
                runner.run(self._run_until_closed())

        self._thread = threading.Thread(target=live, name="ralm-api", daemon=True)
        self._loop = runner.get_loop()
        self._thread.start()  # last, since an interrupt is likely while it waits for the thread
        return self._loop

    async def _run_until_closed(self) -> None:
        await self._ending.wait()
        await self._last()
