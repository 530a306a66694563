"""`POST /v1/rerank`, as the servers of Cohere and Jina: texts ranked for a query, by a cross-encoder or the likelihood
of the query after each text under the language model (as In-Context RALM, Eq. 6)."""

from collections.abc import Sequence
from secrets import token_hex
from threading import Lock
from typing import Annotated, Any, Final

import numpy as np
import pydantic
from fastapi import APIRouter, Request
from pydantic import JsonValue
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from ralm.lm.scoring import Scorer
from ralm.reading.tokens import PassageDocuments
from ralm.records import DoubleArray, Passage, Request as ScoringRequest
from ralm.reranking.predictive import CrossEncoder
from ralm.serving import errors, jobs, requests
from ralm.serving.audit import entry_of
from ralm.serving.model import SharedModel
from ralm.serving.prompts import TOO_LONG, check_bytes
from ralm.serving.retrieval_routes import check_query
from ralm.serving.search_service import Ranker, SearchService
from ralm.serving.service import Service

rerank_router: Final = APIRouter()
_DOCUMENTS: Final = 1000
"""Maximum number of documents of a request, as in Cohere's API."""


def _text_of_document(given: Any) -> Any:
    """A document given as text, or as an object with a text."""
    found = given.get("text") if isinstance(given, dict) else given
    if not isinstance(found, str):
        raise PydanticCustomError(errors.FIELD, "must be text, or an object with a `text`")
    return found


class RerankRequest(requests.Body):
    """A query, and documents to rank; `model` may be left out if there is one."""

    model: str | None = None
    query: str
    documents: list[Annotated[str, pydantic.BeforeValidator(_text_of_document)]]
    top_n: int | None = None
    return_documents: bool | None = None


@rerank_router.post("/v1/rerank")
@rerank_router.post("/v2/rerank")
@rerank_router.post("/rerank")
async def rerank(request: Request, body: RerankRequest, service: jobs.Searched) -> Response:
    """The documents in the order of their relevance for a query, the most relevant first."""

    def answer() -> JsonValue:
        check_query(body.query)
        check_bytes([body.query], service.options.limits.text_bytes, "query")
        if not 1 <= len(body.documents) <= _DOCUMENTS:
            message = f"`documents` must be 1 to {_DOCUMENTS:,} texts, not {len(body.documents):,}."
            raise errors.RequestError(message, param="documents")
        if body.top_n is not None and body.top_n < 1:
            raise errors.RequestError("`top_n` must be at least 1.", param="top_n")
        name, ranker = _ranker(service, body.model)
        entry = entry_of(request)
        entry.model, entry.prompts = name, [body.query]
        relevance = ranker(body.query, body.documents)
        order = np.argsort(-relevance, kind="stable")[: body.top_n].tolist()
        results: list[JsonValue] = [
            {
                "index": place,
                "relevance_score": float(relevance[place]),
                **({"document": {"text": body.documents[place]}} if body.return_documents else {}),
            }
            for place in order
        ]
        return {"id": f"rerank-{token_hex(12)}", "model": name, "results": results}

    return await jobs.respond_with(request, answer)


def _ranker(service: SearchService, name: str | None) -> tuple[str, Ranker]:
    """A ranker by its name, or the first; RequestError if there is none."""
    rankers: dict[str, Ranker] = {**service.cross_encoders}
    if isinstance(service, Service) and service.abilities["gain"]:
        rankers[service.name] = _Likelihood(service.model, service.max_length)
    if not rankers:
        message = "nothing ranks here: start the server with `--cross-encoder`, or with a language model."
        raise errors.RequestError(message, status=404)
    if name is not None and name not in rankers:
        raise errors.model_not_found(f"the model {name!r} ranks nothing here; there is: {', '.join(rankers)}.")
    name = next(iter(rankers)) if name is None else name
    return name, rankers[name]


class CrossEncoderRanker:
    """A cross-encoder that one thread at a time uses; a score becomes 1 / (1 + exp(-score))."""

    def __init__(self, cross_encoder: CrossEncoder) -> None:
        self._cross_encoder = cross_encoder
        self._lock = Lock()

    def __call__(self, query: str, texts: Sequence[str]) -> DoubleArray:
        """How relevant the texts are."""
        with self._lock:
            end = self._cross_encoder.end(query)
            scores = np.asarray(self._cross_encoder.scores([(end, text) for text in texts]), dtype=np.float64)
        return 1 / (1 + np.exp(-scores))


class _Likelihood:
    """The language model; the relevance of a text is the geometric mean of the probabilities of the query's tokens
    after it and a line break."""

    def __init__(self, model: SharedModel, max_length: int | None) -> None:
        self._model = model
        self._max_length = model.max_length if max_length is None else max_length

    def __call__(self, query: str, texts: Sequence[str]) -> DoubleArray:
        """How relevant the texts are; RequestError if the query is too long."""
        tokenizer = self._model.tokenizer
        between, asked = tokenizer.encode("\n"), tokenizer.encode(query)
        left = self._max_length - len(between) - len(asked)
        if 2 * left < self._max_length:
            message = f"`query` has {len(asked):,} tokens; the limit is {self._max_length // 2 - len(between):,}."
            raise errors.RequestError(message, param="query", code=TOO_LONG)
        passages = [Passage(number, str(number), "", text) for number, text in enumerate(texts)]
        documents = PassageDocuments(passages, tokenizer, left, "auto")
        asks = [ScoringRequest(documents[number], between, asked) for number in range(len(texts))]
        scored = Scorer(self._model, progress=False).log_probs(asks)
        return np.array([np.exp(log_probs.mean(dtype=np.float64)) for log_probs in scored])
