"""Sends many requests to one server: several at once, equal ones once, none beyond the budget; answers keep the order.

A thread with an event loop sends requests. They are taken from the caller's iterable in the caller's thread, a few more
than are in flight. Answers are stored in a file as soon as they arrive, so that none is paid for twice. The key of an
answer is a hash of all that decides it: the identity of the model, the path and the body of the request. Requests
themselves, which hold passages and prompts, are not stored, and keys of APIs never get here.
"""

import asyncio
import json
import logging
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Self, TypeAlias, cast
from weakref import WeakValueDictionary, finalize

from pydantic import JsonValue

from ralm.errors import BudgetError, ServerError, UsageError
from ralm.lm.api.answers import tokens_in_answer
from ralm.lm.api.endpoint import ApiOptions, Endpoint
from ralm.lm.api.http import ApiRequest, JsonObject, Transport
from ralm.storage.store import Store

_LOG: Final = logging.getLogger(__name__)
_AHEAD: Final = 4
"""Requests that are taken from the caller and wait, for each one that may be in flight."""
_SECONDS_TO_WAIT: Final = 30.0
"""To wait for answers in flight after an error, since they are paid for."""
_SECONDS_OF_SILENCE: Final = 1.0
"""Before a message about that wait."""
_SECONDS_TO_END: Final = 10.0
"""To wait for the thread to end; otherwise it ends with the process."""
_CLOSED: Final = "the client was closed while its answers were awaited."
CACHE: Final = "RALM_CACHE"
"""The environment variable with the folder for files that ralm keeps between runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiUsage:
    """The requests to a server so far, and their tokens, of which `estimated` answers came without a count."""

    requests: int = 0
    retries: int = 0
    reused: int = 0
    """Requests that were not sent, because their answer was stored or an equal one was sent."""
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: int = 0

    def describe(self) -> str:
        """Return the usage in words, for a message."""
        tokens = f"{self.tokens_in:,} tokens in and {self.tokens_out:,} out"
        return f"{self.requests:,} requests sent and {self.reused:,} reused, {'about ' * bool(self.estimated)}{tokens}"


class Budget:
    """A count of requests and their tokens, for several threads, that rejects requests beyond `max_requests`."""

    def __init__(self, max_requests: int | None) -> None:
        self._max_requests = max_requests
        self._lock = threading.Lock()
        self.usage = ApiUsage()

    def sent(self) -> bool:
        """Count a request that is sent now; False, without counting it, if the budget is used up."""
        if self._max_requests is not None and self.usage.requests >= self._max_requests:
            return False
        self.count(requests=1)
        return True

    def answered(self, request: ApiRequest, answer: Mapping[str, JsonValue]) -> None:
        """Count the tokens of an answer, the maximum if the server did not."""
        counted = tokens_in_answer(answer)
        tokens_in, tokens_out = counted or (request.tokens, request.max_new_tokens)
        self.count(tokens_in=tokens_in, tokens_out=tokens_out, estimated=counted is None)

    def used_up(self) -> BudgetError:
        """Return the error of a request beyond the budget."""
        return BudgetError(
            f"the budget is used up: {self.usage.describe()}. Raise `max_requests` and run this again to continue."
        )

    def count(self, **counts: int) -> None:
        """Add to the fields of `usage`."""
        with self._lock:
            sums = {name: getattr(self.usage, name) + count for name, count in counts.items()}
            self.usage = replace(self.usage, **sums)


def default_answers(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the default file of answers: `answers.sqlite` in $RALM_CACHE, or else in the user's cache."""
    if named := environment.get(CACHE):
        return Path(named) / "answers.sqlite"
    caches = environment.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "ralm" / "answers.sqlite"


def answer_key(identity: str, path: str, body: Mapping[str, JsonValue]) -> bytes:
    """Return the key of a model's answer to a request (32 bytes); the order of the names in a body does not matter."""
    return sha256(json.dumps([identity, path, body], sort_keys=True, separators=(",", ":")).encode()).digest()


