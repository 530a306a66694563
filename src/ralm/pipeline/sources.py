"""Where the passages of a text come from: a retriever that is asked stride by stride, or a file of what was found."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from pydantic import JsonValue

from ralm.errors import RetrievalFileError
from ralm.pipeline.texts import PreparedText
from ralm.protocols import Retriever, Tokenizer, ask
from ralm.records import NO_PASSAGE, Hits, Passages
from ralm.retrieval.retrieval_file import RetrievedPassage, RetrievedStride, hits_and_passages


class PassageSource(Protocol):
    """Where the passages of a text come from."""

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything about the source that decides which passages it gives."""

    def find(self, prepared: PreparedText, tokenizer: Tokenizer, k: int) -> tuple[Hits, Passages]:
        """The k best passages of each stride (fewer where there are fewer), and the passages that the hits number."""


@dataclass(frozen=True, slots=True)
class FromRetriever:
    """Passages found by a retriever over a corpus; `config` says by which and in what, for the record of a run."""

    retriever: Retriever
    passages: Passages
    config: dict[str, JsonValue]

    def find(self, prepared: PreparedText, tokenizer: Tokenizer, k: int) -> tuple[Hits, Passages]:
        """Ask the retriever with the queries of the strides."""
        return retrieve(prepared, tokenizer, self.retriever, k, len(self.passages)), self.passages


@dataclass(frozen=True, slots=True)
class FromFile:
    """Passages found before, by `ralm retrieve` or by the official code; `config` says which file it was."""

    strides: Sequence[RetrievedStride]
    config: dict[str, JsonValue]

    def find(self, prepared: PreparedText, tokenizer: Tokenizer, k: int) -> tuple[Hits, Passages]:
        """Take them from the file; RetrievalFileError where it was made for something else."""
        hits, passages = hits_of_file(prepared, tokenizer, self.strides)
        return hits.first(k), passages


def stride_queries(prepared: PreparedText, tokenizer: Tokenizer) -> list[str]:
    """The query of each stride, which its plan says, as text; empty for a stride that does not retrieve."""
    plan = prepared.plan
    return [
        tokenizer.decode(prepared.tokens[begin:end]) if retrieves else ""
        for begin, end, retrieves in zip(plan.query_begin_R, plan.query_end_R, plan.retrieves_R, strict=True)
    ]


def retrieve(
    prepared: PreparedText, tokenizer: Tokenizer, retriever: Retriever, k: int = 1, passages: int | None = None
) -> Hits:
    """The k best of so many passages for each stride; none for a stride that does not retrieve.

    Raises RetrieverError where the retriever gives what are no hits.
    """
    rows = np.flatnonzero(prepared.plan.retrieves_R)
    queries = stride_queries(prepared, tokenizer)
    return ask(retriever, [queries[row] for row in rows], k, passages).spread(rows, len(queries))


def retrieved_strides(
    prepared: PreparedText, tokenizer: Tokenizer, hits: Hits, passages: Passages
) -> Iterator[RetrievedStride]:
    """The hits of a plan as rows of the official retrieval file."""
    plan = prepared.plan
    for row, query in enumerate(stride_queries(prepared, tokenizer)):
        begin, end = int(plan.begin_R[row]), int(plan.end_R[row])
        found = [(passages[number], score) for number, score in hits.of(row)]
        yield RetrievedStride(
            begin_location=begin,
            end_location=end,
            future=tokenizer.decode(prepared.tokens[begin:end]),
            query=query,
            retrieved_docs=tuple(
                RetrievedPassage(text=passage.contents, score=score, id=passage.document_id) for passage, score in found
            ),
        )


def hits_of_file(
    prepared: PreparedText, tokenizer: Tokenizer, strides: Sequence[RetrievedStride]
) -> tuple[Hits, Passages]:
    """The hits and passages of a retrieval file for this very plan.

    Raises RetrievalFileError where the file was made for another text, stride, model length or tokenizer.
    """
    plan = prepared.plan
    if len(strides) != len(plan):
        raise RetrievalFileError(
            f"the retrieval file has {len(strides):,} strides where this text has {len(plan):,} with stride "
            f"{plan.options.stride}, model length {plan.options.max_length} and {plan.options.semantics} semantics: "
            "it was made with other settings or another `limit_tokens`, for another text or tokenizer."
        )
    for row, stride in enumerate(strides):
        begin, end = int(plan.begin_R[row]), int(plan.end_R[row])
        if (stride.begin_location, stride.end_location) != (begin, end):
            raise RetrievalFileError(
                f"stride {row} of the retrieval file is tokens {stride.begin_location} to {stride.end_location}, here "
                f"{begin} to {end}: it was made for another stride, model length or semantics."
            )
        if stride.future != (future := tokenizer.decode(prepared.tokens[begin:end])):
            raise RetrievalFileError(
                f"stride {row} of the retrieval file continues with {stride.future[:60]!r}, the text here with "
                f"{future[:60]!r}: it was made for another text or tokenizer."
            )
    hits, passages = hits_and_passages(strides)
    hits.numbers_QK[~plan.retrieves_R] = NO_PASSAGE
    return hits, passages
