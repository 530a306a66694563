"""Runs each request in a thread of its own, and turns its events into an HTTP response or a stream.

A request keeps its slot until its thread has ended, even if the client goes away before: the slot stands for the
computation.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from math import inf
from threading import Event, Thread
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from fastapi import Depends, Request
from pydantic import JsonValue
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ralm.errors import ServerError
from ralm.records import Passage
from ralm.serving import answers, errors, model, requests
from ralm.serving.audit import AuditEntry, entry_of
from ralm.serving.indexes import ReadConfig
from ralm.serving.middleware import Metrics
from ralm.serving.state import SearchService
from ralm.serving.text_sources import text_key, web_address

_LOG: Final = logging.getLogger("ralm.serving")
_NOT_BUFFERED: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_END: Final = object()
_OVERTIME: Final = 1.0
"""Seconds that a thread has after its deadline to end by itself."""
_END_OF_EVENT: Final = re.compile(rb"\n\n|\r\n\r\n")
_MAX_EVENT: Final = 16 << 20  # bytes of a server-sent event
_DONE: Final = b"data: [DONE]\n\n"
Job: TypeAlias = Callable[[], Iterator[bytes]]
_Result = TypeVar("_Result")


class Workers:
    """Runs at most `at_once` jobs; at most `most_waiting` more wait in a queue. A job ends `seconds` after it came.
    Belongs to one event loop."""

    def __init__(self, at_once: int, most_waiting: int, seconds: float, metrics: Metrics) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._most_waiting = most_waiting
        self._seconds = seconds
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(at_once, "ralm-request")
        self.running: set[RunningJob] = set()
        self.waiting = 0

    async def start(self, job: Job) -> "RunningJob":
        """Begin a job once there is a slot for it; raises what `take_slot` raises."""
        slot = await self.take_slot()
        running = RunningJob(job, model.RequestScope(Event(), slot.deadline), partial(self._ended, slot))
        self.running.add(running)
        running.thread.start()
        return running

    async def take_slot(self) -> "Slot":
        """Return a slot as soon as there is one; RequestError if that takes too long, or too many wait."""
        if self._free.locked() and self.waiting >= self._most_waiting:
            raise errors.RequestError("the queue is full: try again later.", code="busy", status=429)
        deadline = time.monotonic() + self._seconds
        self.waiting += 1
        self._metrics.waiting.inc()
        try:
            async with asyncio.timeout(self._seconds):
                await self._free.acquire()
        except TimeoutError:
            raise model.timed_out("waited in the queue too long: try again later") from None
        finally:
            self.waiting -= 1
            self._metrics.waiting.dec()
        self._metrics.under_way.inc()
        return Slot(deadline, self._threads, self._free_slot)

    def stop(self) -> None:
        """End all jobs soon."""
        for running in self.running:
            running.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _free_slot(self) -> None:
        self._metrics.under_way.dec()
        self._free.release()

    def _ended(self, slot: "Slot", running: "RunningJob") -> None:
        self.running.discard(running)
        slot.leave()


class Slot:
    """The slot of a request until `deadline` (seconds of `time.monotonic`). It is free again once the request has left
    it and its threads have ended: the slot stands for the computation."""

    def __init__(self, deadline: float, threads: ThreadPoolExecutor, free: Callable[[], None]) -> None:
        self.deadline = deadline
        self._threads = threads
        self._free = free
        self._holders = 1

    def leave(self) -> None:
        """End the request, or one of its threads."""
        self._holders -= 1
        if not self._holders:
            self._free()

    async def in_thread(self, call: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return what a function returns in a thread, which goes on if the caller is cancelled."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *arguments))
        self._holders += 1
        future.add_done_callback(self._thread_ended)
        return await asyncio.shield(future)

    def _thread_ended(self, future: "asyncio.Future[Any]") -> None:
        self.leave()
        if not future.cancelled():
            future.exception()  # nobody may wait for it any more


@asynccontextmanager
async def until(deadline: float) -> AsyncIterator[None]:
    """Raise RequestError if the block does not end before the deadline (seconds of `time.monotonic`)."""
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            yield
    except TimeoutError:
        raise model.timed_out("timed out: ask for fewer tokens") from None


class RunningJob:
    """A job and its events, once and in order; `stop` ends it soon."""

    def __init__(self, job: Job, scope: model.RequestScope, ended: Callable[["RunningJob"], None]) -> None:
        self._job = job
        self._scope = scope
        self._on_end = ended
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self.thread = Thread(target=self._run, daemon=True, name="ralm-request")

    def stop(self) -> None:
        """Let the thread end at its next check."""
        self._scope.gone.set()

    async def events(self) -> AsyncGenerator[bytes]:
        """The events of the job; raises its error, and stops it if the caller does not read to the end."""
        try:
            while True:
                async with until(self._scope.deadline + _OVERTIME):  # the thread may be in a call that cannot be ended
                    event = await self._events.get()
                if event is _END:
                    return
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self.stop()

    def _run(self) -> None:
        try:
            with model.in_scope(self._scope):
                for event in self._job():
                    self._call(self._events.put_nowait, event)
                    self._scope.check()
            self._call(self._events.put_nowait, _END)
        except BaseException as error:  # noqa: BLE001  # raised again where the events are read
            self._call(self._events.put_nowait, error)
        finally:
            self._call(self._on_end, self)

    def _call(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the thread of the event loop."""
        with suppress(RuntimeError):  # the server is gone, and its loop with it
            self._loop.call_soon_threadsafe(call, *arguments)


