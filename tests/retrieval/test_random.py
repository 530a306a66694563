"""The control: uniform, without repetition, and the same first draws whatever k."""

import numpy as np

from ralm.records import NO_PASSAGE
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
    for column in numbers_QK.T:
        np.testing.assert_allclose(np.bincount(column, minlength=5) / 20_000, 0.2, atol=0.015)


def test_no_more_than_there_are() -> None:
    numbers_QK = RandomRetriever(3).retrieve(["a", "b"], 5).numbers_QK
    assert np.sort(numbers_QK[:, :3], axis=1).tolist() == [[0, 1, 2]] * 2
    assert (numbers_QK[:, 3:] == NO_PASSAGE).all()