class AnswerStore:
    """Answers by their keys, compressed, in a `Store`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._store = Store(file, "file of answers")
        self.close = self._store.close

    def get(self, key: bytes) -> JsonObject | None:
        """Return the answer with this key, or None if it is not stored."""
        values = self._store.get([key])
        return json.loads(zlib.decompress(values[key])) if values else None

    def put(self, key: bytes, answer: JsonObject) -> None:
        """Store an answer."""
        self._store.put([(key, zlib.compress(json.dumps(answer).encode(), 1))])


class Client:
    """A client that sends requests to a server for any thread; a context manager.

    `identity` is the hash that identifies the model. Until it is set, no answer is stored or reused. Then answers go to
    `store`, the file in `options` or the one in the user's cache.
    """

    def __init__(self, endpoint: Endpoint, options: ApiOptions | None = None) -> None:
        self.endpoint = endpoint
        self.options = options or ApiOptions()
        self.identity = ""
        self._budget = Budget(self.options.max_requests)
        self._transport = Transport(endpoint, self.options, partial(self._budget.count, retries=1))
        self.store = AnswerStore(self.options.answers or default_answers())
        self._loop = LoopThread(self._transport.close)
        self._slots = asyncio.Semaphore(self.options.requests_at_once)
        self._calls: set[_Call] = set()
        finalize(self, self._loop.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def usage(self) -> ApiUsage:
        """The requests so far and their tokens."""
        return self._budget.usage

    def get(self, path: str) -> JsonObject:
        """Return the answer at a path; it is neither stored nor counted. Raises ServerError."""
        return self._loop.run(partial(self._transport.send, "GET", path, retries=1))

    def answers(self, requests: Iterable[ApiRequest]) -> Iterator[Any]:
        """Yield the parsed answers to requests, in their order, each as soon as it and all before it are known.

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
                    request = None if call.stopped else next(waiting, None)
                    if request is None:
                        more = False
                    else:
                        call.order.append((request, self._submitted(call, request)))
                if call.order and call.first_is_known(wait=not (more and ahead)):
                    yield self._parsed(*call.order.popleft())
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
            self._loop.close()
            self.store.close()

    def _submitted(self, call: "_Call", request: ApiRequest) -> "_Outcome":
        """Get the answer to a request: from an equal one, from the file, or from the server."""
        key = answer_key(self.identity, request.path, request.body)
        outcome = call.outcomes.get(key) or _Outcome()
        if key in call.outcomes:
            self._budget.count(reused=1)
        elif self.identity and (stored := self._stored(key, request)) is not None:
            self._budget.count(reused=1)
            outcome.answer, outcome.is_known = stored, True
        else:
            self._loop.start(partial(self._request, call, outcome, key, request, self.identity))
        call.outcomes[key] = outcome
        if not self.identity:
            call.unstored.append(outcome)
        return outcome

    def _parsed(self, request: ApiRequest, outcome: "_Outcome") -> Any:
        """Return what a request makes of its answer, which is known; raise its error."""
        answer = outcome.answer
        if isinstance(answer, BudgetError):
            raise self._budget.used_up()  # with the tokens of all answers before
        if isinstance(answer, Exception):
            raise answer
        return request.parse(answer)

    async def _request(
        self, call: "_Call", outcome: "_Outcome", key: bytes, request: ApiRequest, identity: str
    ) -> None:
        """Send a request once it is its turn. An error ends the call."""
        result: JsonObject | Exception = UsageError(_CLOSED)
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        try:
            async with self._slots:
                if call.stopped:
                    return
                if not self._budget.sent():
                    raise BudgetError
                call.sent.add(task)
                answer = await self._transport.send(
                    "POST", request.path, request.body, max_bytes=request.max_bytes, retries=request.retries
                )
                self._budget.answered(request, answer)
            if identity:
                await self._keep(key, request, answer)
            result = answer
        except Exception as error:  # noqa: BLE001  (raised in the caller's thread)
            call.stopped = True
            result = error
        finally:
            call.sent.discard(task)
            outcome.answer, outcome.is_known = result, True
            call.arrived.put(None)

    def _stored(self, key: bytes, request: ApiRequest) -> JsonObject | None:
        """Return the stored answer to a request; None if it is not stored or cannot be used."""
        stored = self.store.get(key)
        with suppress(ServerError):
            if stored is not None:
                request.parse(stored)
                return stored
        return None

    async def _keep(self, key: bytes, request: ApiRequest, answer: JsonObject) -> None:
        """Store an answer; ServerError, and nothing is stored, if it cannot be used."""
        try:
            await asyncio.to_thread(request.parse, answer)  # which takes long for many tokens
        except ServerError as error:
            raise ServerError(f"{error} The answer was not stored in {self.store.file}; run this again.", 200) from None
        self.store.put(key, answer)

    def _end(self, call: "_Call") -> None:
        """Send no more requests of a call, and wait for those in flight."""
        self._calls.discard(call)
        call.stopped = True
        if call.order:
            with suppress(UsageError):  # the client is closed
                self._loop.run(call.end)


