"""The threads of requests: so many at once, so many that wait, and requests that end before their time.

A request is a generator of events that runs in a thread of its own. Its place is free when its thread has ended, not
when the client goes away: what computes counts. Knows nothing of HTTP or of what is computed.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from threading import Event, Thread
from typing import Annotated, Any, Final, Protocol, TypeAlias, TypeVar

from fastapi import Depends, Request
from pydantic import JsonValue
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ralm.serving.answers import DONE, Json, Usage, server_sent
from ralm.serving.batcher import Closed
from ralm.serving.errors import BusyError, StoppedError, TimeUpError, error_response, status_and_body
from ralm.serving.model import Check, ending_with
from ralm.serving.requests import ChatRequest, CompletionRequest
from ralm.serving.service import Service

_END: Final = object()


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
        self._running: set[RunningJob] = set()
        self.waiting = 0

    @property
    def under_way(self) -> int:
        """How many jobs run."""
        return len(self._running)

    async def start(self, job: Job) -> "RunningJob":
        """Begin a job, perhaps after others; BusyError if too many wait already."""
        if self._free.locked() and self.waiting >= self._most_waiting:
            raise BusyError
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        running = RunningJob(job, time.monotonic() + self._seconds, self._ended)
        self._running.add(running)
        running.thread.start()
        return running

    def stop(self) -> None:
        """End all jobs soon."""
        for running in self._running:
            running.stop()

    def _ended(self, running: "RunningJob") -> None:
        self._running.discard(running)
        self._free.release()


class RunningJob:
    """A job under way: its events, once and in order; `stop` ends it soon."""

    def __init__(self, job: Job, deadline: float, ended: Callable[["RunningJob"], None]) -> None:
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


_LOG: Final = logging.getLogger("ralm.serving")
_GONE: Final = 499
"""The status in logs of a request whose client went away."""
_NOT_BUFFERED: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_E = TypeVar("_E", contravariant=True)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]


def as_bytes(value: JsonValue) -> bytes:
    """JSON as the body of an answer."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class _Answer(Protocol[_E]):
    """How the events of a job are told."""

    usage: Usage

    def whole(self, events: Iterator[_E]) -> Json: ...

    def pieces(self, events: Iterator[_E], *, usage: bool) -> Iterator[Json]: ...


def told(
    service: Service, body: CompletionRequest | ChatRequest, answer: _Answer[_E], events: Iterator[_E]
) -> Iterator[bytes]:
    """An answer as bytes: whole, or in pieces if that is what the request asks for. Its tokens are counted."""
    try:
        if body.stream:
            usage = body.stream_options is not None and bool(body.stream_options.include_usage)
            yield from map(server_sent, answer.pieces(events, usage=usage))
        else:
            yield as_bytes(answer.whole(events))
    finally:
        service.count_tokens(answer.usage.prompt, answer.usage.written)


async def whole(request: Request, job: Job) -> Response:
    """The one thing that a job yields, as JSON."""

    async def work() -> Response:
        running = await _workers(request).start(job)
        async with aclosing(running.events()) as events:
            body = b"".join([event async for event in events])
        return Response(body, media_type="application/json")

    return await _unless_gone(request, work)


async def stream(request: Request, job: Job) -> Response:
    """What a job yields, as server-sent events; an error before the first one is an answer of its own."""
    begin = time.monotonic()

    async def work() -> Response:
        running = await _workers(request).start(job)
        events = running.events()
        try:
            first = await anext(events, None)
        except BaseException:
            running.stop()
            raise
        _service(request).metrics.first.observe(time.monotonic() - begin)
        return _Stream(_sent(first, events), running)

    return await _unless_gone(request, work)


class _Stream(StreamingResponse):
    """The events of a job, which ends with the stream, however that ends."""

    def __init__(self, events: AsyncIterator[bytes], running: RunningJob) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_NOT_BUFFERED)
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._running.stop()


async def _sent(first: bytes | None, events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    try:
        if first is not None:
            yield first
        async for event in events:
            yield event
        yield DONE
    except Exception as error:  # noqa: BLE001  # the status is sent already: the error is the last event
        status, body = status_and_body(error)
        _LOG.info("a stream ended with status %s", status)
        yield server_sent(body)


async def _unless_gone(request: Request, work: Callable[[], Awaitable[Response]]) -> Response:
    """The answer of some work, or what became of it; the work is cancelled if the client goes away first."""
    working, gone = asyncio.ensure_future(work()), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return Response(status_code=_GONE)
        return working.result()
    except Exception as error:  # noqa: BLE001  # every error is an answer
        return error_response(error)
    finally:
        working.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _workers(request: Request) -> Workers:
    workers: Workers = request.app.state.workers
    return workers
