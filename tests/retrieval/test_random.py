"""The control: uniform, without repetition, and the same first draws whatever k."""

import numpy as np
import pytest

from ralm.errors import UsageError
from ralm.retrieval.random import RandomRetriever


def test_the_first_draws_are_the_same_whatever_k() -> None:
    retriever = RandomRetriever(20, seed=3)
    queries = ["q"] * 50
    ten = retriever.retrieve(queries, 10).numbers_QK
    for k in (1, 4, 9):
        np.testing.assert_array_equal(retriever.retrieve(queries, k).numbers_QK, ten[:, :k])
    assert all(len(set(row)) == 10 for row in ten.tolist())
    assert (RandomRetriever(20, seed=4).retrieve(queries, 10).numbers_QK != ten).any()


def test_every_passage_is_as_likely_in_every_place() -> None:
    numbers_QK = RandomRetriever(5).retrieve(["q"] * 20_000, 5).numbers_QK
    assert all(len(set(row)) == 5 for row in numbers_QK.tolist())
    for column in numbers_QK.T:
        np.testing.assert_allclose(np.bincount(column, minlength=5) / 20_000, 0.2, atol=0.015)


def test_a_draw_follows_from_the_seed_the_query_and_its_occurrence_alone() -> None:
    retriever = RandomRetriever(1000, seed=3)
    asked = ["a", "b", "a", "", "c", "a", "\ud800"]
    together = retriever.retrieve(asked, 4).numbers_QK
    assert len({tuple(row) for row in together.tolist()}) == len(asked), "every occurrence draws anew"
    np.testing.assert_array_equal(retriever.retrieve(asked, 4).numbers_QK, together)
    np.testing.assert_array_equal(retriever.retrieve(["x", "a", "a"], 4).numbers_QK[1:], together[[0, 2]])
    for row in (1, 3, 4, 6):
        np.testing.assert_array_equal(retriever.retrieve([asked[row]], 4).numbers_QK[0], together[row])


def test_no_more_than_there_are() -> None:
    assert np.sort(RandomRetriever(3).retrieve(["a", "b"], 5).numbers_QK, axis=1).tolist() == [[0, 1, 2]] * 2
    some = RandomRetriever(np.array([7, 3, 5])).retrieve(["a", "b"], 1 << 30).numbers_QK
    assert np.sort(some, axis=1).tolist() == [[3, 5, 7]] * 2
    assert np.sort(RandomRetriever(3000).retrieve(["a"], 3000).numbers_QK[0]).tolist() == list(range(3000))
    assert RandomRetriever(0).retrieve(["a"], 5).of(0) == []
    assert len(RandomRetriever(3).retrieve([], 5)) == 0


def test_what_is_drawn_from_is_known_by_its_config() -> None:
    retrievers = [RandomRetriever(9), RandomRetriever(8), RandomRetriever(9, seed=1), RandomRetriever(np.arange(1, 10))]
    assert len({repr(retriever.config) for retriever in retrievers}) == 4


def test_k_of_0() -> None:
    with pytest.raises(UsageError, match="`k` must be at least 1, not 0"):
        RandomRetriever(3).retrieve(["a"], 0)