class _Outcome:
    """The answer or the error of a request, once it is known."""

    answer: JsonObject | Exception
    is_known = False


class _Call:
    """A call of `answers`: the awaited requests in `order`, their `outcomes` by key, and the tasks in `sent`."""

    def __init__(self) -> None:
        self.order: deque[tuple[ApiRequest, _Outcome]] = deque()
        self.outcomes: WeakValueDictionary[bytes, _Outcome] = WeakValueDictionary()
        self.unstored: list[_Outcome] = []  # the others are forgotten once they are given, since the file has them
        self.arrived: SimpleQueue[None] = SimpleQueue()
        self.sent: set[asyncio.Task[Any]] = set()
        self.stopped = False

    def first_is_known(self, *, wait: bool) -> bool:
        """Return whether the first outcome is known; with `wait`, wait until it is."""
        _, first = self.order[0]
        while wait and not first.is_known:
            self.arrived.get()
        return first.is_known

    async def end(self) -> None:
        """Wait for the requests in flight, and cancel them after a while."""
        for seconds in (_SECONDS_OF_SILENCE, _SECONDS_TO_WAIT):
            if self.sent and (await asyncio.wait(self.sent, timeout=seconds))[1] and seconds == _SECONDS_OF_SILENCE:
                _LOG.info("waiting for %s answers in flight; interrupt to stop at once", len(self.sent))
        for task in self.sent:
            task.cancel()


_Work: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]


class LoopThread:
    """A thread that runs async functions for any thread; `close` ends it after running `last`."""

    def __init__(self, last: _Work) -> None:
        self._closed = False
        self._last = last
        self._lock = threading.Lock()
        self._ending = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._live, name="ralm-api", daemon=True)
        self._thread.start()

    def start(self, work: _Work) -> None:
        """Have the thread run `work`, which reports its own outcome; UsageError after `close`."""
        with self._lock:
            if self._closed:
                raise UsageError("this client is closed; make another one.")
            self._loop.call_soon_threadsafe(self._begin, work)

    def run(self, work: _Work) -> Any:
        """Have the thread run `work`, and return its result; raises what it raises, and UsageError after `close`."""
        # A user may interrupt the main thread between any two steps. The `get` of a queue is a single step; the lock
        # of a future could stay locked.
        outcome: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

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
        return result

    def close(self) -> None:
        """Cancel all tasks and end the thread; further calls do nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._loop.call_soon_threadsafe(self._ending.set)
        if self._thread is not threading.current_thread():  # the garbage collector may call this anywhere
            self._thread.join(_SECONDS_TO_END)

    def _begin(self, work: _Work) -> None:
        task = asyncio.ensure_future(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _live(self) -> None:
        with self._runner:
            self._runner.run(self._run_until_closed())

    async def _run_until_closed(self) -> None:
        await self._ending.wait()
        await self._last()
