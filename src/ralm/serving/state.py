"""The state of a server: its indexes, how requests search them, and the names of its model. Safe for many threads."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from ralm.errors import UsageError
from ralm.reading.sources import FromRetriever
from ralm.records import Hits, Passage, Passages
from ralm.retrieval.filters import Filter
from ralm.retrieval.retriever import RetrieverOptions
from ralm.serving import errors, indexes, middleware, requests
from ralm.serving.audit import AuditLog
from ralm.serving.options import PLAIN, ServeOptions, Settings, check_documents, with_choices


@dataclass(frozen=True, slots=True, eq=False)
class FoundPassages:
    """The passages of an index that were found for each query, best first, with their scores."""

    index: str
    passages: Passages
    hits: Hits

    def of(self, query: int) -> list[tuple[Passage, float]]:
        """Return the passages of a query, with their scores."""
        return [(self.passages[number], score) for number, score in self.hits.of(query)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """What is served: indexes in `folders` by name, the first by default; `audit` gets a line for each request."""

    options: ServeOptions
    settings: Settings
    folders: Mapping[str, Path]
    key: str | None
    audit: AuditLog | None


class SearchService:
    """Indexes that requests search; `open_upstream` connects to the server of the model, if there is one."""

    routers: Sequence[APIRouter] = ()
    """The routes besides those of every server."""
    open_upstream: Callable[[], Any] | None = None

    def __init__(self, served: Served) -> None:
        self.options = served.options
        self.key = served.key
        self.audit = served.audit
        self.metrics = middleware.Metrics()
        self.indexes = indexes.Indexes(served.folders, self.metrics)
        if PLAIN in self.indexes.names:
            raise UsageError(f"no index can be called {PLAIN}, which is the model without passages: give NAME=DIR.")
        self.settings = replace(served.settings, index=next(iter(self.indexes.names), None))

    def warm_up(self) -> None:
        """Search once, if there is an index, so that the first request does not wait for opening and compiling."""
        if self.indexes.names:
            self.find(["The first request must not wait."], 1, {})

    def check_health(self) -> None:
        """Raise RequestError if the server cannot answer any more."""

    def close(self) -> None:
        """End what runs in the background."""

    def find(
        self, queries: Sequence[str], k: int, choice: Mapping[str, Any], param: str = "k", where: Filter | None = None
    ) -> FoundPassages:
        """Find the k best passages for each query; RequestError if k (called `param`), a query or a choice is wrong."""
        errors.check_bytes([max(queries, key=len, default="")], self.options.limits.text_bytes, "query")
        most = self.options.limits.documents
        if not 1 <= k <= most:
            raise errors.RequestError(f"`{param}` must be from 1 to {most:,}.", param=param)
        if not self.indexes.names:
            raise errors.RequestError("no index is served here, so that there is nothing to search.", status=404)
        settings = self._chosen(choice)
        source = self._source(settings, where)
        assert settings.index is not None
        hits = source.search(queries, k)
        return FoundPassages(settings.index, source.passages, hits)

    def _chosen(self, choice: Mapping[str, Any]) -> Settings:
        """Return the settings with the choices of a request; RequestError if one is not possible."""
        if not choice:
            return self.settings
        try:
            return with_choices(self.settings, choice, self.options, self.indexes.names)
        except UsageError as error:
            raise choice_error(error, choice) from None

    def _source(self, settings: Settings, where: Filter | None = None) -> FromRetriever:
        """Return the passages of an index with their retriever; RequestError if the index was not built for it."""
        assert settings.index is not None
        lacking = self._lacking(settings.index, settings.retrieval)
        if lacking is not None:
            raise errors.RequestError(
                f"the index {settings.index!r} has no {lacking}, which `retriever` {settings.retrieval.retriever} "
                "searches: choose another one.",
                param="ralm.retriever",
            )
        if where is not None:
            return self.indexes.filtered(settings.index, settings.retrieval, where)
        return self.indexes.source(settings.index, settings.retrieval)

    def _lacking(self, name: str, options: RetrieverOptions) -> str | None:
        """Return the part that an index lacks for these options; None if it has all."""
        index = self.indexes.index(name)
        if options.name in ("bm25", "hybrid") and index.bm25_options is None:
            return "words"
        return "vectors" if options.is_dense and not index.vectors else None


class ModelService(SearchService):
    """Indexes and a model, called `name` by default; with an index it is NAME:INDEX, without any NAME:plain."""

    may_choose: Sequence[str]
    """The choices that requests may have."""
    can: Mapping[str, bool]
    """Whether chats are answered, and whether these may have earlier turns."""

    def __init__(self, name: str, served: Served) -> None:
        super().__init__(served)
        self.created = int(time.time())
        self.name = self.options.name or name
        self.models: dict[str, str | None] = {self.name: self.settings.index}
        """The index of each name."""
        if self.indexes.names and "index" in self.options.allow:
            self.models |= {f"{self.name}:{index}": index for index in self.indexes.names}
            self.models[f"{self.name}:{PLAIN}"] = None
        check_documents(self.settings.reading, self.options.limits)

    def check_model(self, name: str) -> None:
        """Raise RequestError if no model of this name is served."""
        if name not in self.models:
            message = f"the model {name!r} is not served; the models are: {', '.join(self.models)}."
            raise errors.RequestError(message, param="model", code="model_not_found", status=404)

    def chosen(self, request: requests.ChoosingRequest) -> dict[str, Any]:
        """Return the choices of a request by the name of the model and in its field `ralm`, which must agree."""
        self.check_model(request.model)
        choice = request.chosen
        errors.check_bytes([choice.get("query", "")], self.options.limits.text_bytes, "ralm.query")
        if not choice.get("query", "a").strip():
            message = "`ralm.query` is empty: leave it out, or give at least one word."
            raise errors.RequestError(message, param="ralm.query")
        if request.model == self.name:
            return choice
        index = self.models[request.model]
        if choice.get("index", index) != index:
            raise errors.RequestError(
                f"the model {request.model} reads {'no index' if index is None else f'the index {index!r}'}: leave out "
                f"`ralm.index`, or use {self.name}.",
                param="ralm.index",
            )
        return {**choice, "index": index}


def choice_error(error: UsageError, choice: Mapping[str, Any]) -> errors.RequestError:
    """Return the error of a choice that is not possible, with the field that its message names first."""
    message = str(error)
    named = [name for name in choice if f"`{name}" in message]
    first = min(named, key=lambda name: message.find(f"`{name}"), default=None)
    return errors.RequestError(message, param=first and f"ralm.{first}")
