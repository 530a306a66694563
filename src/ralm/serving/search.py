"""The routes that search indexes, each in the form of its clients; a server without a language model has them too.

GET  /search                      a query
POST /retrieve                    many queries, as the search servers of Search-R1 and verl
GET  /passages/{index}            a passage by its document and the hash of its text
"""

import hashlib
import html
from importlib.resources import files
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from pydantic import JsonValue
from starlette.responses import HTMLResponse, Response

from ralm.errors import UsageError
from ralm.reading.provenance import hits_as_json
from ralm.records import NO_PASSAGE, Passage
from ralm.retrieval.filters import Filter, parse_filter
from ralm.serving import answers, audit, errors, jobs, requests, state, text_sources
from ralm.terminal import to_json

router: Final = APIRouter(dependencies=[Depends(jobs.check_query)])
_FILTER_BYTES: Final = 16 << 10
"""Maximum size of a filter."""
_PASSAGES: Final = 65_536
"""Maximum number of passages of a response: with 100 words each, about 40 MB."""
IndexName: TypeAlias = Annotated[str | None, Query(description="The name of an index; the first by default.")]
RetrieverChoice: TypeAlias = Annotated[str | None, Query(description="How to search; as the operator set by default.")]
Where: TypeAlias = Annotated[
    str | None, Query(description="A filter of passages, such as `year >= 2020 and lang == 'en'`.")
]


@router.get("/search")
async def search_index(
    request: Request,
    service: jobs.Searched,
    q: Annotated[str, Query(description="What to search for.")],
    k: Annotated[int, Query(description="Passages to find.")] = 10,
    index: IndexName = None,
    retriever: RetrieverChoice = None,
    where: Where = None,
) -> Response:
    """Find the passages of an index that best match a query."""

    def answer() -> Response:
        entry, choice = audit.entry_of(request), chosen(index, retriever)
        hits = search(entry, service, [q], k, choice, where=read_filter(where))
        return jobs.json_response({"query": q, "index": hits.index, "hits": hits_as_json(hits.of(0))})

    return await jobs.respond_in_thread(request, answer)


class RetrieveRequest(requests.Body):
    """Queries to search for at once, `topk` passages for each."""

    queries: list[str]
    topk: int = 3  # as Search-R1's server
    return_scores: bool = False


@router.post("/retrieve")
async def retrieve(
    request: Request,
    body: RetrieveRequest,
    service: jobs.Searched,
    index: IndexName = None,
    retriever: RetrieverChoice = None,
    where: Where = None,
) -> Response:
    """Find the passages for each of many queries. An empty query finds nothing: one in a batch must not fail others."""

    def answer() -> Response:
        _check_queries(body.queries, body.topk, service.options.limits.queries)
        entry, choice = audit.entry_of(request), chosen(index, retriever)
        found_passages = search(entry, service, body.queries, body.topk, choice, "topk", read_filter(where))
        hits = found_passages.hits
        documents: dict[int, JsonValue] = {}  # queries of one batch find many passages together
        for number in {*hits.numbers_QK.ravel().tolist()} - {NO_PASSAGE}:
            hit = found_passages.passages[number]
            document: dict[str, JsonValue] = {"id": hit.document_id, "contents": f'"{hit.title}"\n{hit.text}'}
            documents[number] = {**document, "metadata": {**hit.metadata}} if hit.metadata else document
        result: list[JsonValue] = []
        for row in range(len(body.queries)):
            pairs = [(documents[number], score) for number, score in hits.of(row)]
            if body.return_scores:
                result.append([{"document": document, "score": score} for document, score in pairs])
            else:
                result.append([document for document, _ in pairs])
        return jobs.json_response({"result": result, "fingerprint": _fingerprint(service, found_passages.index)})

    return await jobs.respond_in_thread(request, answer)


def _fingerprint(service: state.SearchService, name: str) -> str:
    """Return the hash of what decides the passages of an index: its content, vectors and the operator's settings."""
    index = service.indexes.index(name)
    decisive = f"{index.fingerprint} {to_json(index.vectors)} {service.settings.retrieval}"
    return hashlib.sha256(decisive.encode()).hexdigest()


@router.get("/passages/{index}")
async def passage(
    request: Request,
    service: jobs.Searched,
    index: str,
    document: Annotated[str, Query(description="The id of a document.")],
    text: Annotated[str, Query(description="The hash of the text of its passage.")],
) -> Response:
    """Return a passage of a document by the hash of its text; a page for browsers, else JSON."""

    def answer() -> Response:
        if index in service.indexes.names:
            opened = service.indexes.index(index)
            for row in np.flatnonzero(opened.columns.matching("id", "in", [document])).tolist():
                if text_sources.text_key(match := opened.passages[row]) == text:
                    audit.entry_of(request).add_passages(index, [match])
                    if "text/html" in request.headers.get("accept", ""):
                        return _page(match, str(request.url))
                    return jobs.json_response(answers.passage_json(match))
        raise errors.RequestError(
            f"there is no such passage of a document {document!r} in an index {index!r} here; its text may have "
            "changed.",
            status=404,
        )

    return await jobs.respond_in_thread(request, answer)


def _page(passage: Passage, address: str) -> HTMLResponse:
    """Return a passage as a page, which loads and runs nothing."""
    form = files("ralm.serving").joinpath("passage.html").read_text(encoding="utf-8")
    shown = [text_sources.name_of(passage), passage.place, passage.text, text_sources.web_address(passage) or address]
    title, place, text, url = map(html.escape, shown)
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
    return HTMLResponse(form.format(title=title, place=place, text=text, url=url), headers=headers)


def chosen(index: str | None, retriever: str | None) -> dict[str, str]:
    """Return the choices of a search, without those that are None."""
    choice = {"index": index, "retriever": retriever}
    return {name: value for name, value in choice.items() if value is not None}


def read_filter(where: str | None, param: str = "where") -> Filter | None:
    """Return the filter of an expression, None without one; RequestError if it cannot be read, or is too long."""
    errors.check_bytes([where or ""], _FILTER_BYTES, param)
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
    entry: audit.AuditEntry,
    service: state.SearchService,
    queries: list[str],
    k: int,
    choice: dict[str, Any],
    param: str = "k",
    where: Filter | None = None,
) -> state.FoundPassages:
    """Find passages as `SearchService.find`; they are noted for the audit log."""
    entry.prompts = [*queries]
    hits = service.find(queries, k, choice, param, where)
    if service.audit is not None:
        for row in range(len(queries)):
            entry.add_passages(hits.index, [passage for passage, _ in hits.of(row)])
    return hits
