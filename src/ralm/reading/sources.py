"""The source of the passages of a text: a retriever that gets the query of each stride, or a file of passages."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.errors import InputError, UsageError, extra
from ralm.lm.registry import API_PACKAGES
from ralm.protocols import LanguageModel, Retriever, Tokenizer
from ralm.reading.parts import Parts
from ralm.reading.tokens import PreparedText
from ralm.records import NO_PASSAGE, BoolArray, Hits, Passages
from ralm.retrieval.filters import parse_filter
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.retrieval_file import RetrievedPassage, RetrievedStride, numbered_passages, read_retrieval_file
from ralm.retrieval.retriever import ExpandedPassages, MemoizedRetriever, RetrieverOptions, allowed_mask, open_retriever
from ralm.terminal import path_text
from ralm.validation import config_of, retrieve_checked


class FromRetriever:
    """Passages that a retriever finds in a corpus.

    Args:
        retriever: Finds passage numbers for queries.
        passages: The passages by number.
        config: Describes retriever and corpus in the record of a run; by default the retriever's own with a hash of all
            passages.
    """

    def __init__(self, retriever: Retriever, passages: Passages, config: dict[str, JsonValue] | None = None) -> None:
        self.retriever = retriever
        self.passages = passages
        self._config = config

    def with_retriever(self, retriever: Retriever) -> Self:
        """Return the same passages, found by another retriever that returns the same hits."""
        return type(self)(retriever, self.passages, self._config)

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything that decides which passages are found; UsageError if the retriever has no valid `config`."""
        if self._config is None:
            digest = hashlib.sha256()
            for passage in self.passages:
                digest.update(f"{passage.document_id}\0{passage.contents}\0".encode())
            fingerprint: JsonValue = {"count": len(self.passages), "sha256": digest.hexdigest()}
            self._config = {"passages": fingerprint, **config_of(self.retriever, "retriever")}
        return self._config

    @classmethod
    def of_index(
        cls,
        index: Index | Path | str | None,
        options: RetrieverOptions | None = None,
        *,
        mask_N: BoolArray | None = None,
    ) -> "FromRetriever":
        """Return the passages of an index, or without one those of a search service.

        Args:
            index: The index or its folder; None for the service that the options name.
            options: The retriever and its filters.
            mask_N: Passages that may be found (bool); None: all.
        """
        if index is None:
            return FromService.of_options(options or RetrieverOptions())
        opened = index if isinstance(index, Index) else open_index(index)
        retriever = open_retriever(opened, options, mask_N=mask_N)
        expand, filter_text = (None, None) if options is None else (options.expand, options.where)
        where: dict[str, JsonValue] = {"index": path_text(opened.path), "fingerprint": opened.fingerprint}
        where |= {} if expand is None else {"expand": expand}
        where |= {} if filter_text is None else {"where": parse_filter(filter_text).text}
        passages: Passages = opened.passages
        if options and expand:
            allowed_N = allowed_mask(opened, options, mask_N)
            passages = ExpandedPassages(passages, expand, opened.manifest.settings.get("splitting"), allowed_N)
        return cls(retriever, passages, where | config_of(retriever, "retriever"))

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """Return the k best passages for each query; PartError if the retriever does not return valid hits."""
        return retrieve_checked(self.retriever, queries, k, len(self.passages))

    def find(self, prepared: PreparedText, tokenizer: Tokenizer, k: int) -> tuple[Hits, Passages]:
        """Return the hits of the queries of the strides; raises what `search` raises."""
        rows = np.flatnonzero(prepared.plan.retrieves_R)
        queries = prepared.queries(tokenizer)
        hits = self.search([queries[row] for row in rows], k)
        return hits.spread(rows, len(queries)), self.passages


class FromService(FromRetriever):
    """Passages found by a search service: more come with each search."""

    @classmethod
    def of_options(cls, options: RetrieverOptions) -> Self:
        """Return the passages of the service that the options name; raises what `RemoteRetriever` raises."""
        if not options.is_service:
            raise UsageError("passages are found in an index: give `index`, or the URL of a service as `retriever`.")
        with extra("api", "search services need", API_PACKAGES):
            from ralm.retrieval.remote import RemoteRetriever
        retriever = RemoteRetriever(options.retriever)
        return cls(retriever, retriever.passages, retriever.config)

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """Return the k best passages for each query; PartError if the service does not return valid hits."""
        return retrieve_checked(self.retriever, queries, k)


