"""What the indexes have: GET /search, and the vectors of texts (POST /v1/embeddings) where an index is dense."""

import base64
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request
from pydantic import Field, JsonValue
from starlette.responses import Response

from ralm.reading.provenance import hits_as_json
from ralm.serving.errors import RequestError
from ralm.serving.prompts import check_text, read_prompt
from ralm.serving.routes.answering import Served, as_bytes, whole
from ralm.serving.service import Service
from ralm.serving.wire.completions import Usage, prompts_of
from ralm.serving.wire.fields import Body
from ralm.serving.workers import Check
from ralm.validation import ask

router = APIRouter()


class EmbeddingRequest(Body):
    """Texts, or their token ids, to be encoded as queries of an index; `model` is the name of the index."""

    model: str
    input: Annotated[Any, Field(description="Text, token ids, or a list of either.")]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


@router.get("/search")
async def search(
    request: Request,
    service: Served,
    q: Annotated[str, Query(description="What to search for.")],
    k: Annotated[int, Query(description="Passages to find.")] = 10,
    index: Annotated[str | None, Query(description="The name of an index; the first by default.")] = None,
    retriever: Annotated[str | None, Query(description="How to search; as the operator set by default.")] = None,
) -> Response:
    """The passages of an index that best match a query."""

    def job(_: Check) -> Iterator[bytes]:
        yield as_bytes(_found(service, q, k, {"index": index, "retriever": retriever}))

    return await whole(request, job)


def _found(service: Service, query: str, k: int, given: dict[str, str | None]) -> dict[str, JsonValue]:
    check_text(query, "q")
    most = service.options.limits.documents
    if not 1 <= k <= most:
        raise RequestError(f"`k` must be from 1 to {most:,}.", param="k")
    if not service.indexes.names:
        raise RequestError("no index is served here, so that there is nothing to search.", status=404)
    reads = service.reads({name: value for name, value in given.items() if value is not None})
    assert reads.source is not None
    hits = ask(reads.source.retriever, [query], k, len(reads.passages))
    found = [(reads.passages[number], score) for number, score in hits.of(0)]
    return {"query": query, "index": reads.settings.index, "hits": hits_as_json(found)}


@router.post("/v1/embeddings")
async def embed(request: Request, body: EmbeddingRequest, service: Served) -> Response:
    """The vectors of texts as queries of a dense index."""

    def job(_: Check) -> Iterator[bytes]:
        yield as_bytes(_embedded(service, body))

    return await whole(request, job)


def _embedded(service: Service, body: EmbeddingRequest) -> dict[str, JsonValue]:
    names = service.indexes.dense_names()
    if body.model not in names:
        raise RequestError(
            f"the model {body.model!r} does not encode texts here; the indexes that do: {', '.join(names) or 'none'}.",
            param="model",
            code="model_not_found",
            status=404,
        )
    if body.dimensions is not None:
        raise RequestError("`dimensions` is not supported: leave it out.", param="dimensions")
    given = prompts_of(body.input, "input")
    if len(given) > service.options.limits.texts:
        raise RequestError(f"`input` has more than {service.options.limits.texts} texts.", param="input")
    prompts = [read_prompt(one, service.model, "input") for one in given]
    vectors_QD = service.indexes.encoded(body.model, [prompt.text for prompt in prompts])
    usage = Usage(prompt=sum(len(prompt.tokens) for prompt in prompts))
    data: list[JsonValue] = [
        {"object": "embedding", "index": number, "embedding": _vector(vector_D, body.encoding_format)}
        for number, vector_D in enumerate(vectors_QD)
    ]
    counted: JsonValue = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
    return {"object": "list", "model": body.model, "data": data, "usage": counted}


def _vector(vector_D: Any, encoding: str | None) -> JsonValue:
    numbers = np.asarray(vector_D, dtype="<f4")
    if encoding == "base64":
        return base64.b64encode(numbers.tobytes()).decode()
    return [float(one) for one in numbers]
