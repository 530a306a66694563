"""The routes of a language model: its names, and the completions and chats of one that runs here."""

from functools import partial
from typing import Final

from fastapi import APIRouter, Request
from pydantic import JsonValue
from starlette.responses import Response

from ralm.serving import answers, jobs, requests
from ralm.serving.audit import entry_of
from ralm.serving.chat import ChatAnswer, answer_chat
from ralm.serving.completion import CompletionAnswer, complete
from ralm.serving.service import LocalService, ModelService

model_router: Final = APIRouter()
local_router: Final = APIRouter()


@local_router.post("/v1/completions")
async def completions(request: Request, body: requests.CompletionRequest, service: jobs.Local) -> Response:
    """Continue prompts, or score them (`echo`), with passages in front."""

    def begin() -> answers.ServedAnswer:
        limits = service.options.limits
        choice = service.chosen(body.model, body.chosen)
        completion = requests.completion_of(body, limits)
        reads = service.reads(choice)
        entry_of(request).prompts = [one if isinstance(one, str) else [*one] for one in completion.prompts]
        events = complete(completion, service.model, reads, limits)
        return CompletionAnswer(completion, events, reads, service.names, model=body.model)

    return await jobs.respond(request, body, begin)


@local_router.post("/v1/chat/completions")
async def chat(request: Request, body: requests.ChatRequest, service: jobs.Local) -> Response:
    """Answer the last message of the user in a conversation, with passages in it; a local model calls no tools."""

    def begin() -> answers.ServedAnswer:
        limits = service.options.limits
        choice = service.chosen(body.model, body.chosen)
        completion = requests.chat_of(body, limits)
        reads = service.reads(choice, in_strides=False)
        entry_of(request).prompts = [completion.conversation.question]
        address = partial(jobs.passage_address, request, reads)
        events = answer_chat(completion, service.model, reads, service.prompt, limits)
        return ChatAnswer(completion, events, reads, service.names, address, model=body.model)

    return await jobs.respond(request, body, begin)


@model_router.get("/v1/models")
async def models(service: jobs.Modelled) -> dict[str, JsonValue]:
    """Return the names of the language model."""
    return {"object": "list", "data": [*_models(service).values()]}


@model_router.get("/v1/models/{name:path}")
async def model(name: str, service: jobs.Modelled) -> JsonValue:
    """Return one model."""
    service.check_model(name)
    return _models(service)[name]


def _models(service: ModelService) -> dict[str, JsonValue]:
    head: dict[str, JsonValue] = {"object": "model", "created": service.created, "owned_by": "ralm"}
    head["indexes"] = [*service.indexes.names]
    if isinstance(service, LocalService):
        head["max_model_len"] = service.max_length
        head["root"] = service.model.name  # where the tokenizer is, as vLLM reports it
    return {name: {"id": name, **head, "index": index} for name, index in service.models.items()}
