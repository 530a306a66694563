"""What is served: GET /v1/models and one of them."""

from fastapi import APIRouter
from pydantic import JsonValue

from ralm.serving.errors import RequestError
from ralm.serving.routes.answering import Served
from ralm.serving.service import Service

router = APIRouter()


@router.get("/v1/models")
async def models(service: Served) -> dict[str, JsonValue]:
    """The names of the language model, and the indexes that encode texts."""
    return {"object": "list", "data": [*_models(service).values()]}


@router.get("/v1/models/{name:path}")
async def model(name: str, service: Served) -> JsonValue:
    """One of them."""
    found = _models(service).get(name)
    if found is None:
        raise RequestError(
            f"the model {name!r} is not served; there is: {', '.join(_models(service))}.",
            param="model",
            code="model_not_found",
            status=404,
        )
    return found


def _models(service: Service) -> dict[str, JsonValue]:
    head: dict[str, JsonValue] = {"object": "model", "created": service.created, "owned_by": "ralm"}
    own: dict[str, JsonValue] = {"max_model_len": service.max_length, "indexes": [*service.indexes.names]}
    models: dict[str, JsonValue] = {
        name: {"id": name, **head, **own, "index": index} for name, index in service.models.items()
    }
    encoders: dict[str, JsonValue] = {name: {"id": name, **head} for name in service.indexes.dense_names()}
    return {**encoders, **models}
