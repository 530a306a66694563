"""For people: the page at `/`, and GET /choices, what a request may choose here."""

from functools import cache
from typing import Final, Literal, get_args, get_origin

from fastapi import APIRouter
from pydantic import JsonValue
from starlette.responses import HTMLResponse

from ralm.options import without_none
from ralm.serving.pages.page import ServedPage, server_page
from ralm.serving.routes.answering import Served
from ralm.serving.service import Service
from ralm.serving.settings import choices

router = APIRouter()
_page: Final = cache(server_page)


@router.get("/", include_in_schema=False)
async def root(service: Served) -> HTMLResponse:
    """The page, which asks for everything else."""
    made: ServedPage = _page(has_key=service.key is not None)
    return HTMLResponse(made.html, headers=made.headers)


@router.get("/choices")
async def chosen(service: Served) -> dict[str, JsonValue]:
    """The model, how it reads by default, and what a request may choose instead."""
    allowed = {name: _values(name, service) for name in service.options.allow if name != "none"}
    new_tokens = service.options.limits.new_tokens
    return {
        "model": service.name,
        "max_model_len": service.max_length,
        "most_new_tokens": service.max_length if new_tokens is None else new_tokens,
        "defaults": service.settings.config,
        "choices": {**allowed},
    }


def _values(name: str, service: Service) -> JsonValue:
    """The values of a choice: those that there are, or the least and the most; nothing if any value will do."""
    if name == "index":
        return {"values": [*service.indexes.names]}
    declared = choices().get(name)
    if declared is None:
        return {}
    kind = without_none(declared.kind)
    if name == "retriever":
        return {"values": [one for one in get_args(kind) if service.can_search(one)]}
    if get_origin(kind) is Literal:
        return {"values": [*get_args(kind)]}
    if kind is not int:
        return {}
    most = declared.option.most
    if name in ("documents", "candidates"):
        most = min(most, service.options.limits.documents)
    return {"least": 1 if declared.option.least is None else int(declared.option.least), "most": int(most)}
