"""The tokenizer, as lm-evaluation-harness and vLLM's clients ask for it: /tokenizer_info, /tokenize, /detokenize."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import JsonValue
from starlette.responses import Response

from ralm.errors import ModelError
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import FullTokenizer
from ralm.serving.prompts import check_text, read_prompt
from ralm.serving.routes.answering import Served, as_bytes, whole
from ralm.serving.service import Service
from ralm.serving.wire.fields import Body
from ralm.serving.workers import Check

router = APIRouter()


class TokenizeRequest(Body):
    """A text to be split into tokens; `add_special_tokens` also those that the tokenizer puts around it."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """Token ids to be read as text."""

    tokens: list[int]
    model: str | None = None


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request, service: Served) -> Response:
    """The special tokens, the chat template, and how many tokens there are."""

    def job(_: Check) -> Iterator[bytes]:
        yield as_bytes(_info(service))

    return await whole(request, job)


@router.post("/tokenize")
async def tokenize(request: Request, body: TokenizeRequest, service: Served) -> Response:
    """The token ids of a text."""

    def job(_: Check) -> Iterator[bytes]:
        _check_model(service, body.model)
        yield as_bytes(_tokens(body, service))

    return await whole(request, job)


@router.post("/detokenize")
async def detokenize(request: Request, body: DetokenizeRequest, service: Served) -> Response:
    """The text of token ids."""

    def job(_: Check) -> Iterator[bytes]:
        _check_model(service, body.model)
        if not body.tokens:
            yield as_bytes({"prompt": ""})
            return
        yield as_bytes({"prompt": read_prompt(body.tokens, service.model, "tokens").text})

    return await whole(request, job)


def _check_model(service: Service, model: str | None) -> None:
    if model is not None:
        service.check_model(model)


def _tokens(body: TokenizeRequest, service: Service) -> dict[str, JsonValue]:
    tokenizer = full_tokenizer(service.model.tokenizer)
    check_text(body.prompt, "prompt")
    tokens = tokenizer.encode(body.prompt)
    if body.add_special_tokens is None or body.add_special_tokens:
        special = tokenizer.special_tokens
        tokens = np.concatenate([special.before, tokens, special.after])
    ids = [int(token) for token in tokens]
    names: JsonValue = [service.names.of(token) for token in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": service.max_length, "tokens": [*ids], "token_strs": names}


def _info(service: Service) -> dict[str, JsonValue]:
    tokenizer: Any = service.model.tokenizer
    full = full_tokenizer(tokenizer)
    try:
        template = tokenizer.chat_template() if hasattr(tokenizer, "chat_template") else None
    except ModelError:  # there is none
        template = None
    return {
        "bos_token": _text(full, full.special_tokens.begin),
        "eos_token": _text(full, full.end_token),
        "unk_token": _text(full, full.unknown_token),
        "vocab_size": getattr(service.model, "vocabulary", None),
        "model_max_length": service.max_length,
        "chat_template": template,
    }


def _text(tokenizer: FullTokenizer, token: int | None) -> str | None:
    return None if token is None else tokenizer.decode(np.array([token], dtype=np.int64))
