"""What is counted, what it costs, and what a budget refuses."""

from pathlib import Path
from typing import Any

import pytest

from ralm.errors import InputError, UsageError
from ralm.lm.api.budget import ApiUsage, Budget, Tokens, price_of, read_prices, tokens_in_answer
from ralm.lm.api.endpoint import ApiOptions


def table(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "prices.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_full_name_counts_before_wildcards_and_the_first_of_these_before_others(tmp_path: Path) -> None:
    names = {"gpt-4o-*": (1, 2), "gpt-*": (3, 4), "gpt-4o-mini": (0.1, 0)}
    tables = (f'["{name}"]\ninput = {price[0]}\noutput = {price[1]}\n' for name, price in names.items())
    prices = read_prices(table(tmp_path, "".join(tables)))
    tokens = Tokens(1_000_000, 2_000_000)
    for model, cost in (("gpt-4o-mini", "0.1"), ("gpt-4o-x", "5"), ("gpt-5", "11"), ("llama", None), ("GPT-5", None)):
        price = price_of(model, prices)
        assert (None if price is None else str(price.cost(tokens).normalize())) == cost


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not toml", "are not a TOML file"),
        ("input = 1\noutput = 2\n", 'must have a table \\["input"\\] with input and output'),
        ("[m]\ninput = 1\n", 'must have a table \\["m"\\] with input and output'),
        ("[m]\ninput = 1\noutput = 2\ncached = 3\n", "and nothing else"),
        ("[m]\ninput = '1'\noutput = 2\n", 'the prices of "m" in .* must be numbers that are not negative'),
        ("[m]\ninput = true\noutput = 2\n", "must be numbers"),
        ("[m]\ninput = -0.1\noutput = 2\n", "must be numbers"),
        ("[m]\ninput = nan\noutput = 2\n", "must be numbers"),
        ("[m]\ninput = inf\noutput = 2\n", "must be numbers"),
        ("\udcff", "not a TOML file"),
        (None, "cannot be read: No such file"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "prices.toml"
    if text is not None:
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(InputError, match=said):
        read_prices(file)
    with pytest.raises(InputError, match="cannot be read: that is no file"):
        read_prices(Path("/dev/zero"))


def test_options_that_have_no_effect_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`max_cost` needs `prices`"):
        ApiOptions(max_cost=1.0)
    prices = table(tmp_path, "[other]\ninput = 1\noutput = 1\n")
    with pytest.raises(UsageError, match=r'has no price for m; add a table \["m"\]'):
        Budget("m", ApiOptions(prices=prices))


@pytest.mark.parametrize("name", ["requests_at_once", "timeout", "max_requests", "max_cost", "retries"])
def test_options_out_of_bounds(name: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {name: -1, "prices": tmp_path}
    with pytest.raises(UsageError, match=f"`{name}` must be"):
        ApiOptions(**arguments)


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


def test_answers_without_a_count_are_counted_at_their_worst_and_said_to_be_estimates(tmp_path: Path) -> None:
    prices = table(tmp_path, "[m]\ninput = 1\noutput = 1\n")
    budget = Budget("m", ApiOptions(prices=prices))
    budget.reserve(Tokens(20, 5))
    budget.answered(Tokens(20, 5), {"choices": []})
    assert budget.usage == ApiUsage(requests=1, tokens_in=20, tokens_out=5, estimated=1, cost=25e-6)
    assert budget.usage.describe() == "1 requests sent and 0 reused, about 20 tokens in and 5 out, 2.5e-05 spent"
