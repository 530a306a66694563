"""Finds passages by a search service: any server that answers `POST /retrieve`, ralm's own or that of Search-R1.

    {"queries": ["who discovered radium?"], "topk": 2, "return_scores": true}
    {"result": [[{"document": {"id": "radium", "contents": "Radium: it was discovered ..."}, "score": 7.5}, ...]]}

Queries go out in batches, several at once. A passage has no number there: it gets one here when it first comes. Nothing
is kept between runs. The index is identified by the `fingerprint` of an answer, as ralm's server gives it, or else by
the passages and scores of fixed queries.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final
from urllib.parse import urlsplit
from weakref import finalize

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from ralm.errors import ServerError
from ralm.lm.api.client import LoopThread
from ralm.lm.api.endpoint import ApiOptions, service_endpoint
from ralm.lm.api.http import JsonObject, Transport
from ralm.records import Hits, Passage
from ralm.retrieval.retrieval_file import JsonMetadata, Score
from ralm.terminal import to_json, track
from ralm.validation import check_search, is_utf8

_BATCH: Final = 64
"""Queries of a request at most."""
_PASSAGES: Final = 1024
"""Passages of an answer at most, if they are not those of one query."""
_BYTES: Final = 1 << 20
_BYTES_A_PASSAGE: Final = 64 << 10
"""The maximum size of an answer: fixed bytes, and bytes for each passage."""
_AT_ONCE: Final = 4
"""Requests that are in flight at once."""
_PROBES: Final = ["history of the city", "the first president", "return a function", "album of 2010", "der la de en 1"]


def _whole(text: str) -> str:
    if not is_utf8(text):
        raise ValueError("half of a character (a lone surrogate) is not text")
    return text


_Text = Annotated[str, AfterValidator(_whole)]


class _Document(BaseModel):
    """A passage as a service gives it; ralm's own adds the metadata."""

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)

    contents: _Text
    id: _Text = ""
    metadata: JsonMetadata = {}

    def passage(self, number: int) -> Passage:
        """Return the passage under a number: the first line is the title, maybe in quotes."""
        title, line_feed, text = self.contents.partition("\n")
        if not line_feed:
            title, text = "", self.contents
        if len(title) > 1 and title[0] == title[-1] == '"':
            title = title[1:-1]
        return Passage(number, self.id, title, text, metadata=self.metadata)


class _ScoredDocument(BaseModel):
    """A passage that was found for a query, and its score."""

    document: _Document
    score: Annotated[Score, Field(strict=True)]


class _Answer(BaseModel):
    """The passages of each query, and what identifies the index, if the service tells it."""

    result: list[list[_ScoredDocument]]
    fingerprint: _Text | None = None

    def identity(self) -> str:
        """Return the hash that identifies the index, if this is the answer to the probes."""
        rows = [[(passage.document.id, passage.document.contents) for passage in row] for row in self.result]
        return hashlib.sha256(to_json(self.fingerprint or rows).encode()).hexdigest()


class RemoteRetriever:
    """The retriever of the service at a URL, whose query (`?index=wiki`) goes with every request.

    The service is asked on creation; `passages` are those that it gave so far, by number. Raises UsageError if it is no
    such URL, and ServerError, here and on use, if the service does not answer, answers with something else, or gets
    another index meanwhile, which without a fingerprint is seen only after several batches.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._endpoint = service_endpoint(url)
        query = urlsplit(url).query
        self._path = f"/retrieve?{query}" if query else "/retrieve"
        self._transport = Transport(self._endpoint, ApiOptions(), retried=lambda: None)
        self._loop = LoopThread(self._transport.close)
        finalize(self, self._loop.close)
        self.passages: list[Passage] = []
        self._numbers: dict[tuple[str, str, int], int] = {}
        [answer] = self._answers([_PROBES], 1)
        self._told, self._fingerprint = answer.fingerprint, answer.identity()

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return the URL, and what identifies its index."""
        return {"retriever": "service", "service": self._url, "fingerprint": self._fingerprint}

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """Return the k best passages for each query, or fewer."""
        check_search(queries, k)
        size = max(1, min(_BATCH, _PASSAGES // k))
        batches = [list(queries[first : first + size]) for first in range(0, len(queries), size)]
        groups = [batches[first : first + _AT_ONCE] for first in range(0, len(batches), _AT_ONCE)]
        pairs = []
        for group in track(groups, "Retrieving", len(groups)) if len(groups) > 1 else groups:
            for answer in self._answers(group, k):
                self._check(answer.fingerprint, self._told)
                pairs += [self._numbered(row) for row in answer.result]
        if not self._told and len(batches) > 1:
            [answer] = self._answers([_PROBES], 1)
            self._check(answer.identity(), self._fingerprint)
        return Hits.from_pairs(pairs)

    def _check(self, now: str | None, before: str | None) -> None:
        """Raise ServerError if what identifies the index has changed."""
        if now != before:
            raise ServerError(f"{self._endpoint.url} has another index now than when this began: run this again.", 200)

    def _numbered(self, row: Sequence[_ScoredDocument]) -> list[tuple[int, float]]:
        """Return the number and score of each passage of a query; equal passages of a query have different numbers."""
        before: Counter[tuple[str, str]] = Counter()
        pairs = []
        for passage in row:
            text = (passage.document.id, passage.document.contents)
            number = self._numbers.setdefault((*text, before[text]), len(self.passages))
            before[text] += 1
            if number == len(self.passages):
                self.passages.append(passage.document.passage(number))
            pairs.append((number, passage.score))
        return pairs

    def _answers(self, batches: Sequence[list[str]], k: int) -> list[_Answer]:
        """Return the answer to each batch of queries."""

        async def answers() -> list[JsonObject]:
            return await asyncio.gather(*(self._send(batch, k) for batch in batches))

        bodies: Any = self._loop.run(answers)
        return [self._parsed(answer, len(batch), k) for answer, batch in zip(bodies, batches, strict=True)]

    async def _send(self, batch: list[str], k: int) -> JsonObject:
        body: JsonObject = {"queries": [*batch], "topk": k, "return_scores": True}
        max_bytes = _BYTES + _BYTES_A_PASSAGE * len(batch) * k
        return await self._transport.send("POST", self._path, body, max_bytes=max_bytes)

    def _parsed(self, content: JsonObject, queries: int, k: int) -> _Answer:
        """Return an answer with the passages of each query; ServerError if it has others."""
        place = f"{self._endpoint.url}/retrieve"
        try:
            answer = _Answer.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ServerError(f"{place} gave no passages with scores: at {where}, {first['msg']}.", 200) from None
        if len(answer.result) != queries or max(map(len, answer.result), default=0) > k:
            counts = f"{len(answer.result):,} lists of at most {max(map(len, answer.result), default=0):,} passages"
            raise ServerError(f"{place} gave {counts} for {queries:,} queries and `topk` {k:,}.", 200)
        return answer