async def service_of(request: Request) -> Any:
    """The service that answers a request; FastAPI calls functions that are not `async` in threads."""
    return request.app.state.service


Searched = Annotated[SearchService, Depends(service_of)]


async def check_query(request: Request) -> None:
    """Raise RequestError for unknown parameters in the query."""
    known = {one.alias for one in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise errors.RequestError(f"`{name}` is not a parameter of {request.scope['route'].path}.", param=name)


def passage_address(request: Request, reads: ReadConfig, passage: Passage) -> str:
    """The URL of a passage: that of its document in the web, or else one of this server, by document and text."""
    own = request.url_for("passage", index=reads.settings.index)
    named = own.include_query_params(document=passage.document_id, text=text_key(passage))
    return web_address(passage) or str(named)


async def respond(request: Request, body: requests.TextRequest, begin: Callable[[], answers.ServedAnswer]) -> Response:
    """The answer that `begin` makes in the thread of the request: whole, or streamed if requested."""
    entry = entry_of(request)
    entry.model = body.model

    def job() -> Iterator[bytes]:
        with_usage = body.streams_usage()
        answer = begin()
        entry.finish = answer.fill
        try:
            if body.stream:
                yield from map(server_sent, answer.pieces(usage=with_usage))
            else:
                yield json_bytes(answer.whole())
        finally:
            request.app.state.service.metrics.count_tokens(answer.prompt_tokens, answer.written_tokens)

    return await _run(request, job, stream=bool(body.stream))


async def respond_with(request: Request, compute: Callable[[], JsonValue]) -> Response:
    """A value that `compute` returns in the thread of the request, as JSON."""

    def job() -> Iterator[bytes]:
        yield json_bytes(compute())

    return await _run(request, job, stream=False)


def json_bytes(value: JsonValue) -> bytes:
    """A value as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def server_sent(value: JsonValue) -> bytes:
    """A value as a server-sent event."""
    return b"data: " + json_bytes(value) + b"\n\n"


async def _run(request: Request, job: Job, *, stream: bool) -> Response:
    """The events of a job as one body, or as server-sent events."""
    begin = time.monotonic()

    async def work() -> Response:
        running = await request.app.state.workers.start(job)
        events = running.events()
        first = await anext(events, b"")
        if stream:
            request.app.state.service.metrics.first.observe(time.monotonic() - begin)
            at_end = AsyncExitStack()
            at_end.callback(running.stop)
            return EventStream(_sent(first, events, entry_of(request)), at_end)
        return Response(first + b"".join([event async for event in events]), media_type="application/json")

    try:
        return await unless_gone(request.receive, work) or Response(status_code=errors.GONE)
    except Exception as error:  # noqa: BLE001  # every error is a response
        return errors.error_response(error)


class EventStream(StreamingResponse):
    """Server-sent events; `at_end` is closed when the stream ends, also if its client goes away. Soon after the
    `deadline` it ends, even if the client has not read all of it."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        at_end: AsyncExitStack,
        headers: Mapping[str, str] = MappingProxyType({}),
        deadline: float = inf,
    ) -> None:
        super().__init__(events, media_type="text/event-stream", headers={**headers, **_NOT_BUFFERED})
        self._at_end = at_end
        self._deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with self._at_end:
            with suppress(errors.RequestError):  # the status is sent already
                async with until(self._deadline + _OVERTIME):
                    await super().__call__(scope, receive, send)


class EventBuffer:
    """The beginning of an event that has not come whole."""

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def rest(self) -> bytes:
        """What came after the last whole event."""
        return bytes(self._held)

    def add(self, part: bytes) -> list[bytes]:
        """Return the events that a part makes whole; ServerError if one is too long."""
        begin, place, events = 0, max(0, len(self._held) - 3), list[bytes]()  # an end may have begun before the part
        self._held += part
        while (end := _END_OF_EVENT.search(self._held, place)) is not None:
            events.append(bytes(self._held[begin : end.end()]))
            begin = place = end.end()
        del self._held[:begin]
        if len(self._held) > _MAX_EVENT:
            raise ServerError(f"the server of the model sent an event of more than {_MAX_EVENT:,} bytes.", 200)
        return events


async def _sent(first: bytes, events: AsyncIterator[bytes], entry: AuditEntry) -> AsyncIterator[bytes]:
    try:
        yield first
        async for event in events:
            yield event
        yield _DONE
    except Exception as error:  # noqa: BLE001  # the status is sent already
        yield error_event(error, entry)


def error_event(error: Exception, entry: AuditEntry) -> bytes:
    """The last event of a stream that ends with an error."""
    status, body = errors.status_and_body(error)
    entry.status = status
    _LOG.info("a stream ended with status %s", status)
    return server_sent(body)


async def unless_gone(receive: Receive, work: Callable[[], Awaitable[_Result]]) -> _Result | None:
    """Return what `work` returns; None if the client goes away first, and then it is cancelled."""

    async def client_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, gone = asyncio.ensure_future(work()), asyncio.ensure_future(client_gone())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        gone.cancel()
