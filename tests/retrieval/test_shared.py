"""One retrieval for several askers gives each what it would have found by itself."""

from collections.abc import Sequence

import numpy as np

from ralm.records import Hits
from ralm.retrieval.retriever import MemoizedRetriever
from tests.fakes import SharedWordsRetriever, passages_of

PASSAGES = passages_of("a b", "a", "b c", "c", *["a b c"] * 20)


class StableTo(SharedWordsRetriever):
    """Gives for more than `stable` hits another ranking than for fewer."""

    stable = 7

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        hits = super().retrieve(queries, k)
        return hits if k <= self.stable else Hits(hits.numbers_QK[:, ::-1].copy(), hits.scores_QK[:, ::-1].copy())


def same(one: Hits, other: Hits) -> None:
    np.testing.assert_array_equal(one.numbers_QK, other.numbers_QK)
    np.testing.assert_array_equal(one.scores_QK, other.scores_QK)


def test_hits_are_shared_as_far_as_they_are_stable() -> None:
    shared = MemoizedRetriever(StableTo(PASSAGES), 12)
    for k in (3, 7, 1, 8, 12, 8):
        same(shared.retrieve(["a b", "c"], k), StableTo(PASSAGES).retrieve(["a b", "c"], k))
    assert shared.retrievals == 3, "one for up to 7, one for 8, one for 12"
    assert shared.retrieve(["a b", "d"], 2).numbers_QK[1].tolist() == [-1, -1]
    assert shared.retrievals == 4, "other queries"


def test_a_retriever_that_says_nothing_is_asked_for_every_number_of_hits() -> None:
    retriever = SharedWordsRetriever(PASSAGES)
    shared = MemoizedRetriever(retriever, 7)
    for k in (3, 7, 3):
        same(shared.retrieve(["a b", "c"], k), SharedWordsRetriever(PASSAGES).retrieve(["a b", "c"], k))
    assert (shared.retrievals, len(retriever.queries)) == (2, 4)
