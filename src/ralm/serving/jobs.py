"""Gives each request a slot, runs its computation in a thread, and turns what that makes into a response or a stream.

A slot is free again once its request has left it and its thread has ended, even if the client goes away before: it
stands for the computation.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from threading import Event
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Request
from pydantic import JsonValue
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ralm.records import Passage
from ralm.serving import answers, errors, middleware, model, options, requests, state

_LOG: Final = logging.getLogger("ralm.serving")
_NOT_BUFFERED: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_OVERTIME: Final = 1.0
"""Seconds that a thread has after the deadline to end by itself, and then a stream to tell its error."""
_JSON: Final = "application/json"
_DONE: Final = b"data: [DONE]\n\n"
_Result = TypeVar("_Result")


class Workers:
    """Gives out slots, as many as requests are answered at once; some more wait. Belongs to one event loop."""

    def __init__(self, limits: options.Limits, metrics: middleware.Metrics) -> None:
        self.metrics = metrics
        self._limits = limits
        self._free = asyncio.Semaphore(limits.requests_at_once)
        self._threads = ThreadPoolExecutor(limits.requests_at_once, "ralm-request")
        self._slots: set[Slot] = set()
        self._waiting = 0

    async def take_slot(self) -> "Slot":
        """Return a slot as soon as there is one; RequestError if that takes too long, or too many wait."""
        if self._free.locked() and self._waiting >= self._limits.requests_waiting:
            raise errors.RequestError("the queue is full: try again later.", code="busy", status=429)
        begin = time.monotonic()
        self._waiting += 1
        self.metrics.waiting.inc()
        try:
            async with asyncio.timeout(self._limits.seconds):
                await self._free.acquire()
        except TimeoutError:
            raise model.timed_out("waited in the queue too long: try again later") from None
        finally:
            self._waiting -= 1
            self.metrics.waiting.dec()
        self.metrics.under_way.inc()
        slot = Slot(begin, begin + self._limits.seconds, self._threads, self._free_slot)
        self._slots.add(slot)
        return slot

    async def in_slot(
        self, work: "Callable[[Slot], Awaitable[_Result]]", receive: Receive | None = None
    ) -> _Result | None:
        """Return what `work` returns in a slot; None if the client goes away first, RequestError for a timeout."""

        async def answered() -> _Result:
            slot = await self.take_slot()
            async with slot.at_end, _until(slot.deadline + _OVERTIME):
                return await work(slot)

        return await (answered() if receive is None else _unless_gone(receive, answered))

    def stop(self) -> None:
        """End all requests soon."""
        for slot in self._slots:
            slot.gone.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _free_slot(self, slot: "Slot") -> None:
        self._slots.remove(slot)
        self.metrics.under_way.dec()
        self._free.release()


class Slot:
    """The slot of a request that came at `begin`, until `deadline` (seconds of `time.monotonic`).

    Its request leaves it with what `at_end` closes; its thread ends soon once the request is `gone`.
    """

    def __init__(
        self, begin: float, deadline: float, threads: ThreadPoolExecutor, free: Callable[["Slot"], None]
    ) -> None:
        self.begin = begin
        self.deadline = deadline
        self.gone = Event()
        self.at_end = AsyncExitStack()
        self.at_end.callback(self._leave)
        self._threads = threads
        self._free = free
        self._holders: set[object] = {self}

    async def in_thread(self, call: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return what a function returns in a thread, which goes on if the caller is cancelled."""
        return await asyncio.shield(self._begun(call, *arguments))

    async def events(self, make: Callable[[], Iterator[bytes]]) -> AsyncIterator[bytes]:
        """Yield the events that a thread makes; it alone holds the slot from then on: a client may read slowly."""
        loop, made = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()

        def work() -> None:
            for event in make():
                loop.call_soon_threadsafe(made.put_nowait, event)

        ended = self._begun(work)
        ended.add_done_callback(lambda _: made.put_nowait(None))
        self._end(self)
        while (event := await made.get()) is not None:
            yield event
        await ended

    def _begun(self, call: Callable[..., _Result], *arguments: Any) -> "asyncio.Future[_Result]":
        def work() -> _Result:
            with model.in_scope(model.RequestScope(self.gone, self.deadline)):
                return call(*arguments)

        ended = asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._holders.add(ended)
        ended.add_done_callback(self._thread_ended)
        return ended

    def _thread_ended(self, ended: "asyncio.Future[Any]") -> None:
        self._end(ended)
        if not ended.cancelled():
            ended.exception()  # nobody may wait for it any more

    def _leave(self) -> None:
        self.gone.set()
        self._end(self)

    def _end(self, holder: object) -> None:
        if holder in self._holders:
            self._holders.remove(holder)
            if not self._holders:
                self._free(self)


