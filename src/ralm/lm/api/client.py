"""Many requests to one server: in order, several under way at once, nothing asked twice, nothing beyond the budget.

A thread with an event loop sends requests. They are taken from the caller's iterable in the caller's thread, a few more
than are under way. Answers are kept in a file as soon as they arrive.
"""

import asyncio
import logging
import queue
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Set
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar, cast

from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.lm.api.budget import Budget, Spent, Tokens
from ralm.lm.api.endpoint import Endpoint
from ralm.lm.api.options import ApiOptions
from ralm.lm.api.store import AnswerStore, answer_key, default_answers
from ralm.lm.api.transport import Asked, JsonObject, Transport

if TYPE_CHECKING:
    from ralm.lm.api.model_change import Watch

_LOG: Final = logging.getLogger(__name__)
_AHEAD: Final = 4
"""Requests that are taken from the caller and wait, for each one that may be under way."""
_SECONDS_TO_WAIT: Final = 30.0
"""For answers that are under way when an error comes: they are paid for."""
_SECONDS_OF_SILENCE: Final = 1.0
"""Before the user is told about that."""
_CLOSED: Final = "the client was closed while its answers were awaited."


class Client:
    """Asks a server; a context manager.

    `identity` says which model answers: a hash of everything that was found out about it. Until it is set, no answer is
    kept or reused. Then answers are kept in `store` (default: the file that `options` names, or that of the user's
    cache), by `watch` if there is one: it notices that the server changed its model. Any thread may use it, also one
    with a running event loop.

    Raises UsageError, InputError or StorageError if the prices or the file of answers cannot be used.
    """

    def __init__(self, endpoint: Endpoint, options: ApiOptions | None = None, store: AnswerStore | None = None) -> None:
        self.endpoint = endpoint
        self.options = options or ApiOptions()
        self.identity = ""
        self.watch: Watch | None = None
        self._budget = Budget(endpoint.model, self.options)
        self._transport = Transport(endpoint, self.options, self._budget.retried)
        self._background = Background(self._transport.close)
        self._own_store = store is None
        self.store = store or AnswerStore(self.options.answers or default_answers())
        self._gate = _Gate(self.options.requests_at_once, self._budget)
        self._calls: set[_Call] = set()
        weakref.finalize(self, self._background.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def spent(self) -> Spent:
        """What was asked so far, and what it cost."""
        return self._budget.spent

    def get(self, path: str) -> JsonObject:
        """What the server says at a path; it is not kept, and does not count. Raises ServerError."""
        return self._background.run(partial(self._transport.get, path))

    def post(self, path: str, body: Mapping[str, JsonValue]) -> JsonObject:
        """What the server answers to a request that costs nothing; it is not kept, and does not count.

        Raises ServerError.
        """
        return self._background.run(partial(self._transport.post, path, body))

    def answers(self, asked: Iterable[Asked]) -> Iterator[JsonObject]:
        """The answers to requests, in their order, each as soon as it and all before it are known.

        Equal requests are sent once. If one fails, or the caller stops, no more are sent; those under way are waited
        for and kept. Raises ServerError if the server does not answer a request, BudgetError if no more may be sent,
        StorageError if an answer cannot be kept.
        """
        call, requests, more = _Call(), iter(asked), True
        self._calls.add(call)
        try:
            while more or call.order:
                ahead = len(call.order) < _AHEAD * self.options.requests_at_once
                if more and ahead:
                    one = None if call.stopped else next(requests, None)
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
        """Stop, keep the answers that are under way, and end the thread; further calls do nothing."""
        try:
            for call in list(self._calls):
                self._end(call)
        finally:
            self._background.close()
            if self._own_store:
                self.store.close()

    def _submit(self, call: "_Call", asked: Asked) -> None:
        """Have a request answered: by an equal one, from the file, or by the server."""
        key = answer_key(self.identity, asked.path, asked.body)
        if key in call.asked:
            self._budget.reused()
        elif self.identity and (kept := self.store.get(key)) is not None:
            self._budget.reused()
            call.outcomes[key] = kept
        else:
            call.asked.add(key)
            self._background.start(partial(self._ask, call, key, asked, keep=bool(self.identity)))
        call.order.append(key)

    async def _ask(self, call: "_Call", key: bytes, asked: Asked, *, keep: bool) -> None:
        """Ask the server once it is the request's turn; the outcome goes to the call. An error ends the call."""
        outcome: JsonObject | Exception = UsageError(_CLOSED)
        try:
            with call.task() as sent:
                answer = await self._passed(asked, sent)
                if keep:
                    await self._keep(key, answer)
            outcome = answer
        except Exception as error:  # noqa: BLE001  (raised in the caller's thread)
            call.stop()
            outcome = error
        finally:
            call.arrived.put((key, outcome))

    async def _passed(self, asked: Asked, sent: Callable[[], None] = lambda: None) -> JsonObject:
        """The answer of the server, once it is the request's turn, when `sent` is called."""
        async with self._gate.passed(asked.worst):
            sent()
            answer = await self._send(asked)
            self._budget.answered(asked.worst, answer)
        return answer

    async def _send(self, asked: Asked) -> JsonObject:
        return await self._transport.post(asked.path, asked.body, asked.retries)

    async def _keep(self, key: bytes, answer: JsonObject) -> None:
        if self.watch is None:
            self.store.put(key, answer)
        else:
            await self.watch.keep(key, answer, self._passed)

    def _end(self, call: "_Call") -> None:
        """Send no more requests of a call, and wait for those that are under way."""
        self._calls.discard(call)
        if call.is_waiting():
            with suppress(UsageError):  # the client is closed
                self._background.run(call.end)


class _Call:
    """One call of `answers`: what its caller waits for, and its tasks, which belong to the event loop.

    `order` has the keys of the requests whose answers are awaited, `asked` those that the server was asked for, and
    `outcomes` the answers or errors that are known. More of these come in `arrived`.
    """

    def __init__(self) -> None:
        self.order: deque[bytes] = deque()
        self.asked: set[bytes] = set()
        self.outcomes: dict[bytes, JsonObject | Exception] = {}
        self.arrived: SimpleQueue[tuple[bytes, JsonObject | Exception]] = SimpleQueue()
        self.stopped = False
        self._unsent: set[asyncio.Task[Any]] = set()
        self._sent: set[asyncio.Task[Any]] = set()

    def first_is_known(self) -> bool:
        """Whether the first answer need not be waited for."""
        self._take_what_arrived()
        return self.order[0] in self.outcomes

    def first(self, *, forget: bool) -> JsonObject:
        """The first answer, once it is known; with `forget` it is in the file and need not be remembered."""
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
            self.asked.discard(key)
        return first

    def is_waiting(self) -> bool:
        """Whether the server still has to answer something."""
        self._take_what_arrived()
        return not self.asked <= self.outcomes.keys()

    @contextmanager
    def task(self) -> Iterator[Callable[[], None]]:
        """The current task is one of this call's; what it yields is to be called when its request is sent."""
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
        """Cancel what is not sent."""
        self.stopped = True
        for task in self._unsent:
            task.cancel()

    async def end(self) -> None:
        """Cancel what is not sent, and after a while what is under way."""
        self.stop()
        under_way = await _after(_SECONDS_OF_SILENCE, self._sent)
        if under_way:
            _LOG.info("waiting for %s answers that are under way; interrupt to stop at once", len(under_way))
        for task in await _after(_SECONDS_TO_WAIT, under_way):
            task.cancel()

    def _take_what_arrived(self) -> None:
        with suppress(Empty):
            while True:
                key, outcome = self.arrived.get_nowait()
                self.outcomes[key] = outcome


async def _after(seconds: float, tasks: Set[asyncio.Task[Any]]) -> Set[asyncio.Task[Any]]:
    """Those tasks that are still running after so many seconds."""
    return (await asyncio.wait(tasks, timeout=seconds))[1] if tasks else tasks


class _Gate:
    """Lets requests pass in the order in which they come: at most `most` are under way, within the budget."""

    def __init__(self, most: int, budget: Budget) -> None:
        self._most = most
        self._budget = budget
        self._under_way = 0
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()

    @asynccontextmanager
    async def passed(self, worst: Tokens) -> AsyncIterator[None]:
        """Inside, a request is under way. Raises BudgetError if it is too much once all before it are counted."""
        async with self._turn:
            while self._under_way and (self._under_way == self._most or not self._budget.affords(worst)):
                self._left.clear()
                await self._left.wait()
            self._budget.reserve(worst)
            self._under_way += 1
        try:
            yield
        except BaseException:
            self._budget.failed(worst)
            raise
        finally:
            self._under_way -= 1
            self._left.set()


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
