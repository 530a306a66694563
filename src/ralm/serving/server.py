"""The process of a server: the application with the operator's routes and the page, its socket and its signals.

SIGTERM or SIGINT ends the server after the running requests, a second one at once; SIGHUP reloads the
indexes.
"""

import asyncio
import hashlib
import logging
import os
import re
import signal
import socket
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import count
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import JsonValue
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from ralm.errors import UsageError
from ralm.options import without_none
from ralm.retrieval.bm25.kernels import load_compiler
from ralm.retrieval.summary import corpus_title
from ralm.runs.report import render_page
from ralm.serving import connections, errors, jobs, middleware, options, proxy, requests, retrieval_routes, routes
from ralm.serving.proxy import ProxyService
from ralm.serving.search_service import SearchService
from ralm.serving.service import LocalService, ModelService
from ralm.settings import CATALOGUES
from ralm.terminal import no_progress
from ralm.version import __version__

_LOG: Final = logging.getLogger("ralm.serving")
_FIELDS: Final[Mapping[str, Mapping[str, type[requests.Body]]]] = {
    "/v1/completions": {"ralm": requests.Chosen, "": requests.CompletionRequest},
    "/v1/chat/completions": {"ralm": requests.ChatChosen, "messages": requests.MessageBody, "": requests.ChatRequest},
    "/retrieve": {"": retrieval_routes.RetrieveRequest},
}
"""The fields of requests, and of their parts, for messages that suggest the nearest one."""
_PACKAGE: Final = "ralm.serving"
_BACKLOG: Final = 512
"""Connections that the system holds until they are accepted."""
_FOLLOW_SECONDS: Final = 5
"""Between two looks at the folders of indexes with `follow`."""
_LOGGERS: Final = ("ralm.serving", "uvicorn.error", "asyncio")
"""Loggers of faults that clients can cause."""
_END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_ROUTER: Final = APIRouter()


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    fields = _FIELDS.get(request.scope["route"].path, {})
    part = next((name for name in fields if name in faults[0]["loc"]), "")
    known = [*fields[part].model_fields] if part in fields else []
    return errors.error_response(errors.validation_error(faults[0], known))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    messages = {
        400: "the body cannot be read; send one JSON object.",
        404: f"there is no {path} here; /openapi.json lists the routes.",
        405: f"{path} does not accept {request.method} requests.",
    }
    message = messages.get(error.status_code, str(error.detail))
    return JSONResponse(errors.error_body(message, error.status_code), error.status_code, dict(error.headers or {}))


async def _on_error(_: Request, error: Exception) -> Response:
    return errors.error_response(error)


@_ROUTER.get("/health")
async def health(service: jobs.Searched) -> dict[str, JsonValue]:
    """The state of the server; 503 if its model has failed."""
    service.check_health()
    return {"status": "ok", "version": __version__}


@_ROUTER.get("/ready")
async def ready(request: Request, service: jobs.Searched) -> dict[str, JsonValue]:
    """Whether requests can be answered: 503 too if the server of the model does not answer."""
    upstream = request.app.state.upstream
    if upstream is not None and not await upstream.is_reachable():
        raise errors.RequestError("the server of the language model does not answer.", status=503)
    return await health(service)


