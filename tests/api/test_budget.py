"""What is counted, and which options of a budget are refused."""

from typing import Any

import pytest

from ralm.lm.api.answers import tokens_in_answer
from ralm.lm.api.client import ApiUsage, Budget
from ralm.lm.api.http import ApiRequest


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}, (3, 2)),
        ({"usage": {"prompt_tokens": 3, "total_tokens": 3}}, (3, 0)),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": None}}, (3, 0)),
        ({"meta_info": {"prompt_tokens": 4, "completion_tokens": 1}, "usage": None}, (4, 1)),
        ({"tokens_evaluated": 5, "tokens_predicted": 0}, (5, 0)),
        ({"usage": {"prompt_tokens": "3"}}, None),
        ({"usage": {"prompt_tokens": True}}, None),
        ({"usage": {"prompt_tokens": -1}}, None),
        ({"usage": {}}, None),
        ({}, None),
    ],
)
def test_where_answers_say_how_many_tokens_they_took(answer: Any, tokens: Any) -> None:
    assert tokens_in_answer(answer) == tokens


def test_answers_without_a_count_are_counted_at_their_worst_and_said_to_be_estimates() -> None:
    budget = Budget(max_requests=None)
    budget.sent()
    budget.answered(ApiRequest("/completions", {}, 20, 5), {"choices": []})
    assert budget.usage == ApiUsage(requests=1, tokens_in=20, tokens_out=5, estimated=1)
    assert budget.usage.describe() == "1 requests sent and 0 reused, about 20 tokens in and 5 out"
