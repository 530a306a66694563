"""Hybrid retrieval: fuses the rankings of several retrievers over the same passages into one."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.options import Option, check_options
from ralm.protocols import Retriever
from ralm.records import NO_PASSAGE, BoolArray, FloatArray, Hits
from ralm.retrieval.allowed import narrowed
from ralm.validation import check_search, config_of, retrieve_checked

FusionMethod = Literal["rrf", "interpolation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionOptions:
    """How rankings are fused: by `reciprocal_ranks` (rrf) or `interpolated_scores`, from at least k hits of each.

    Raises UsageError if a value is invalid.
    """

    method: Annotated[
        FusionMethod,
        Option("Add up reciprocal ranks (rrf), or scores scaled between 0 and 1 (interpolation).", flag="fusion"),
    ] = "rrf"
    dense_weight: Annotated[
        float,
        Option("Weight of dense in interpolation; BM25 gets the rest.", minimum=0, maximum=1),
    ] = 0.5
    depth: Annotated[int, Option("Hits of each ranking that are used.", flag="")] = 100

    def __post_init__(self) -> None:
        check_options(self)
        if self.method == "rrf" and self.dense_weight != 0.5:
            raise UsageError("`dense_weight` has no effect with the fusion rrf: write fusion=interpolation.")


class Hybrid:
    """BM25 and dense retrieval, or any other two retrievers over the same passages, as one retriever."""

    def __init__(self, lexical: Retriever, dense: Retriever, options: FusionOptions | None = None) -> None:
        self._retrievers = (lexical, dense)
        self._options = options or FusionOptions()

    def only(self, mask_N: BoolArray) -> "Hybrid":
        """Return both retrievers with only the passages of a mask."""
        lexical, dense = (narrowed(retriever, mask_N) for retriever in self._retrievers)
        return Hybrid(lexical, dense, self._options)

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return the configurations of both retrievers, and how their rankings are fused."""
        lexical, dense = (config_of(retriever, "retriever") for retriever in self._retrievers)
        return {"retriever": "hybrid", "lexical": lexical, "dense": dense, **asdict(self._options)}

    @property
    def stable(self) -> int:
        """Return the depth: both rankings have at least that many hits, even for a smaller `k`."""
        return self._options.depth

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """Return the k best passages for each query; equal scores are ordered by passage number."""
        check_search(queries, k)
        options = self._options
        rankings = [retrieve_checked(retriever, queries, max(k, options.depth)) for retriever in self._retrievers]
        if options.method == "rrf":
            return reciprocal_ranks(rankings, k)
        return interpolated_scores(rankings, [1 - options.dense_weight, options.dense_weight], k)


def reciprocal_ranks(rankings: Sequence[Hits], k: int) -> Hits:
    """Return the k best by the sum of 1 / (60 + rank), with ranks from 1 (Cormack, Clarke and Büttcher, 2009)."""
    numbers = [hits.numbers_QK for hits in rankings]
    shares = [np.where(rows != NO_PASSAGE, 1 / (61 + np.arange(rows.shape[1])), 0) for rows in numbers]
    return _summed(rankings, shares, k)


def interpolated_scores(rankings: Sequence[Hits], weights: Sequence[float], k: int) -> Hits:
    """Return the k best by a convex combination: the sum over rankings of weight x scaled score.

    Scores are scaled per query, from 0 (the worst hit; also a passage that the ranking lacks) to 1 (the best, and all
    hits if their scores are the same) (Bruch, Gai and Ingber, 2023).
    """
    shares = [weight * _scaled(hits) for hits, weight in zip(rankings, weights, strict=True)]
    return _summed(rankings, shares, k)


def _scaled(hits: Hits) -> FloatArray:
    """Return scores between 0 and 1 within a query; 0 if there is no hit."""
    there = hits.numbers_QK != NO_PASSAGE
    scores = hits.scores_QK.astype(np.float64)
    lowest = np.min(scores, axis=1, keepdims=True, where=there, initial=np.inf)
    highest = np.max(scores, axis=1, keepdims=True, where=there, initial=-np.inf)
    spread = np.where(highest > lowest, highest - lowest, 1)
    scaled = np.where(highest > lowest, (scores - lowest) / spread, 1)
    return np.where(there, scaled, 0)


def _summed(rankings: Sequence[Hits], shares: Sequence[FloatArray], k: int) -> Hits:
    """Return the k passages of each query with the largest sums of shares."""
    numbers = np.concatenate([hits.numbers_QK for hits in rankings], axis=1)
    order = np.argsort(numbers, axis=1, kind="stable")
    numbers = np.take_along_axis(numbers, order, axis=1)
    share = np.take_along_axis(np.concatenate(shares, axis=1), order, axis=1)
    first = np.ones(numbers.shape, dtype=np.bool_)  # a passage's first entry collects the shares of the others
    first[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    place = np.cumsum(first) - 1
    totals = np.bincount(place, weights=share.ravel())[place].reshape(share.shape)
    counts = first & (numbers != NO_PASSAGE)
    best = np.lexsort((numbers, np.where(counts, -totals, np.inf)), axis=1)[:, :k]
    counts, numbers, totals = (np.take_along_axis(rows, best, axis=1) for rows in (counts, numbers, totals))
    return Hits(
        numbers_QK=np.where(counts, numbers, NO_PASSAGE), scores_QK=np.where(counts, totals, 0).astype(np.float32)
    )