@_ROUTER.get("/metrics")
async def metrics(service: jobs.Searched) -> Response:
    """Metrics for Prometheus."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@_ROUTER.post("/admin/reload")
async def reload(service: jobs.Searched) -> dict[str, JsonValue]:
    """Open the indexes again; only if the server has a key."""
    if service.key is None:
        raise errors.RequestError("this needs a key of the server: set one, or send SIGHUP to the process.", status=403)
    return {"indexes": {**await run_in_threadpool(service.reload)}}


@cache
def _page(*, has_key: bool) -> HTMLResponse:
    """The page, with a policy that lets a browser run and load nothing else."""
    html = render_page(_PACKAGE, "page.html", "ralm", {"has_key": has_key})
    policy = (
        f"default-src 'none'; script-src {_digest('script', html)}; style-src {_digest('style', html)}; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return HTMLResponse(html, headers=headers)


def _digest(tag: str, html: str) -> str:
    """The digest, in a policy, of the one element with this name and no attributes."""
    [inside] = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return f"'sha256-{b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"


@routes.model_router.get("/", include_in_schema=False)
async def root(service: jobs.Modelled) -> HTMLResponse:
    """The page."""
    return _page(has_key=service.key is not None)


@routes.model_router.get("/choices")
async def list_choices(service: jobs.Modelled) -> dict[str, JsonValue]:
    """The model, its default settings, and the choices of requests."""
    index = service.settings.index
    return {
        "model": service.name,
        "corpus": None if index is None else corpus_title(service.indexes.index(index)),
        **service.description,
        "defaults": service.settings.config,
        "choices": {name: _values(name, service) for name in service.choices},
    }


def _values(name: str, service: ModelService) -> JsonValue:
    """The possible values of a choice, or its bounds; empty if there is no restriction."""
    if name == "index":
        return {"values": [*service.indexes.names]}
    declared = options.choices().get(name)
    if declared is None:
        return {}
    kind = without_none(declared.kind)
    if name in CATALOGUES:
        parts = CATALOGUES[name].records
        return {"values": [part for part in parts if name != "retriever" or service.can_search(part)]}
    if kind is not int:
        return {}
    most = declared.option.maximum
    if name == "documents":
        most = min(most, service.options.limits.documents)
    return {"least": 1 if declared.option.minimum is None else int(declared.option.minimum), "most": int(most)}


async def _check_query(request: Request) -> None:
    """Raise RequestError for unknown parameters in the query."""
    known = {one.alias for one in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise errors.RequestError(f"`{name}` is not a parameter of {request.scope['route'].path}.", param=name)


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket; UsageError if the port is in use, or the address belongs to another computer."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host.strip("[]"), port), family=family, backlog=_BACKLOG)
        # accepted connections inherit it; without it a stream on a kept connection waits 40 ms for the client's ACK
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UsageError(
            f"cannot listen on {host}:{port} ({reason.lower()}): choose another `port` or `host`."
        ) from None


def run_server(service: SearchService, listening: socket.socket, ready: Callable[[str], None]) -> None:
    """Answer requests until a signal ends the server; `ready` is called with its address once it listens."""
    connections.reserve_files(service.options.limits.connections)
    with no_progress():
        load_compiler()
        service.warm_up()
        RalmServer(service, ready).run([listening])
        service.close()


def make_app(service: SearchService) -> FastAPI:
    """The ASGI application of a service."""
    limits, metrics = service.options.limits, service.metrics

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        workers = app.state.workers = jobs.Workers(
            limits.requests_at_once, limits.requests_waiting, limits.seconds, metrics
        )
        upstream = app.state.upstream = service.open_upstream() if isinstance(service, ProxyService) else None
        async with AsyncExitStack() as routes_in_use:
            if service.indexes.names and find_spec("mcp"):
                from ralm.serving.mcp import mcp_route

                app.router.routes.append(await routes_in_use.enter_async_context(mcp_route(service, workers)))
            yield
            workers.stop()
        if upstream is not None:
            await upstream.close()
        if service.audit is not None:
            service.audit.close()

    app = FastAPI(title="ralm", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    routers = [retrieval_routes.search_router, _ROUTER]
    if isinstance(service, ModelService):
        routers.append(routes.model_router)
    if isinstance(service, LocalService):
        routers.append(routes.local_router)
    for router in routers:
        app.include_router(router, dependencies=[Depends(_check_query)])
    if isinstance(service, ProxyService):
        app.include_router(proxy.router)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(errors.RequestError, _on_error)
    app.add_exception_handler(Exception, _on_error)
    app.add_middleware(middleware.Guard, key=service.key, body_bytes=limits.body_bytes)
    app.add_middleware(middleware.AccessLog, metrics=metrics, audit=service.audit)
    return app


class RalmServer(uvicorn.Server):
    """A server that calls `ready` with its address once it listens, ends slow connections, and handles signals."""

    def __init__(self, service: SearchService, ready: Callable[[str], None]) -> None:
        super().__init__(connections.ServerConfig(make_app(service), service.options.limits))
        self._service = service
        self._ready = ready

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer requests until the server is told to end."""
        once, loggers = connections.OnceAMinute(), [logging.getLogger(name) for name in _LOGGERS]
        for logger in loggers:
            logger.addFilter(once)
        try:
            await super().serve(sockets)
        finally:
            for logger in loggers:
                logger.removeFilter(once)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and call `ready`."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_BACKLOG)  # uvicorn has just lowered it to the number of connections accepted at once
        self._checking = asyncio.create_task(self._check_connections())
        if not self.should_exit and sockets:
            self._ready(address_of(sockets[0]))

    async def _check_connections(self) -> None:
        for second in count(1):
            await asyncio.sleep(1)
            now = time.monotonic()
            for connection in self._connections:
                connection.check(now)
            if self._service.options.follow and second % _FOLLOW_SECONDS == 0 and self._service.indexes.have_changed():
                self._reload()

    @property
    def _connections(self) -> list[connections.Connection]:
        return [one for one in self.server_state.connections if isinstance(one, connections.Connection)]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End connections without a whole request, and the others after their responses, as long as there is time."""
        seconds = self._service.options.limits.shutdown_seconds

        def end() -> None:
            _LOG.warning("requests that did not end in %g seconds were stopped", seconds)
            for connection in self._connections:
                connection.transport.abort()

        timer = asyncio.get_running_loop().call_later(seconds, end)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            self._checking.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals inside the block; only in the main thread."""
        if current_thread() is not main_thread():
            yield
            return
        handlers: dict[int, Any] = {**dict.fromkeys(_END_SIGNALS, self._end), signal.SIGHUP: self._reload}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, _: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + number)
        self.should_exit = True

    def _reload(self, *_: object) -> None:
        def reload() -> None:
            for name, outcome in self._service.reload().items():
                _LOG.info("index %s: %s", name, outcome)

        Thread(target=reload, daemon=True).start()


def address_of(listening: socket.socket) -> str:
    """The base URL of a server that listens on this socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
