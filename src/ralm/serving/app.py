"""The server as an ASGI application: routes, what becomes of bad requests, figures and log lines of every request."""

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ralm.serving.errors import RequestError
from ralm.serving.routes import chats, completions, models, operating, pages, searching, tokens
from ralm.serving.routes.answering import refusal
from ralm.serving.security import Guard
from ralm.serving.service import Service
from ralm.serving.wire.chats import ChatChosen, ChatRequest, MessageBody
from ralm.serving.wire.completions import CompletionRequest
from ralm.serving.wire.errors import error_body, first_fault
from ralm.serving.wire.fields import Body, Chosen
from ralm.version import __version__

_LOG: Final = logging.getLogger("ralm.serving")
_FAMILIES: Final = (completions, chats, models, tokens, searching, operating, pages)
_FIELDS: Final[Mapping[str, Mapping[str, type[Body]]]] = {
    "/v1/completions": {"ralm": Chosen, "": CompletionRequest},
    "/v1/chat/completions": {"ralm": ChatChosen, "messages": MessageBody, "": ChatRequest},
}
"""The fields of requests, and of their parts, for a message that names the nearest one."""
_NO_ROUTE: Final = "none"


def make_app(service: Service) -> FastAPI:
    """The application that serves a service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.workers = service.workers()
        yield
        app.state.workers.stop()

    app = FastAPI(title="ralm", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    for family in _FAMILIES:
        app.include_router(family.router)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(Exception, _refused)
    app.add_middleware(Guard, key=service.key, body_bytes=service.options.limits.body_bytes)
    app.add_middleware(Noted, service=service)
    return app


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    fields = _FIELDS.get(request.url.path, {})
    part = next((name for name in fields if name in faults[0]["loc"]), "")
    known = fields.get(part)
    said, param = first_fault(faults, [] if known is None else [*known.model_fields])
    return JSONResponse(error_body(said, 400, param=param), 400)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = str(error.detail)
    if error.status_code == 404:
        said = f"there is no {request.url.path} here; /openapi.json lists what there is."
    elif error.status_code == 405:
        said = f"{request.url.path} does not take {request.method} requests."
    elif error.status_code == 400:
        said = "the body cannot be read; send one JSON object."
    return JSONResponse(error_body(said, error.status_code), error.status_code, dict(error.headers or {}))


async def _refused(_: Request, error: Exception) -> Response:
    return refusal(error)


class Noted:
    """Counts every request that `app` answers, and logs it without its body or query."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._metrics = service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and note it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.monotonic(), 499

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            self._note(scope, status, time.monotonic() - begin)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route: Any = scope.get("route")
        path = getattr(route, "path", _NO_ROUTE)  # never the client's: there may be any number of these
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        _LOG.info("%s %s %d in %.3f s", scope["method"], path, status, seconds)