@dataclass(frozen=True, slots=True)
class FromFile:
    """Passages from a file that `ralm retrieve` or the official code wrote; `config` identifies the file."""

    strides: Sequence[RetrievedStride]
    config: dict[str, JsonValue]

    @classmethod
    def read(cls, file: Path | str) -> Self:
        """Read a file of the official format; InputError if it is not such a file."""
        return cls(read_retrieval_file(file), config=file_config(Path(file)))

    def find(self, prepared: PreparedText, tokenizer: Tokenizer, k: int) -> tuple[Hits, Passages]:
        """Return the hits of the file; InputError if it was made for another text, plan or tokenizer."""
        plan = prepared.plan
        if len(self.strides) != len(plan):
            raise InputError(
                f"the retrieval file has {len(self.strides):,} strides, but this text has {len(plan):,} with stride "
                f"{plan.options.stride}, model length {plan.options.max_length} and {plan.options.semantics} "
                "semantics: it was made with other settings or another `limit_tokens`, for another text or tokenizer."
            )
        for row, stride in enumerate(self.strides):
            begin, end = int(plan.begin_R[row]), int(plan.end_R[row])
            future = tokenizer.decode(prepared.tokens[begin:end])
            if (stride.begin_location, stride.end_location, stride.future) != (begin, end, future):
                raise InputError(
                    f"stride {row} of the retrieval file is tokens {stride.begin_location} to {stride.end_location}, "
                    f"{stride.future[:60]!r}, here {begin} to {end}, {future[:60]!r}: it was made for another text, "
                    "tokenizer, stride, model length or semantics."
                )
        hits, passages = numbered_passages([stride.retrieved_docs for stride in self.strides])
        hits.numbers_QK[~plan.retrieves_R] = NO_PASSAGE
        return hits.first(k), passages


PassageSource: TypeAlias = FromRetriever | FromFile
"""A source of the passages of a text; its `config` is everything that decides which passages it gives."""


def config_of_reading(model: LanguageModel, source: PassageSource | None, parts: Parts) -> dict[str, JsonValue]:
    """Return everything that decides what a model reads and predicts, as JSON, for the record of a run."""
    return {
        "model": config_of(model, "language model"),
        "passages": None if source is None else source.config,
        **({"reranker": None, "reader": None} if source is None else parts.config),
    }


def file_config(file: Path) -> dict[str, JsonValue]:
    """Return the path and hash of a file of passages, for the record of a run."""
    return {"retrieved": path_text(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def share_retrievals(sources: Sequence[Any], hits: Sequence[int]) -> list[Any]:
    """Return the sources, which share a retriever that retrieves once for all of them."""
    most: dict[int, int] = {}
    for source, k in zip(sources, hits, strict=True):
        most[id(source)] = max(most.get(id(source), 0), k)
    shared = {
        id(source): MemoizedRetriever(source.retriever, most[id(source)])
        for source in sources
        if isinstance(source, FromRetriever)
    }
    return [source.with_retriever(shared[id(source)]) if id(source) in shared else source for source in sources]


def retrieved_strides(
    prepared: PreparedText, tokenizer: Tokenizer, hits: Hits, passages: Passages
) -> Iterator[RetrievedStride]:
    """Yield the hits of a plan as rows of the official retrieval file."""
    plan = prepared.plan
    for row, query in enumerate(prepared.queries(tokenizer)):
        begin, end = int(plan.begin_R[row]), int(plan.end_R[row])
        yield RetrievedStride(
            begin_location=begin,
            end_location=end,
            future=tokenizer.decode(prepared.tokens[begin:end]),
            query=query,
            retrieved_docs=tuple(
                RetrievedPassage(
                    text=passage.contents, score=score, id=passage.document_id, metadata=dict(passage.metadata)
                )
                for passage, score in ((passages[number], score) for number, score in hits.of(row))
            ),
        )
