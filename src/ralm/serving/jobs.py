"""Runs each request in a thread of its own, and turns its events into an HTTP response or a stream.

A request keeps its place until its thread has ended, even if the client goes away before: the place stands for the
computation.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Annotated, Any, Final, TypeAlias

from fastapi import Depends, Request
from pydantic import JsonValue
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ralm.serving import answers, errors, model, requests
from ralm.serving.service import Service

_LOG: Final = logging.getLogger("ralm.serving")
_NOT_BUFFERED: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_END: Final = object()
_OVERTIME: Final = 1.0
"""Seconds that a thread has after its deadline to end by itself."""
_DONE: Final = b"data: [DONE]\n\n"
Job: TypeAlias = Callable[[], Iterator[bytes]]


class Workers:
    """Runs at most `at_once` jobs; at most `most_waiting` more wait in a queue. A job ends `seconds` after it came.

    Belongs to one event loop. `running` are the jobs that run, `waiting` is the length of the queue.
    """

    def __init__(self, at_once: int, most_waiting: int, seconds: float) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._most_waiting = most_waiting
        self._seconds = seconds
        self.running: set[RunningJob] = set()
        self.waiting = 0

    async def start(self, job: Job) -> "RunningJob":
        """Begin a job once there is a place for it; RequestError if the queue is full, or no place is free in time."""
        if self._free.locked() and self.waiting >= self._most_waiting:
            raise errors.RequestError("the queue is full: try again later.", code="busy", status=429)
        scope = model.RequestScope(Event(), time.monotonic() + self._seconds)
        self.waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._free.acquire()
        except TimeoutError:
            raise model.timed_out("waited in the queue too long: try again later") from None
        finally:
            self.waiting -= 1
        running = RunningJob(job, scope, self._ended)
        self.running.add(running)
        running.thread.start()
        return running

    def stop(self) -> None:
        """End all jobs soon."""
        for running in self.running:
            running.stop()

    def _ended(self, running: "RunningJob") -> None:
        self.running.discard(running)
        self._free.release()


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
                left = self._scope.deadline - time.monotonic()
                try:
                    async with asyncio.timeout(max(0.0, left) + _OVERTIME):
                        event = await self._events.get()
                except TimeoutError:  # the thread is in a call that cannot be ended
                    raise model.timed_out("timed out: ask for fewer tokens") from None
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


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]


async def respond(request: Request, body: requests.TextRequest, begin: Callable[[], answers.ServedAnswer]) -> Response:
    """The answer that `begin` makes in the thread of the request: whole, or streamed if requested."""

    def job() -> Iterator[bytes]:
        with_usage = body.streams_usage()
        answer = begin()
        try:
            if body.stream:
                yield from map(_server_sent, answer.pieces(usage=with_usage))
            else:
                yield _as_bytes(answer.whole())
        finally:
            _service(request).metrics.count_tokens(answer.prompt_tokens, answer.written_tokens)

    return await _run(request, job, stream=bool(body.stream))


async def respond_with(request: Request, compute: Callable[[], JsonValue]) -> Response:
    """A value that `compute` returns in the thread of the request, as JSON."""

    def job() -> Iterator[bytes]:
        yield _as_bytes(compute())

    return await _run(request, job, stream=False)


def _as_bytes(value: JsonValue) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _server_sent(value: JsonValue) -> bytes:
    return b"data: " + _as_bytes(value) + b"\n\n"


async def _run(request: Request, job: Job, *, stream: bool) -> Response:
    """The events of a job as one body, or as server-sent events; an error before the first one is the response."""
    begin = time.monotonic()

    async def work() -> Response:
        running = await request.app.state.workers.start(job)
        events = running.events()
        first = await anext(events, b"")
        if stream:
            _service(request).metrics.first.observe(time.monotonic() - begin)
            return _Stream(_sent(first, events), running)
        return Response(first + b"".join([event async for event in events]), media_type="application/json")

    return await _unless_gone(request, work)


class _Stream(StreamingResponse):
    """The events of a job; the job ends when the stream ends."""

    def __init__(self, events: AsyncIterator[bytes], running: RunningJob) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_NOT_BUFFERED)
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._running.stop()


async def _sent(first: bytes, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for event in events:
            yield event
        yield _DONE
    except Exception as error:  # noqa: BLE001  # the status is sent already: the error is the last event
        status, body = errors.status_and_body(error)
        _LOG.info("a stream ended with status %s", status)
        yield _server_sent(body)


async def _unless_gone(request: Request, work: Callable[[], Awaitable[Response]]) -> Response:
    """The response that `work` makes, or the one to its error; it is cancelled if the client goes away first."""

    async def client_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, gone = asyncio.ensure_future(work()), asyncio.ensure_future(client_gone())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else Response(status_code=errors.GONE)
    except Exception as error:  # noqa: BLE001  # every error is a response
        return errors.error_response(error)
    finally:
        working.cancel()
        gone.cancel()
