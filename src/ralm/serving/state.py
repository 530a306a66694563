"""The state of a server: its indexes, how requests search them, and the names of its model. Safe for many threads.

An open index stays as it is when its folder changes, until `reload`; running requests keep the index that they began
with. Retrievers are opened when a request first needs them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import Any, Final, cast

from fastapi import APIRouter

from ralm.errors import RalmError, UsageError
from ralm.protocols import Documents, Retriever
from ralm.reading.parts import Parts
from ralm.reading.sources import FromRetriever
from ralm.records import NO_PASSAGE, Hits, Passage, Passages, Readings
from ralm.retrieval.allowed import narrowed
from ralm.retrieval.filters import Filter
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.retriever import RetrieverOptions
from ralm.serving import errors, middleware, requests
from ralm.serving.model import Locked
from ralm.serving.options import MAX_TEXT_BYTES, PLAIN, ServeOptions, Settings, check_documents, with_choices
from ralm.storage.manifest import identity

_SAFE: Final = ("bm25", "random")
"""Retrievers that many threads may use at once."""
_OPEN_RETRIEVERS: Final = 8
"""Retrievers that stay open: requests may name any number, and each dense one loads an encoder."""


class Indexes:
    """Open indexes by name, the default one first; raises what `open_index` raises."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = dict(folders)
        self._lock = RLock()
        self._versions = self._folder_versions()
        self._open = {name: open_index(folder) for name, folder in self._folders.items()}
        self._sources: dict[tuple[str, RetrieverOptions], tuple[FromRetriever, AbstractContextManager[object]]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names, the default one first."""
        return tuple(self._folders)

    def index(self, name: str) -> Index:
        """Return the open index of a name."""
        with self._lock:
            return self._open[name]

    def source(self, name: str, options: RetrieverOptions, where: Filter | None = None) -> FromRetriever:
        """Return the passages of an index that pass a filter, with a retriever; raises what opening it raises."""
        with self._lock:
            index = self._open[name]
            opened = self._sources.pop((name, options), None) or (FromRetriever.of_index(index, options), RLock())
            source, lock = self._sources[name, options] = opened  # the last one
            if len(self._sources) > _OPEN_RETRIEVERS:
                del self._sources[next(iter(self._sources))]
        retriever = source.retriever if where is None else narrowed(source.retriever, index.columns.mask(where))
        safe = retriever if options.name in _SAFE else cast("Retriever", Locked(retriever, lock))
        return source.with_retriever(safe)

    def have_changed(self) -> bool:
        """Return whether a folder has another version than when it was last opened."""
        return self._folder_versions() != self._versions

    def _folder_versions(self) -> list[tuple[int, ...] | None]:
        """Return what tells the versions of the folders apart; None for one that is gone."""
        return [identity(folder) for folder in self._folders.values()]

    def reload(self) -> dict[str, str]:
        """Open every index again, and return the outcome for each; indexes that cannot be opened stay as they are."""
        outcome, opened = {}, {}
        self._versions = self._folder_versions()
        for name, folder in self._folders.items():
            try:
                opened[name] = open_index(folder)
            except RalmError as error:
                outcome[name] = f"kept as it was: {error}"
        with self._lock:
            for name, index in opened.items():
                same = index.fingerprint == self._open[name].fingerprint and index.vectors == self._open[name].vectors
                outcome[name] = "unchanged" if same else "changed"
            self._open |= opened
            self._sources.clear()
        return outcome


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NotedParts(Parts):
    """The parts of a request, which note the best rank of each passage that they put before a text."""

    ranks: dict[int, int] = field(default_factory=dict)

    def readings(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Readings:
        """As of `Parts`."""
        readings = Parts.readings(self, hits, documents)
        numbers = [number for prefix in readings for number in prefix.passages if number != NO_PASSAGE]
        for rank, number in enumerate(numbers, 1):
            self.ranks[number] = min(rank, self.ranks.get(number, rank))
        return readings


@dataclass(frozen=True, slots=True, eq=False)
class ReadConfig:
    """The settings of a request, with the source of passages and the parts that they stand for."""

    settings: Settings
    source: FromRetriever | None = None
    parts: NotedParts = field(default_factory=NotedParts)

    @property
    def passages(self) -> Passages:
        """The passages of the index, by number."""
        return () if self.source is None else self.source.passages


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
    audit: middleware.AuditLog | None


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
        self.indexes = Indexes(served.folders)
        if PLAIN in self.indexes.names:
            raise UsageError(f"no index can be called {PLAIN}, which is the model without passages: give NAME=DIR.")
        self.settings = replace(served.settings, index=next(iter(self.indexes.names), None))

    def warm_up(self) -> None:
        """Search once, if there is an index, so that the first request does not wait for opening and compiling."""
        if self.indexes.names:
            self.find(["The first request must not wait."], 1, {}, middleware.AuditEntry())

    def check_health(self) -> None:
        """Raise RequestError if the server cannot answer any more."""

    def close(self) -> None:
        """End what runs in the background."""

    def find(
        self,
        queries: Sequence[str],
        k: int,
        choice: Mapping[str, Any],
        entry: middleware.AuditEntry,
        *,
        param: str = "k",
        where: Filter | None = None,
    ) -> FoundPassages:
        """Find the k best passages for each query, and note them for the audit log.

        RequestError if k (called `param`), a query or a choice is wrong.
        """
        errors.check_bytes([max(queries, key=len, default="")], MAX_TEXT_BYTES, "query")
        most = self.options.limits.documents
        if not 1 <= k <= most:
            raise errors.RequestError(f"`{param}` must be from 1 to {most:,}.", param=param)
        if not self.indexes.names:
            raise errors.RequestError("no index is served here, so that there is nothing to search.", status=404)
        settings = self._chosen(choice)
        source = self._source(settings, where)
        assert settings.index is not None
        hits = FoundPassages(settings.index, source.passages, source.search(queries, k))
        if self.audit is not None:
            for row in range(len(queries)):
                entry.add_passages(hits.index, enumerate((passage for passage, _ in hits.of(row)), 1))
        return hits

    def _chosen(self, choice: Mapping[str, Any]) -> Settings:
        """Return the settings with the choices of a request; RequestError if one is not possible."""
        if not choice:
            return self.settings
        try:
            return with_choices(self.settings, choice, self.options.limits, self.indexes.names)
        except UsageError as error:
            raise choice_error(error, choice) from None

    def _source(self, settings: Settings, where: Filter | None = None) -> FromRetriever:
        """Return the passages of an index with their retriever; RequestError if the index was not built for it."""
        name, options = settings.index, settings.retrieval
        assert name is not None
        index = self.indexes.index(name)
        lacks_words = options.name in ("bm25", "hybrid") and index.bm25_options is None
        if lacks_words or (options.is_dense and not index.vectors):
            raise errors.RequestError(
                f"the index {name!r} has no {'words' if lacks_words else 'vectors'}, which `retriever` "
                f"{options.retriever} searches: choose another one.",
                param="ralm.retriever",
            )
        return self.indexes.source(name, options, where)


class ModelService(SearchService):
    """Indexes and a model, called `name` by default; with an index it is NAME:INDEX, without any NAME:plain."""

    can: Mapping[str, bool]
    """Whether chats are answered, and whether these may have earlier turns."""

    def __init__(self, name: str, served: Served) -> None:
        super().__init__(served)
        self.created = int(time.time())
        self.name = self.options.name or name
        self.models: dict[str, str | None] = {self.name: self.settings.index}
        """The index of each name."""
        if self.indexes.names:
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
        errors.check_bytes([choice.get("query", "")], MAX_TEXT_BYTES, "ralm.query")
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
