"""The routes of a language model: completions, chats, models and the tokenizer."""

from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import JsonValue
from starlette.responses import Response

from ralm.errors import ModelError
from ralm.lm.tokenizer import full_tokenizer
from ralm.serving import answers, errors, jobs, proxy, requests
from ralm.serving.audit import entry_of
from ralm.serving.chat import ChatAnswer, answer_chat
from ralm.serving.completion import CompletionAnswer, complete
from ralm.serving.prompts import check_bytes, read_prompt
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
        service.log_prompts(completion.prompts)
        entry_of(request).prompts = [one if isinstance(one, str) else [*one] for one in completion.prompts]
        events = complete(completion, service.model, reads, limits)
        return CompletionAnswer(completion, events, reads, service.names, model=body.model)

    return await jobs.respond(request, body, begin, proxy.otherwise(request, await request.json()))


@router.post("/v1/chat/completions")
async def chat(request: Request, body: requests.ChatRequest, service: jobs.Served) -> Response:
    """Answer the last message of the user in a conversation, with passages in it; a local model calls no tools."""

    def begin() -> answers.ServedAnswer:
        if body.tools and service.open_upstream is not None:
            raise errors.RequestError("`tools` is not supported: leave it out.", param="tools")
        limits = service.options.limits
        choice = service.chosen(body.model, body.chosen)
        completion = requests.chat_of(body, limits)
        reads = service.reads(choice, in_strides=False)
        service.log_prompts([completion.conversation.question])
        entry_of(request).prompts = [completion.conversation.question]
        address = partial(jobs.passage_address, request, reads)
        events = answer_chat(completion, service.model, reads, service.prompt, limits)
        return ChatAnswer(completion, events, reads, service.names, address, model=body.model)

    response = await jobs.respond(request, body, begin, proxy.otherwise(request, await request.json()))
    if body.tools and service.open_upstream is None and response.status_code == 200:
        response.headers[proxy.WARNING] = "answered without `tools`: this model calls none"
    return response


@router.get("/v1/models")
async def models(service: jobs.Served) -> dict[str, JsonValue]:
    """The names of the language model."""
    return {"object": "list", "data": [*_models(service).values()]}


@router.get("/v1/models/{name:path}")
async def model(name: str, service: jobs.Served) -> JsonValue:
    """One model."""
    known = _models(service)
    if name not in known:
        raise errors.model_not_found(f"the model {name!r} is not served; the models are: {', '.join(known)}.")
    return known[name]


def _models(service: Service) -> dict[str, JsonValue]:
    head: dict[str, JsonValue] = {"object": "model", "created": service.created, "owned_by": "ralm"}
    own: dict[str, JsonValue] = {"max_model_len": service.max_length, "indexes": [*service.indexes.names]}
    if service.open_upstream is None:
        own["root"] = service.model.name  # where the tokenizer is, as vLLM reports it
    return {name: {"id": name, **head, **own, "index": index} for name, index in service.models.items()}


class TokenizeRequest(requests.Body):
    """A text to split into tokens; `add_special_tokens` adds those that the tokenizer puts around it."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


@router.post("/tokenize")
async def tokenize(request: Request, body: TokenizeRequest, service: jobs.Served) -> Response:
    """The token ids of a text."""

    def tokenized() -> JsonValue:
        service.check_model(body.model)
        check_bytes([body.prompt], service.options.limits.text_bytes, "prompt")
        tokenizer = full_tokenizer(service.model.tokenizer)
        tokens = tokenizer.encode(body.prompt)
        if body.add_special_tokens is not False:
            special = tokenizer.special_tokens
            tokens = np.concatenate([special.before, tokens, special.after])
        ids: list[JsonValue] = tokens.tolist()
        names: JsonValue = [*map(service.names.of, tokens.tolist())] if body.return_token_strs else None
        return {"count": len(ids), "max_model_len": service.max_length, "tokens": ids, "token_strs": names}

    return await jobs.respond_with(request, tokenized)


class DetokenizeRequest(requests.Body):
    """Token ids to turn into text."""

    tokens: list[int]
    model: str | None = None


@router.post("/detokenize")
async def detokenize(request: Request, body: DetokenizeRequest, service: jobs.Served) -> Response:
    """The text of token ids."""

    def detokenized() -> JsonValue:
        service.check_model(body.model)
        check_bytes([body.tokens], service.options.limits.text_bytes, "tokens")
        return {"prompt": read_prompt(body.tokens, service.model, "tokens").text if body.tokens else ""}

    return await jobs.respond_with(request, detokenized)


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request, service: jobs.Served) -> Response:
    """The special tokens, the chat template, and how many tokens there are."""

    def info() -> JsonValue:
        tokenizer: Any = service.model.tokenizer
        full = full_tokenizer(tokenizer)
        special = {"bos": full.special_tokens.begin, "eos": full.end_token, "unk": full.unknown_token}
        texts: dict[str, JsonValue] = {
            f"{name}_token": None if token is None else full.decode(np.array([token], dtype=np.int64))
            for name, token in special.items()
        }
        try:
            template = tokenizer.chat_template() if hasattr(tokenizer, "chat_template") else None
        except ModelError:  # there is none
            template = None
        size: dict[str, JsonValue] = {"vocab_size": service.model.vocabulary, "model_max_length": service.max_length}
        return {**texts, **size, "chat_template": template}

    return await jobs.respond_with(request, info)
