"""The indexes of a server, and the retrievers and rerankers of requests.

An open index stays as it is when its folder changes, until `reload`; running requests keep the index that they began
with. Retrievers are opened when a request first needs them.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from time import perf_counter
from typing import Final, cast

from ralm.errors import RalmError
from ralm.grammar import OwnPart
from ralm.lm.scoring import Scorer
from ralm.pipeline import open_pipeline
from ralm.protocols import Documents, LanguageModel, Reranker, Retriever, WritingModel
from ralm.reading import ReadingOptions, sources
from ralm.reading.parts import Parts
from ralm.records import NO_PASSAGE, BoolArray, Hits, Passages, Readings
from ralm.reranking import RERANKERS, PredictiveOptions
from ralm.reranking.predictive import CrossEncoder
from ralm.retrieval.allowed import narrowed
from ralm.retrieval.filters import Filter
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.retriever import RetrieverOptions
from ralm.serving.middleware import Metrics
from ralm.serving.model import Locked
from ralm.serving.options import Settings
from ralm.settings import PipelineOptions
from ralm.storage.manifest import identity

_SAFE: Final = ("bm25", "random")
"""Retrievers that many threads may use at once."""


class Indexes:
    """Open indexes by name, the default one first; raises what `open_index` raises."""

    def __init__(self, folders: Mapping[str, Path], metrics: Metrics) -> None:
        self._folders = dict(folders)
        self._lock = RLock()
        self._versions = self._found_versions()
        self._open = {name: open_index(folder) for name, folder in self._folders.items()}
        self._sources: dict[tuple[str, RetrieverOptions], sources.FromRetriever] = {}
        self._metrics = metrics

    @property
    def names(self) -> tuple[str, ...]:
        """The names, the default one first."""
        return tuple(self._folders)

    def index(self, name: str) -> Index:
        """Return the open index of a name."""
        with self._lock:
            return self._open[name]

    def source(self, name: str, options: RetrieverOptions) -> sources.FromRetriever:
        """Return a retriever of an index with its passages; raises what opening a retriever raises."""
        with self._lock:
            if (name, options) not in self._sources:
                source = sources.FromRetriever.of_index(self._open[name], options)
                lock = nullcontext() if options.name in _SAFE else RLock()
                locked = _LockedRetriever(source.retriever, self._metrics, lock)
                self._sources[name, options] = source.with_retriever(locked)
            return self._sources[name, options]

    def filtered(self, name: str, options: RetrieverOptions, where: Filter) -> sources.FromRetriever:
        """As `source`, but only passages that pass a filter are found; UsageError if the index cannot tell."""
        with self._lock:
            index, source = self._open[name], self.source(name, options)
        return source.with_retriever(narrowed(source.retriever, index.columns.mask(where)))

    def have_changed(self) -> bool:
        """Return whether a folder has another version than when it was last opened."""
        return self._found_versions() != self._versions

    def _found_versions(self) -> list[tuple[int, ...] | None]:
        """Return what tells the versions of the folders apart; None for one that is gone."""
        return [identity(folder) for folder in self._folders.values()]

    def reload(self) -> dict[str, str]:
        """Open every index again, and return the outcome for each; indexes that cannot be opened stay as they are."""
        outcome, opened = {}, {}
        self._versions = self._found_versions()
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


class _LockedRetriever:
    """A retriever for many threads, which use it within `lock`; counts its queries."""

    def __init__(self, retriever: Retriever, metrics: Metrics, lock: AbstractContextManager[object]) -> None:
        self._retriever = retriever
        self._metrics = metrics
        self._lock = lock
        self.config = retriever.config

    def only(self, mask_N: BoolArray) -> "_LockedRetriever":
        return _LockedRetriever(narrowed(self._retriever, mask_N), self._metrics, self._lock)

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        begin = perf_counter()
        with self._lock:
            hits = self._retriever.retrieve(queries, k)
        self._metrics.search_queries.inc(len(queries))
        self._metrics.search_seconds.inc(perf_counter() - begin)
        return hits


class Rerankers:
    """The rerankers of requests, which share loaded models; `ranker` is the model that the operator's names."""

    def __init__(self, reading: ReadingOptions, ranker: LanguageModel | None = None) -> None:
        self._ranker = ranker
        part = RERANKERS.parse(reading.rerank)
        self._cross_encoder = part.load() if isinstance(part, PredictiveOptions) else None
        self._lock = RLock()

    def parts(self, model: WritingModel, settings: Settings, source: sources.FromRetriever) -> "NotedParts":
        """Return the parts of a request; raises what `open_pipeline` raises."""
        options = PipelineOptions(lm=model.name, retrieval=settings.retrieval, reading=settings.reading)
        ranker = None if self._ranker is None else Scorer(self._ranker, progress=False)
        parts = open_pipeline(
            options,
            source=source,
            load=lambda name, _options: cast("WritingModel", ranker if name == settings.reading.ranker else model),
            load_pairs=lambda _part: cast("CrossEncoder", self._cross_encoder),
        ).parts
        reranker = parts.reranker
        if reranker is not None and isinstance(RERANKERS.parse(settings.reading.rerank), PredictiveOptions | OwnPart):
            reranker = cast("Reranker", Locked(reranker, self._lock))  # requests share it
        return NotedParts(reader=parts.reader, mixer=parts.mixer, reranker=reranker)


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
    source: sources.FromRetriever | None = None
    parts: NotedParts = field(default_factory=NotedParts)

    @property
    def passages(self) -> Passages:
        """The passages of the index, by number."""
        return () if self.source is None else self.source.passages
