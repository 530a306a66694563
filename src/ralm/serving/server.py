"""The application of a server with the operator's routes and the page, its socket, its signals and its end.

SIGTERM or SIGINT ends the server after the running requests, a second one at once; SIGHUP reloads the indexes.
Headers and bodies that drip from the open internet are the work of a reverse proxy.
"""

import asyncio
import atexit
import hashlib
import logging
import os
import re
import resource
import signal
import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from importlib.util import find_spec
from threading import Thread
from typing import Annotated, Final, TypeAlias

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import generate_latest
from pydantic import JsonValue
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from ralm import __version__
from ralm.errors import UsageError
from ralm.evaluation.report import render_page
from ralm.retrieval.bm25.kernels import load_compiler
from ralm.retrieval.index import corpus_title
from ralm.serving import errors, jobs, middleware, search
from ralm.serving.local import LocalService
from ralm.serving.state import ModelService, SearchService
from ralm.terminal import no_progress

_LOG: Final = logging.getLogger("ralm.serving")
_BACKLOG: Final = 2048
"""Connections that the system holds until they are accepted."""
_UNREAD_SECONDS: Final = 60
"""Seconds after which the system ends the connection of a client that reads nothing of its answer."""
_KEEP_ALIVE_SECONDS: Final = 75
"""Seconds for which an idle connection is kept: longer than by clients and proxies (httpx 5, aiohttp 15, nginx 60)."""
_FOLLOW_SECONDS: Final = 5
"""Between two looks at the folders of indexes with `follow`."""
_REQUESTS_SHARE: Final = 0.9
"""The part of `shutdown_seconds` in which requests may end; the rest is for cutting them off."""
_ROUTER: Final = APIRouter(dependencies=[Depends(jobs.check_query)])
_MODEL_ROUTER: Final = APIRouter(dependencies=[Depends(jobs.check_query)])
_Modelled: TypeAlias = Annotated[ModelService, Depends(jobs.service_of)]


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = str(error.detail).lower().rstrip(".")
    message = f"{request.method} {request.url.path} cannot be answered ({reason}); /openapi.json lists the routes."
    return JSONResponse(errors.error_body(message, error.status_code), error.status_code, dict(error.headers or {}))