@asynccontextmanager
async def _until(deadline: float) -> AsyncIterator[None]:
    """Raise RequestError if the block does not end before the deadline (seconds of `time.monotonic`)."""
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            yield
    except TimeoutError:
        raise model.timed_out("timed out: ask for fewer tokens") from None


async def _unless_gone(receive: Receive, work: Callable[[], Awaitable[_Result]]) -> _Result | None:
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


async def service_of(request: Request) -> Any:
    """Return the service that answers a request; FastAPI calls functions that are not `async` in threads."""
    return request.app.state.service


Searched = Annotated[state.SearchService, Depends(service_of)]


async def check_query(request: Request) -> None:
    """Raise RequestError for unknown parameters in the query."""
    # Private: the route in the scope of a request; tests of queries.
    parameters = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in parameters:
            raise errors.RequestError(f"`{name}` is not a parameter of {request.scope['route'].path}.", param=name)


def passage_address(request: Request, reads: state.ReadConfig, passage: Passage) -> str:
    """Return the URL of a passage: of its document in the web, or else of this server, by document and text."""
    route = request.url_for("passage", index=reads.settings.index)
    address = route.include_query_params(document=passage.document_id, text=answers.text_key(passage))
    return answers.web_address(passage) or str(address)


async def respond(request: Request, work: Callable[[Slot], Awaitable[Response]]) -> Response:
    """Return the response that `work` makes in a slot; every error is a response."""
    try:
        return await request.app.state.workers.in_slot(work, request.receive) or Response(status_code=errors.GONE)
    except Exception as error:  # noqa: BLE001
        return errors.error_response(error)


async def respond_in_thread(request: Request, compute: Callable[[], Response]) -> Response:
    """Return the response that `compute` makes in the thread of the request."""
    return await respond(request, lambda slot: slot.in_thread(compute))


async def respond_with_text(
    request: Request, body: requests.TextRequest, begin: Callable[[], answers.ServedAnswer[Any]]
) -> Response:
    """Return the answer that `begin` makes in the thread of the request: whole, or streamed if requested."""
    entry = middleware.entry_of(request)
    entry.model = body.model

    def make() -> Iterator[bytes]:
        answer = begin()
        entry.finish = answer.fill
        try:
            if body.stream:
                yield from map(server_sent, answer.pieces())
                yield _DONE
            else:
                yield json_bytes(answer.whole())
        finally:
            request.app.state.service.metrics.count_tokens(answer.prompt_tokens, answer.written_tokens)

    async def work(slot: Slot) -> Response:
        events = slot.events(make)
        first = await anext(events)  # an error before it has a status of its own
        return EventStream(request, slot, first, events) if body.stream else Response(first, media_type=_JSON)

    return await respond(request, work)


def json_bytes(value: JsonValue) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def json_response(value: JsonValue) -> Response:
    """Return a response of a value as JSON."""
    return Response(json_bytes(value), media_type=_JSON)


def server_sent(value: JsonValue) -> bytes:
    """Return a value as a server-sent event."""
    return b"data: " + json_bytes(value) + b"\n\n"


class EventStream(StreamingResponse):
    """Server-sent events, `first` and then the others; after an error one that says so.

    The request leaves its slot when the stream ends, also if its client goes away, and soon after the deadline even if
    the client does not read.
    """

    def __init__(
        self,
        request: Request,
        slot: Slot,
        first: bytes,
        events: AsyncIterator[bytes],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(
            self._sent(first, events), media_type="text/event-stream", headers={**headers, **_NOT_BUFFERED}
        )
        request.app.state.service.metrics.first.observe(time.monotonic() - slot.begin)
        self._entry = middleware.entry_of(request)
        self._deadline = slot.deadline + _OVERTIME
        self._at_end = slot.at_end.pop_all()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with self._at_end:
            with suppress(errors.RequestError):  # the status is sent already
                async with _until(self._deadline + _OVERTIME):
                    await super().__call__(scope, receive, send)

    async def _sent(self, first: bytes, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            yield first
            while True:
                async with _until(self._deadline):
                    event = await anext(events, None)
                if event is None:
                    return
                yield event
        except Exception as error:  # noqa: BLE001  # the status is sent already
            status, body = errors.status_and_body(error)
            self._entry.status = status
            _LOG.info("a stream ended with status %s", status)
            yield server_sent(body)
