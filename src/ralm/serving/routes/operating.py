"""For the operator: GET /health and /metrics, POST /admin/reload."""

from fastapi import APIRouter
from pydantic import JsonValue
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from ralm.serving.errors import RequestError
from ralm.serving.routes.answering import Served
from ralm.version import __version__

router = APIRouter()


@router.get("/health")
async def health(service: Served) -> dict[str, JsonValue]:
    """Whether the server answers; 503 if its model can read nothing any more."""
    if service.failed:
        raise RequestError(
            "the language model has failed for good: see the log, and start the server anew.", status=503
        )
    return {"status": "ok", "version": __version__}


@router.get("/metrics")
async def metrics(service: Served) -> Response:
    """Figures for Prometheus."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.post("/admin/reload")
async def reload(service: Served) -> dict[str, JsonValue]:
    """Serve the indexes as their folders are now; only where clients need a key."""
    if service.key is None:
        raise RequestError(
            "without a key nobody may do this from here: set one, or send the process SIGHUP.", status=403
        )
    said = await run_in_threadpool(service.indexes.reload)
    return {"indexes": {**said}}
