"""A remembering model: what it scores, and what it does not score again."""

import numpy as np

from ralm.lm.memory import RememberingModel
from ralm.records import FloatArray, Request
from tests.fakes import CountingModel, WordTokenizer


class Asked(CountingModel):
    """Counts the requests that reach it."""

    requests = 0

    def _score(self, request: Request) -> FloatArray:
        self.requests += 1
        return super()._score(request)


def request(*parts: list[int]) -> Request:
    document, context, targets = (np.array(part, dtype=np.int64) for part in parts)
    return Request(document=document, context=context, targets=targets)


def test_nothing_is_scored_twice_and_everything_is_as_before() -> None:
    model = Asked(WordTokenizer())
    remembering = RememberingModel(model)
    one, other, split = request([1], [2], [3]), request([1], [2], [4]), request([], [1, 2], [3])
    first = remembering.log_probs([one, one, other])
    again = remembering.log_probs([other, one])
    assert (remembering.asked, remembering.scored, model.requests) == (5, 2, 2)
    np.testing.assert_array_equal(again[1], first[0])
    np.testing.assert_array_equal(again[0], model.log_probs([other])[0])
    np.testing.assert_array_equal(remembering.log_probs([split])[0], model.log_probs([split])[0])
    assert remembering.log_probs([]) == []
    assert remembering.continuations().next_log_probs([np.array([1])]).shape == (1, 100)
    assert (remembering.name, remembering.max_length, remembering.end_tokens) == ("counting", 64, frozenset({0}))
    assert remembering.config == model.config
    assert remembering.tokenizer is model.tokenizer
