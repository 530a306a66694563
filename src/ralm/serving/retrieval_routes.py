"""The routes that search indexes, each in the form of its clients; a server without a language model has them too.

GET  /search                      a query
POST /retrieve                    many queries, as the search servers of Search-R1 and verl
GET  /passages/{index}/{number}   a passage
"""

import hashlib
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Query, Request
from pydantic import JsonValue
from starlette.responses import Response

from ralm.errors import UsageError
from ralm.reading.provenance import hits_as_json
from ralm.records import NO_PASSAGE
from ralm.retrieval.filters import Filter, parse_filter
from ralm.serving import answers, errors, jobs, requests
from ralm.serving.audit import entry_of
from ralm.serving.prompts import check_bytes
from ralm.serving.search_service import FoundPassages, SearchService
from ralm.terminal import to_json

search_router: Final = APIRouter()
_TOP_K: Final = 3
"""The passages of a query in Search-R1's server."""
_PASSAGES: Final = 65_536
"""Maximum number of passages of a response: with 100 words each, about 40 MB."""
IndexName: TypeAlias = Annotated[str | None, Query(description="The name of an index; the first by default.")]
RetrieverChoice: TypeAlias = Annotated[str | None, Query(description="How to search; as the operator set by default.")]
Where: TypeAlias = Annotated[
    str | None, Query(description="A filter of passages, such as `year >= 2020 and lang == 'en'`.")
]


@search_router.get("/search")
async def search_index(
    request: Request,
    service: jobs.Searched,
    q: Annotated[str, Query(description="What to search for.")],
    k: Annotated[int, Query(description="Passages to find.")] = 10,
    index: IndexName = None,
    retriever: RetrieverChoice = None,
    where: Where = None,
) -> Response:
    """The passages of an index that best match a query."""

    def answer() -> JsonValue:
        found = search(request, service, [q], k, chosen(index, retriever), wanted=read_filter(where))
        return {"query": q, "index": found.index, "hits": hits_as_json(found.of(0))}

    return await jobs.respond_with(request, answer)


class RetrieveRequest(requests.Body):
    """Queries to search for at once, `topk` passages for each."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool | None = None


@search_router.post("/retrieve")
async def retrieve(
    request: Request,
    body: RetrieveRequest,
    service: jobs.Searched,
    index: IndexName = None,
    retriever: RetrieverChoice = None,
    where: Where = None,
) -> Response:
    """The passages for each of many queries. An empty query finds nothing: one of a batch must not fail the others."""

    def answer() -> JsonValue:
        k = _TOP_K if body.topk is None else body.topk
        _check_queries(body.queries, k, service.options.limits.queries)
        found = search(request, service, body.queries, k, chosen(index, retriever), "topk", read_filter(where))
        documents: dict[int, JsonValue] = {}  # queries of one batch find many passages together
        for number in {*found.hits.numbers_QK.ravel().tolist()} - {NO_PASSAGE}:
            one = found.passages[number]
            document: dict[str, JsonValue] = {"id": one.document_id, "contents": f'"{one.title}"\n{one.text}'}
            documents[number] = {**document, "metadata": {**one.metadata}} if one.metadata else document
        result = [_retrieved(found, row, documents, body) for row in range(len(body.queries))]
        return {"result": result, "fingerprint": _fingerprint(service, found.index)}

    return await jobs.respond_with(request, answer)


def _fingerprint(service: SearchService, name: str) -> str:
    """The hash of what decides the passages of an index: its content, its vectors, and how the operator searches it."""
    index = service.indexes.index(name)
    decisive = f"{index.fingerprint} {to_json(index.vectors)} {service.settings.retrieval}"
    return hashlib.sha256(decisive.encode()).hexdigest()


def _retrieved(found: FoundPassages, row: int, documents: dict[int, JsonValue], body: RetrieveRequest) -> JsonValue:
    """The passages of a query, which are among `documents`."""
    hits = found.hits.of(row)
    if not body.return_scores:
        return [documents[number] for number, _ in hits]
    return [{"document": documents[number], "score": score} for number, score in hits]


@search_router.get("/passages/{index}/{number}")
async def passage(request: Request, index: str, number: int, service: jobs.Searched) -> dict[str, JsonValue]:
    """A passage of an index."""
    passages = service.indexes.index(index).passages if index in service.indexes.names else ()
    if not 0 <= number < len(passages):
        raise errors.RequestError(f"there is no passage {number} of an index {index!r} here.", status=404)
    entry_of(request).found(index, [passages[number]])
    return answers.passage_json(passages[number])


def chosen(index: str | None, retriever: str | None) -> dict[str, str]:
    """The choices of a search that are given."""
    given = {"index": index, "retriever": retriever}
    return {name: value for name, value in given.items() if value is not None}


def read_filter(where: str | None, param: str = "where") -> Filter | None:
    """The filter of an expression, None without one; RequestError if it cannot be read."""
    try:
        return None if where is None else parse_filter(where)
    except UsageError as error:
        raise errors.RequestError(str(error), param=param) from None


def _check_queries(queries: list[str], k: int, limit: int) -> None:
    """Raise RequestError if there are more queries in a request than the limit, or too many passages for them."""
    if len(queries) > limit:
        raise errors.RequestError(
            f"`queries` has {len(queries):,} queries; the limit is {limit:,}: send several requests.", param="queries"
        )
    if len(queries) * k > _PASSAGES:
        raise errors.RequestError(
            f"{len(queries):,} queries times `topk` {k:,} exceed {_PASSAGES:,} passages: send several requests.",
            param="topk",
        )


def search(
    request: Request,
    service: SearchService,
    queries: list[str],
    k: int,
    choice: dict[str, Any],
    param: str = "k",
    wanted: Filter | None = None,
) -> FoundPassages:
    """As `SearchService.found`, for queries that are not too long; passages are noted for the audit log."""
    entry = entry_of(request)
    entry.prompts = [*queries]
    check_bytes([max(queries, key=len, default="")], service.options.limits.text_bytes, "query")
    found = service.found(queries, k, choice, param, wanted)
    if service.audit is not None:
        for row in range(len(queries)):
            entry.found(found.index, [passage for passage, _ in found.of(row)])
    return found
