"""The application of a server, with the operator's routes and the page."""

import hashlib
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from importlib.util import find_spec
from typing import Annotated, Final, TypeAlias

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import JsonValue
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from ralm.evaluation.report import render_page
from ralm.retrieval.summary import corpus_title
from ralm.serving import errors, jobs, middleware, search
from ralm.serving.local import LocalService
from ralm.serving.state import ModelService, SearchService
from ralm.version import __version__

_ROUTER: Final = APIRouter(dependencies=[Depends(jobs.check_query)])
_MODEL_ROUTER: Final = APIRouter(dependencies=[Depends(jobs.check_query)])
_Modelled: TypeAlias = Annotated[ModelService, Depends(jobs.service_of)]


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return errors.error_response(errors.validation_error(error.errors()[0]))


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
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


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
    """Return the model, what it can do, its default settings, and the choices of requests."""
    index = service.settings.index
    return {
        "model": service.name,
        "corpus": None if index is None else corpus_title(service.indexes.index(index)),
        "can": {**service.can},
        "defaults": service.settings.config,
        "choices": [name for name in service.options.allow if name in service.may_choose],
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
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(errors.RequestError, _on_error)
    app.add_exception_handler(Exception, _on_error)
    app.add_middleware(
        middleware.Gate, key=service.key, body_bytes=limits.body_bytes, metrics=metrics, audit=service.audit
    )
    return app
