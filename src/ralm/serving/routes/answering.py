"""From a job to an HTTP answer: whole or as a stream, and what becomes of errors and of clients that go away.

A job yields bytes: the whole answer at once, or the events of a stream. Knows nothing of what is asked.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Final, Protocol, TypeVar

from fastapi import Depends, Request
from pydantic import JsonValue
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ralm.errors import BudgetError, InputError, ModelError, RalmError, ServerError, UsageError
from ralm.serving.errors import RequestError
from ralm.serving.service import Service
from ralm.serving.wire.chats import ChatRequest
from ralm.serving.wire.completions import DONE, CompletionRequest, Usage, server_sent
from ralm.serving.wire.errors import error_body
from ralm.serving.wire.sources import Json
from ralm.serving.workers import BusyError, Going, Job, StoppedError, TimeUpError, Workers

_LOG: Final = logging.getLogger("ralm.serving")
_GONE: Final = 499
"""The status in logs of a request whose client went away."""
_NOT_BUFFERED: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
Event = TypeVar("Event", contravariant=True)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]


def as_bytes(value: JsonValue) -> bytes:
    """JSON as the body of an answer."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class _Answer(Protocol[Event]):
    """How the events of a job are told."""

    usage: Usage

    def whole(self, events: Iterator[Event]) -> Json: ...

    def pieces(self, events: Iterator[Event], *, usage: bool) -> Iterator[Json]: ...


def told(
    service: Service, body: CompletionRequest | ChatRequest, answer: _Answer[Event], events: Iterator[Event]
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
        going = await _workers(request).start(job)
        async with aclosing(going.events()) as events:
            body = b"".join([event async for event in events])
        return Response(body, media_type="application/json")

    return await _unless_gone(request, work)


async def stream(request: Request, job: Job) -> Response:
    """What a job yields, as server-sent events; an error before the first one is an answer of its own."""
    begin = time.monotonic()

    async def work() -> Response:
        going = await _workers(request).start(job)
        events = going.events()
        try:
            first = await anext(events, None)
        except BaseException:
            going.stop()
            raise
        _service(request).metrics.first.observe(time.monotonic() - begin)
        return _Stream(_sent(first, events), going)

    return await _unless_gone(request, work)


class _Stream(StreamingResponse):
    """The events of a job, which ends with the stream, however that ends."""

    def __init__(self, events: AsyncIterator[bytes], going: Going) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_NOT_BUFFERED)
        self._going = going

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._going.stop()


async def _sent(first: bytes | None, events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    try:
        if first is not None:
            yield first
        async for event in events:
            yield event
        yield DONE
    except Exception as error:  # noqa: BLE001  # the status is sent already: the error is the last event
        status, body = _said(error)
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
        return refusal(error)
    finally:
        working.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _workers(request: Request) -> Workers:
    workers: Workers = request.app.state.workers
    return workers


def refusal(error: BaseException) -> Response:
    """The answer to a request that failed so."""
    status, body = _said(error)
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return JSONResponse(body, status, headers)


def _said(error: BaseException) -> tuple[int, dict[str, JsonValue]]:
    """The status and the error body of an error."""
    match error:
        case RequestError():
            return error.status, error_body(str(error), error.status, param=error.param, code=error.code)
        case UsageError() | InputError():
            return 400, error_body(str(error), 400)
        case BusyError():
            return 429, error_body("as many requests wait here as may: try again later.", 429, code="busy")
        case TimeUpError():
            return 503, error_body("the request took longer than one may here: ask for less.", 503, code="time_up")
        case StoppedError():
            return 503, error_body("the server is being stopped.", 503, code="stopping")
        case ServerError() | BudgetError():
            _LOG.warning("%s", error)
            return 502, error_body("the server of the language model did not answer as it should.", 502)
        case ModelError():
            _LOG.warning("%s", error)
            return 500, error_body("the language model failed: see the log of the server.", 500)
        case RalmError():
            _LOG.warning("%s", error)
            return 500, error_body("the server cannot read what it serves: see its log.", 500)
    _LOG.error("an error that should not be", exc_info=error)
    return 500, error_body("the server has an error: see its log.", 500)
