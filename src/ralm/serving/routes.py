"""The routes of a language model: completions, chats and models."""

from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Request
from pydantic import JsonValue
from starlette.responses import Response

from ralm.serving import answers, errors, jobs, proxy, requests
from ralm.serving.audit import entry_of
from ralm.serving.chat import ChatAnswer, answer_chat
from ralm.serving.completion import CompletionAnswer, complete
from ralm.serving.service import Service

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request, body: requests.CompletionRequest, service: jobs.Served) -> Response:
    """Continue prompts, or score them (`echo`), with passages in front."""

    def begin() -> answers.ServedAnswer:
        limits = service.options.limits
        choice = service.chosen(body.model, body.chosen)
        completion = requests.completion_of(body, limits)
        reads = service.reads(choice)
        entry_of(request).prompts = [one if isinstance(one, str) else [*one] for one in completion.prompts]
        events = complete(completion, service.model, reads, limits)
        return CompletionAnswer(completion, events, reads, service.names, model=body.model)

    return await _respond(request, body, service, begin)


@router.post("/v1/chat/completions")
async def chat(request: Request, body: requests.ChatRequest, service: jobs.Served) -> Response:
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

    return await _respond(request, body, service, begin)


async def _respond(
    request: Request, body: requests.TextRequest, service: Service, begin: Callable[[], answers.ServedAnswer]
) -> Response:
    """The answer that `begin` makes. A header names the fields that it does not follow; a server behind may do so."""
    ignored = body.not_followed

    def followed() -> answers.ServedAnswer:
        if ignored and service.open_upstream is not None:
            name = next(iter(ignored))
            raise errors.RequestError(f"`{name}` is not supported: leave it out.", param=name)
        return begin()

    response = await jobs.respond(request, body, followed, proxy.otherwise(request, await request.json()))
    if service.open_upstream is None and response.status_code == 200:
        warning = "; ".join(f"without `{name}`: {reason}" for name, reason in ignored.items())
        response.headers.update(proxy.warning_header(warning and f"answered {warning}"))
    return response


@router.get("/v1/models")
async def models(service: jobs.Served) -> dict[str, JsonValue]:
    """The names of the language model."""
    return {"object": "list", "data": [*_models(service).values()]}


@router.get("/v1/models/{name:path}")
async def model(name: str, service: jobs.Served) -> JsonValue:
    """One model."""
    service.check_model(name)
    return _models(service)[name]


def _models(service: Service) -> dict[str, JsonValue]:
    head: dict[str, JsonValue] = {"object": "model", "created": service.created, "owned_by": "ralm"}
    own: dict[str, JsonValue] = {"max_model_len": service.max_length, "indexes": [*service.indexes.names]}
    if service.open_upstream is None:
        own["root"] = service.model.name  # where the tokenizer is, as vLLM reports it
    return {name: {"id": name, **head, **own, "index": index} for name, index in service.models.items()}
