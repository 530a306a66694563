"""The routes that search indexes, each in the form of its clients; a server without a language model has them too.

GET  /search                      a query
POST /retrieve                    many queries, as the search servers of Search-R1 and verl
GET  /passages/{index}            a passage by its document and the hash of its text
"""

import hashlib
import html
from importlib.resources import files
from typing import Final

import numpy as np
from fastapi import APIRouter, Depends, Request
from pydantic import JsonValue
from starlette.responses import HTMLResponse, Response

from ralm.errors import UsageError
from ralm.reading.provenance import hits_as_json
from ralm.records import NO_PASSAGE, Passage
from ralm.retrieval.filters import Filter, parse_filter
from ralm.serving import answers, errors, jobs, requests, state
from ralm.serving.middleware import entry_of
from ralm.terminal import to_json

router: Final = APIRouter(dependencies=[Depends(jobs.check_query)])
_FILTER_BYTES: Final = 16 << 10
"""Maximum size of a filter."""
_MAX_QUERIES: Final = 4096
_PASSAGES: Final = 65_536
"""Maximum number of passages of a response: with 100 words each, about 40 MB."""


@router.get("/search")
async def search_index(
    request: Request,
    service: jobs.Searched,
    q: str,
    k: int = 10,
    index: str | None = None,
    retriever: str | None = None,
    where: str | None = None,
) -> Response:
    """Find the passages of an index that best match a query, and pass the filter `where`, if there is one."""

    def answer() -> Response:
        hits = service.find([q], k, chosen(index, retriever), entry_of(request), where=read_filter(where))
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
    index: str | None = None,
    retriever: str | None = None,
    where: str | None = None,
) -> Response:
    """Find the passages for each of many queries. An empty query finds nothing: one in a batch must not fail others."""

    def answer() -> Response:
        count = len(body.queries)
        if count > _MAX_QUERIES:
            message = f"`queries` has {count:,} queries; the limit is {_MAX_QUERIES:,}: send several requests."
            raise errors.RequestError(message, param="queries")
        if count * body.topk > _PASSAGES:
            message = (
                f"{count:,} queries times `topk` {body.topk:,} exceed {_PASSAGES:,} passages: send several requests."
            )
            raise errors.RequestError(message, param="topk")
        choice, entry = chosen(index, retriever), entry_of(request)
        found_passages = service.find(body.queries, body.topk, choice, entry, param="topk", where=read_filter(where))
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
    document: str,
    text: str,
) -> Response:
    """Return a passage of a document, by its id, by the hash of its text; a page for browsers, else JSON."""

    def answer() -> Response:
        if index in service.indexes.names:
            opened = service.indexes.index(index)
            for row in np.flatnonzero(opened.columns.matching("id", "in", [document])).tolist():
                if answers.text_key(match := opened.passages[row]) == text:
                    entry_of(request).add_passages(index, [(1, match)])
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
    shown = [answers.name_of(passage), passage.place, passage.text, answers.web_address(passage) or address]
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
