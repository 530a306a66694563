"""The indexes as vector stores of OpenAI's API, which are listed and searched."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import pydantic
from fastapi import APIRouter, Query, Request
from pydantic import Field, JsonValue
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from ralm.records import Passage
from ralm.retrieval.filters import Filter, OpenAIFilter
from ralm.serving import errors, jobs, requests
from ralm.serving.retrieval_routes import check_queries, check_query, search
from ralm.serving.search_service import SearchService

store_router: Final = APIRouter()
_RESULTS: Final = 10
"""The passages of a search by default, as in OpenAI's API."""
_LISTED: Final = 20


class RankingOptions(requests.Body):
    """Which passages are left out: those with a score below the threshold, which is a score of the retriever. Another
    ranker than that is not known."""

    ranker: Annotated[str | None, requests.only("auto", "none", "default-2024-11-15")] = None
    score_threshold: float | None = None


def _texts(given: Any) -> Any:
    """A query, or a list of them, as a list."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given and all(isinstance(one, str) for one in given):
        return given
    raise PydanticCustomError(errors.FIELD, "must be text or a list of texts that is not empty")


SearchQueries: TypeAlias = Annotated[
    list[str],
    pydantic.BeforeValidator(_texts),
    pydantic.WithJsonSchema(pydantic.TypeAdapter(str | list[str]).json_schema()),
    Field(description="Text, or a list of texts, whose passages are merged by score."),
]


class VectorStoreSearch(requests.Body):
    """The body of POST /v1/vector_stores/{index}/search."""

    query: SearchQueries
    filters: OpenAIFilter | None = None
    max_num_results: int | None = None
    ranking_options: RankingOptions | None = None
    rewrite_query: Annotated[bool | None, requests.only(False)] = None


@store_router.post("/v1/vector_stores/{index}/search")
async def search_vector_store(
    request: Request, index: str, body: VectorStoreSearch, service: jobs.Searched
) -> Response:
    """The passages of an index that best match a query, or any of several queries."""

    def answer() -> JsonValue:
        _check_name(index, service)
        k = _RESULTS if body.max_num_results is None else body.max_num_results
        options = body.ranking_options or RankingOptions()
        wanted = None if body.filters is None else body.filters.to_filter()
        hits = best_passages(request, service, index, body.query, k, options.score_threshold, wanted)
        data: list[JsonValue] = [
            {**result_json(passage, score), "content": [{"type": "text", "text": passage.text}]}
            for passage, score in hits
        ]
        return {
            "object": "vector_store.search_results.page",
            "search_query": [*body.query],
            "data": data,
            "has_more": False,
            "next_page": None,
        }

    return await jobs.respond_with(request, answer)


def best_passages(
    request: Request,
    service: SearchService,
    index: str,
    queries: list[str],
    k: int,
    threshold: float | None,
    wanted: Filter | None,
) -> list[tuple[Passage, float]]:
    """The k best passages of an index for any of these queries that pass a filter, each with its best score, if that
    is at least the threshold; RequestError if a value is wrong."""
    for query in queries:
        check_query(query)
    check_queries(queries, k, service.options.limits, "query", "max_num_results")
    choice = {} if index == service.settings.index else {"index": index}
    found = search(request, service, queries, k, choice, "max_num_results", wanted)
    best: dict[int, tuple[Passage, float]] = {}
    for row in range(len(queries)):
        for passage, score in found.of(row):
            if score > best.get(passage.number, (passage, float("-inf")))[1]:
                best[passage.number] = passage, score
    ordered = sorted(best.values(), key=lambda one: (-one[1], one[0].number))
    return [one for one in ordered if threshold is None or one[1] >= threshold][:k]


def result_json(passage: Passage, score: float | None) -> dict[str, JsonValue]:
    """A passage as a result of a search, without its text: its document is the file."""
    return {
        "file_id": passage.document_id,
        "filename": passage.title or passage.document_id,
        "score": score,
        "attributes": attributes(passage.metadata),
    }


def attributes(metadata: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Metadata as attributes, which are texts, numbers and truth values; others are left out."""
    return {name: value for name, value in metadata.items() if isinstance(value, str | int | float)}


@store_router.get("/v1/vector_stores")
async def vector_stores(
    service: jobs.Searched,
    limit: Annotated[int, Query(ge=1, le=100, description="Most indexes to list.")] = _LISTED,
    after: Annotated[str | None, Query(description="List those after this one.")] = None,
    before: Annotated[str | None, Query(description="List those before this one.")] = None,
    order: Annotated[Literal["asc", "desc"], Query(description="asc: the last one first.")] = "desc",
) -> dict[str, JsonValue]:
    """The indexes, the default one first."""
    names = [*service.indexes.names] if order == "desc" else [*reversed(service.indexes.names)]
    if after is not None:
        names = names[names.index(after) + 1 :] if after in names else []
    if before is not None:
        names = names[: names.index(before)] if before in names else []
    data = [vector_store_json(name, service) for name in names[:limit]]
    ends: Sequence[JsonValue] = [names[0], names[len(data) - 1]] if data else [None, None]
    has_more = len(names) > limit
    return {"object": "list", "data": [*data], "first_id": ends[0], "last_id": ends[1], "has_more": has_more}


@store_router.get("/v1/vector_stores/{index}")
async def vector_store(index: str, service: jobs.Searched) -> dict[str, JsonValue]:
    """An index."""
    _check_name(index, service)
    return vector_store_json(index, service)


def vector_store_json(name: str, service: SearchService) -> dict[str, JsonValue]:
    """An index as a vector store, whose files are its passages."""
    index = service.indexes.index(name)
    passages = len(index.passages)
    counts: dict[str, JsonValue] = dict.fromkeys(("cancelled", "failed", "in_progress"), 0)
    return {
        "id": name,
        "object": "vector_store",
        "created_at": service.created,
        "name": name,
        "usage_bytes": sum(one.bytes for one in index.manifest.files.values()),
        "file_counts": {**counts, "completed": passages, "total": passages},
        "status": "completed",
        "expires_after": None,
        "expires_at": None,
        "last_active_at": None,
        "metadata": {},
    }


def _check_name(index: str, service: SearchService) -> None:
    """Raise RequestError if there is no such index."""
    if index not in service.indexes.names:
        names = ", ".join(service.indexes.names) or "none"
        message = f"there is no vector store {index!r} here; there is: {names}."
        raise errors.RequestError(message, param="vector_store_id", status=404)