async def _on_error(_: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = errors.validation_error(error.errors()[0])
    return errors.error_response(error)


@_ROUTER.get("/health")
async def health(service: jobs.Searched) -> dict[str, JsonValue]:
    """Return the state of the server; 503 if its model has failed."""
    service.check_health()
    return {"status": "ok", "version": __version__}


@_ROUTER.get("/ready")
async def ready(request: Request, service: jobs.Searched) -> dict[str, JsonValue]:
    """Return whether requests can be answered: 503 too if the server of the model does not answer."""
    upstream = request.app.state.upstream
    if upstream is not None and not await upstream.is_reachable():
        raise errors.RequestError("the server of the language model does not answer.", status=503)
    return await health(service)


@_ROUTER.get("/metrics")
async def metrics(service: jobs.Searched) -> Response:
    """Return the metrics for Prometheus."""
    return Response(generate_latest(service.metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")


@cache
def _page(*, has_key: bool) -> HTMLResponse:
    """Return the page, with a policy that lets a browser run and load nothing else."""
    html = render_page("ralm.serving", "page.html", "ralm", {"has_key": has_key})
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
    """Return the digest, in a policy, of the one element with this name and no attributes."""
    [inside] = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return f"'sha256-{b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"


@_MODEL_ROUTER.get("/v1/models")
async def models(service: _Modelled) -> dict[str, JsonValue]:
    """Return the names of the language model."""
    return {"object": "list", "data": [*_models(service).values()]}


@_MODEL_ROUTER.get("/v1/models/{name:path}")
async def model(name: str, service: _Modelled) -> JsonValue:
    """Return one model."""
    service.check_model(name)
    return _models(service)[name]


def _models(service: ModelService) -> dict[str, JsonValue]:
    head: dict[str, JsonValue] = {"object": "model", "created": service.created, "owned_by": "ralm"}
    head["indexes"] = [*service.indexes.names]
    if isinstance(service, LocalService):
        head["max_model_len"] = service.settings.plan.max_length
        head["root"] = service.model.name  # where the tokenizer is, as vLLM reports it
    return {name: {"id": name, **head, "index": index} for name, index in service.models.items()}


@_MODEL_ROUTER.get("/", include_in_schema=False)
async def root(service: _Modelled) -> HTMLResponse:
    """Return the page."""
    return _page(has_key=service.key is not None)


@_MODEL_ROUTER.get("/choices")
async def list_choices(service: _Modelled) -> dict[str, JsonValue]:
    """Return the model, what it can do, and its default settings."""
    index = service.settings.index
    return {
        "model": service.name,
        "corpus": None if index is None else corpus_title(service.indexes.index(index)),
        "can": {**service.can},
        "defaults": service.settings.config,
    }


def make_app(service: SearchService) -> FastAPI:
    """Return the ASGI application of a service."""
    limits, metrics = service.options.limits, service.metrics

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        workers = app.state.workers = jobs.Workers(limits, metrics)
        upstream = app.state.upstream = None if service.open_upstream is None else service.open_upstream()
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
    of_model = [_MODEL_ROUTER] if isinstance(service, ModelService) else []
    for router in (search.router, _ROUTER, *of_model, *service.routers):
        app.include_router(router)
    app.add_exception_handler(HTTPException, _http_error)
    for kind in (RequestValidationError, errors.RequestError, Exception):
        app.add_exception_handler(kind, _on_error)
    app.add_middleware(
        middleware.Gate, key=service.key, body_bytes=limits.body_bytes, metrics=metrics, audit=service.audit
    )
    return app


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; UsageError if the port is in use, or this computer has no such address."""
    name, family = host.strip("[]"), socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(name, port, family)
        listening = socket.create_server((name, port), family=family, backlog=_BACKLOG)
    except (OSError, ValueError) as error:  # ValueError: no name can be so
        reason = str(getattr(error, "strerror", error)).partition(" (while")[0].lower()
        raise UsageError(f"cannot listen on {host}:{port} ({reason}): choose another `port` or `host`.") from None
    # accepted connections inherit these; without the first, a stream on a kept connection waits 40 ms for an ACK
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _UNREAD_SECONDS)
    return listening


def address_of(listening: socket.socket) -> str:
    """Return the base URL of a server that listens on this socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(service: SearchService, listening: socket.socket, ready: Callable[[str], None]) -> None:
    """Answer requests until a signal ends the server; call `ready` with its address once it listens."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # each connection has a file
    with no_progress():
        load_compiler()
        service.warm_up()
        signal.signal(signal.SIGHUP, lambda *_: _reload(service))
        RalmServer(service, ready).run([listening])
        service.close()


def _reload(service: SearchService) -> None:

    def reload() -> None:
        for name, outcome in service.indexes.reload().items():
            _LOG.info("index %s: %s", name, outcome)

    Thread(target=reload, daemon=True).start()


class RalmServer(uvicorn.Server):
    """A server that calls `ready` with its address once it listens, and ends within `shutdown_seconds`."""

    def __init__(self, service: SearchService, ready: Callable[[str], None]) -> None:
        super().__init__(
            uvicorn.Config(
                make_app(service),
                http="h11",  # it bounds the size of headers
                ws="none",
                lifespan="on",
                access_log=False,
                log_config=None,
                log_level="warning",
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_notify=_FOLLOW_SECONDS,
                callback_notify=self._follow if service.options.follow else None,
            )
        )
        self._service = service
        self._ready = ready
        self._seconds = service.options.limits.shutdown_seconds

    # Private: uvicorn's steps of a server and its connections; test_running.py.
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and call `ready`."""
        await super().startup(sockets)
        if not self.should_exit and sockets:
            self._ready(address_of(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End connections after their responses, or when the time for them is over."""
        cutting = asyncio.get_running_loop().call_later(self._seconds * _REQUESTS_SHARE, self._cut_off)
        await super().shutdown(sockets)
        cutting.cancel()

    def _cut_off(self) -> None:
        _LOG.warning("requests that did not end in %g seconds were cut off", self._seconds * _REQUESTS_SHARE)
        for connection in self.server_state.connections:
            connection.transport.abort()

    def handle_exit(self, sig: int, _: object) -> None:
        """End after the running requests, within `shutdown_seconds` whatever threads do; at a second signal at once."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True
        signal.signal(signal.SIGALRM, self._exit_now)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # all threads that are waited for have ended then

    def _exit_now(self, *_: object) -> None:
        _LOG.warning("the server did not end in %g seconds: it was stopped", self._seconds)
        os._exit(1)

    async def _follow(self) -> None:
        if self._service.indexes.have_changed():
            _reload(self._service)
