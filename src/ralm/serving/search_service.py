"""The indexes of a server, and how requests search them; safe for many threads. A server without a language model has
nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ralm.errors import UsageError
from ralm.reading.sources import FromRetriever
from ralm.records import Hits, Passage, Passages
from ralm.retrieval.filters import Filter
from ralm.retrieval.retriever import RetrieverOptions
from ralm.serving import errors, indexes, middleware
from ralm.serving.audit import AuditLog
from ralm.serving.options import PLAIN, ServeOptions, Settings, with_choices


@dataclass(frozen=True, slots=True, eq=False)
class FoundPassages:
    """The passages of an index that were found for each query, best first, with their scores."""

    index: str
    passages: Passages
    hits: Hits

    def of(self, query: int) -> list[tuple[Passage, float]]:
        """Those of one query."""
        return [(self.passages[number], score) for number, score in self.hits.of(query)]


class SearchService:
    """Indexes in `folders` by name, the first by default, searched as `settings` say for clients with the `key`, if
    there is one; `audit` gets a line for each request."""

    def __init__(
        self,
        options: ServeOptions | None = None,
        settings: Settings | None = None,
        folders: Mapping[str, Path] | None = None,
        *,
        key: str | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self.options = options or ServeOptions()
        self.key = key
        self.audit = audit
        self.metrics = middleware.Metrics()
        self.indexes = indexes.Indexes(folders or {}, self.metrics)
        if PLAIN in self.indexes.names:
            raise UsageError(f"no index can be called {PLAIN}, which is the model without passages: give NAME=DIR.")
        self.settings = replace(settings or Settings(), index=next(iter(self.indexes.names), None))

    def warm_up(self) -> None:
        """Search once, so that the first request does not wait for opening and compiling."""
        self.found(["The first request must not wait."], 1, {})

    def check_health(self) -> None:
        """Raise RequestError if the server cannot answer any more."""

    def close(self) -> None:
        """End what runs in the background."""

    def reload(self) -> dict[str, str]:
        """Open the indexes again; return what became of each."""
        return self.indexes.reload()

    def found(
        self, queries: Sequence[str], k: int, choice: Mapping[str, Any], param: str = "k", wanted: Filter | None = None
    ) -> FoundPassages:
        """Find the k best passages for each query that pass `wanted`; RequestError if k (called `param`) is out of
        range, a query is too long, there is no index, or a `choice` of index or retriever is not possible."""
        errors.check_bytes([max(queries, key=len, default="")], self.options.limits.text_bytes, "query")
        most = self.options.limits.documents
        if not 1 <= k <= most:
            raise errors.RequestError(f"`{param}` must be from 1 to {most:,}.", param=param)
        if not self.indexes.names:
            raise errors.RequestError("no index is served here, so that there is nothing to search.", status=404)
        settings = self._chosen(choice)
        source = self._source(settings, wanted)
        assert settings.index is not None
        hits = source.search(queries, k)
        return FoundPassages(settings.index, source.passages, hits)

    def can_search(self, retriever: str) -> bool:
        """Whether every index was built for a retriever."""
        options = replace(self.settings.retrieval, retriever=retriever)
        return all(self._lacking(name, options) is None for name in self.indexes.names)

    def _chosen(self, choice: Mapping[str, Any]) -> Settings:
        """The settings with the choices of a request; RequestError if one is not possible."""
        if not choice:
            return self.settings
        try:
            return with_choices(self.settings, choice, self.options, self.indexes.names)
        except UsageError as error:
            raise choice_error(error, choice) from None

    def _source(self, settings: Settings, wanted: Filter | None = None) -> FromRetriever:
        """Return the passages of an index with their retriever; RequestError if the index was not built for it."""
        assert settings.index is not None
        lacking = self._lacking(settings.index, settings.retrieval)
        if lacking is not None:
            raise errors.RequestError(
                f"the index {settings.index!r} has no {lacking}, which `retriever` {settings.retrieval.retriever} "
                "searches: choose another one.",
                param="ralm.retriever",
            )
        if wanted is not None:
            return self.indexes.filtered(settings.index, settings.retrieval, wanted)
        return self.indexes.source(settings.index, settings.retrieval)

    def _lacking(self, name: str, options: RetrieverOptions) -> str | None:
        """The part that an index lacks for these options; None if it has all."""
        index = self.indexes.index(name)
        if options.name in ("bm25", "hybrid") and index.bm25_options is None:
            return "words"
        return "vectors" if options.is_dense and not index.vectors else None


def choice_error(error: UsageError, choice: Mapping[str, Any]) -> errors.RequestError:
    """The error of a choice that is not possible, with the field that its message names first."""
    message = str(error)
    named = [name for name in choice if f"`{name}" in message]
    first = min(named, key=lambda name: message.find(f"`{name}"), default=None)
    return errors.RequestError(message, param=first and f"ralm.{first}")
