"""One retrieval for several askers gives each what it would have found by itself."""

import numpy as np

from ralm.retrieval.shared import DEEPEST, SharedRetriever
from tests.fakes import SharedWordsRetriever, passages_of

PASSAGES = passages_of("a b", "a", "b c", "c", *["a b c"] * (DEEPEST + 5))


def test_the_same_queries_are_asked_once_and_others_again() -> None:
    retriever = SharedWordsRetriever(PASSAGES)
    shared = SharedRetriever(retriever, 7)
    for k in (3, 7, 1):
        found, alone = shared.retrieve(["a b", "c"], k), SharedWordsRetriever(PASSAGES).retrieve(["a b", "c"], k)
        np.testing.assert_array_equal(found.numbers_QK, alone.numbers_QK)
        np.testing.assert_array_equal(found.scores_QK, alone.scores_QK)
    assert (shared.retrievals, len(retriever.queries)) == (1, 2)
    assert shared.retrieve(["a b", "d"], 2).numbers_QK[1].tolist() == [-1, -1]
    assert shared.retrievals == 2


def test_whoever_wants_very_many_asks_alone() -> None:
    shared = SharedRetriever(SharedWordsRetriever(PASSAGES), DEEPEST + 3)
    assert shared.retrieve(["a"], DEEPEST + 3).numbers_QK.shape == (1, DEEPEST + 3)
    assert shared.retrieve(["a"], 2).numbers_QK.shape == (1, 2)
    assert shared.retrievals == 2
