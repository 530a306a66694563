"""What retrievers may give, and what is refused."""

from collections.abc import Sequence

import numpy as np
import pytest
from pydantic import JsonValue

from ralm.errors import RetrieverError
from ralm.records import Hits
from ralm.validation import retrieve_checked


class Gives:
    """Gives one row whatever is asked."""

    config: dict[str, JsonValue] = {"retriever": "gives"}  # noqa: RUF012

    def __init__(self, numbers: object, scores: object) -> None:
        self.numbers = numbers
        self.scores = scores

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        return Hits(np.atleast_2d(np.array(self.numbers)), np.atleast_2d(np.array(self.scores)))


def test_fewer_columns_than_asked_for_will_do() -> None:
    hits = retrieve_checked(Gives([2, 0], [3, 2]), ["a"], 4, passages=5)
    assert hits.of(0) == [(2, 3.0), (0, 2.0)]
    assert hits.numbers_QK.dtype == np.int64
    assert hits.scores_QK.dtype == np.float32
    none = retrieve_checked(Gives(np.zeros((1, 0), int), np.zeros((1, 0))), ["a"], 4, passages=5)
    assert none.numbers_QK.tolist() == [[-1]]


def test_no_one_is_asked_for_more_than_there_is() -> None:
    class Wide(Gives):
        def retrieve(self, queries: Sequence[str], k: int) -> Hits:
            return Hits.none(len(queries), k)

    assert retrieve_checked(Wide([], []), ["a", "b"], 1 << 60, passages=3).numbers_QK.shape == (2, 3)


@pytest.mark.parametrize(
    ("numbers", "scores", "message"),
    [
        ([[1], [2]], [[0.0], [0.0]], "gives 2 rows of 1 for 1 queries and k = 4"),
        ([1, 2, 3, 4, 0], [0.0] * 5, "gives 1 rows of 5"),
        ([1.0], [0.0], "numbers of type float64"),
        ([1], ["x"], "scores of type"),
        ([5], [0.0], "gives passage 5 of 5"),
        ([-2], [0.0], "gives passage -2 of 5"),
        ([0], [np.nan], "score that is not finite"),
        ([0], [1e300], "score that is not finite"),
        ([-1, 0], [0.0, 0.0], "a passage after an empty place"),
        ([3, 1, 3], [2.0, 1.0, 1.0], "passage 3 twice"),
    ],
)
def test_what_are_no_hits(numbers: object, scores: object, message: str) -> None:
    with pytest.raises(RetrieverError, match=f"the retriever Gives .*{message}"):
        retrieve_checked(Gives(numbers, scores), ["a"], 4, passages=5)


def test_what_is_not_even_hits() -> None:
    class Lists(Gives):
        def retrieve(self, queries: Sequence[str], k: int) -> Hits:
            return [[1]]  # type: ignore[return-value]

    with pytest.raises(RetrieverError, match="Lists gives list and not Hits"):
        retrieve_checked(Lists([], []), ["a"], 1, passages=5)
