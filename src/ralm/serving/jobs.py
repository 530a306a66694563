"""Runs each request in a thread of its own, and turns its events into an HTTP response or a stream.

A request keeps its place until its thread has ended, even if the client goes away before: the place stands for the
computation.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from threading import Event, Thread
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias

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
_ENDS_OF_EVENTS: Final = (b"\n\n", b"\r\n\r\n")
_MAX_EVENT: Final = 16 << 20  # bytes of a server-sent event
_DONE: Final = b"data: [DONE]\n\n"
Job: TypeAlias = Callable[[], Iterator[bytes]]


class Workers:
    """Runs at most `at_once` jobs; at most `most_waiting` more wait in a queue. A job ends `seconds` after it came.
    Belongs to one event loop."""

    def __init__(self, at_once: int, most_waiting: int, seconds: float, metrics: Metrics) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._most_waiting = most_waiting
        self._seconds = seconds
        self._metrics = metrics
        self.running: set[RunningJob] = set()
        self.waiting = 0

    async def start(self, job: Job) -> "RunningJob":
        """Begin a job once there is a place for it; raises what `take_place` raises."""
        running = RunningJob(job, model.RequestScope(Event(), await self.take_place()), self._ended)
        self.running.add(running)
        running.thread.start()
        return running

    async def take_place(self) -> float:
        """Wait for a place, to be freed with `free_place`; returns the deadline (seconds of `time.monotonic`)."""
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
        return deadline

    def free_place(self) -> None:
        """Free a place that was taken."""
        self._metrics.under_way.dec()
        self._free.release()

    def stop(self) -> None:
        """End all jobs soon."""
        for running in self.running:
            running.stop()

    def _ended(self, running: "RunningJob") -> None:
        self.running.discard(running)
        self.free_place()


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
        return await unless_gone(request, work)
    except Exception as error:  # noqa: BLE001  # every error is a response
        return errors.error_response(error)


class EventStream(StreamingResponse):
    """Server-sent events; `at_end` is closed when the stream ends, also if its client goes away."""

    def __init__(
        self, events: AsyncIterator[bytes], at_end: AsyncExitStack, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(events, media_type="text/event-stream", headers={**headers, **_NOT_BUFFERED})
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with self._at_end:
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
        begin = max(0, len(self._held) - 3)  # an end may have begun in the part before
        self._held += part
        events = []
        while (end := self._end(begin)) is not None:
            events.append(bytes(self._held[:end]))
            del self._held[:end]
            begin = 0
        if len(self._held) > _MAX_EVENT:
            raise ServerError(f"the server of the model sent an event of more than {_MAX_EVENT:,} bytes.", 200)
        return events

    def _end(self, begin: int) -> int | None:
        """Return where the first event ends that does not end before `begin`."""
        places = [(self._held.find(end, begin), len(end)) for end in _ENDS_OF_EVENTS]
        return min((place + size for place, size in places if place >= 0), default=None)


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


async def unless_gone(request: Request, work: Callable[[], Awaitable[Response]]) -> Response:
    """The response that `work` makes; it is cancelled if the client goes away first."""

    async def client_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, gone = asyncio.ensure_future(work()), asyncio.ensure_future(client_gone())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else Response(status_code=errors.GONE)
    finally:
        working.cancel()
        gone.cancel()
