"""Fusion of rankings against the plain loops, and by hand."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.errors import UsageError
from ralm.records import NO_PASSAGE, Hits
from ralm.retrieval.hybrid import FusionOptions, Hybrid, interpolated_scores, reciprocal_ranks
from tests.fakes import SharedWordsRetriever, passages_of
from tests.reference import dense as reference


def hits_of(rankings: Sequence[reference.Ranking], width: int) -> Hits:
    numbers_QK = np.full((len(rankings), width), NO_PASSAGE, dtype=np.int64)
    scores_QK = np.zeros((len(rankings), width), dtype=np.float32)
    for row, ranking in enumerate(rankings):
        for column, (number, score) in enumerate(ranking):
            numbers_QK[row, column], scores_QK[row, column] = number, score
    return Hits(numbers_QK=numbers_QK, scores_QK=scores_QK)


@st.composite
def rankings(draw: st.DrawFn) -> list[tuple[int, float]]:
    """Up to 6 of 9 passages, with scores that fall, some of them equal, some negative."""
    numbers = draw(st.lists(st.integers(0, 8), unique=True, max_size=6))
    scores = draw(st.lists(st.integers(-8, 8), min_size=len(numbers), max_size=len(numbers)))
    return [(number, score / 4) for number, score in zip(numbers, sorted(scores, reverse=True), strict=True)]


def same(fused: Hits, row: int, expected: list[tuple[int, float]]) -> None:
    """The same scores, and the same passages but for the order among scores that differ by rounding alone."""
    np.testing.assert_allclose([s for _, s in fused.of(row)], [s for _, s in expected], atol=1e-6)
    scores = dict(expected)
    assert all(math.isclose(score, scores.get(n, expected[-1][1]), abs_tol=1e-6) for n, score in fused.of(row))


@given(st.lists(st.tuples(rankings(), rankings()), min_size=1, max_size=4), st.integers(1, 14), st.floats(0, 1))
def test_the_same_as_the_plain_loops(pairs: list[tuple[reference.Ranking, ...]], k: int, weight: float) -> None:
    both = [hits_of([pair[side] for pair in pairs], 6) for side in (0, 1)]
    weights = [1 - weight, weight]
    ranks, scores = reciprocal_ranks(both, k), interpolated_scores(both, weights, k)
    assert ranks.numbers_QK.shape == scores.numbers_QK.shape == (len(pairs), min(k, 12))
    for row, pair in enumerate(pairs):
        same(ranks, row, reference.reciprocal_ranks(pair, k))
        same(scores, row, reference.interpolated_scores(pair, weights, k))


def test_by_hand() -> None:
    one, other = hits_of([[(7, 3.0), (5, 2.0), (1, 1.0)]], 3), hits_of([[(5, 0.9), (2, 0.1)]], 3)
    ranks, scores = reciprocal_ranks([one, other], 2), interpolated_scores([one, other], [0.25, 0.75], 5)
    assert ranks.numbers_QK.tolist() == [[5, 7]]
    assert ranks.scores_QK[0] == pytest.approx([1 / 62 + 1 / 61, 1 / 61])
    assert scores.numbers_QK.tolist() == [[5, 7, 1, 2, NO_PASSAGE]]
    assert scores.scores_QK[0] == pytest.approx([0.25 * 0.5 + 0.75, 0.25, 0, 0, 0])


def test_a_hybrid_retriever_looks_deeper_than_k() -> None:
    passages = passages_of("red fox", "red barn", "blue sea", "red sea", "fox")
    one, other = SharedWordsRetriever(passages), SharedWordsRetriever(passages[::-1])
    for options in (FusionOptions(), FusionOptions(method="interpolation", dense_weight=0.3)):
        deep = Hybrid(one, other, options).retrieve(["red fox", "", "blue"], 5)
        short = Hybrid(one, other, options).retrieve(["red fox", "", "blue"], 1)
        assert [deep.of(row)[:1] for row in range(3)] == [short.of(row) for row in range(3)]
        assert deep.of(1) == []


def test_no_queries_and_no_hits() -> None:
    retriever = SharedWordsRetriever(passages_of("red"))
    assert len(Hybrid(retriever, retriever).retrieve([], 3)) == 0
    with pytest.raises(UsageError, match="`k` must be at least 1, not 0"):
        Hybrid(retriever, retriever).retrieve(["red"], 0)
