"""What is asked of a server, what it costs, and how much of either is allowed.

Knows numbers of tokens and prices; knows nothing of what is asked.
"""

import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeGuard

from pydantic import JsonValue

from ralm.errors import BudgetError, InputError, UsageError
from ralm.lm.api.options import ApiOptions

_MILLION: Final = 1_000_000


class Tokens(NamedTuple):
    """A number of tokens in (of prompts) and out (generated)."""

    into: int
    out: int

    def plus(self, other: "Tokens") -> "Tokens":
        """The sum of both."""
        return Tokens(self.into + other.into, self.out + other.out)

    def minus(self, other: "Tokens") -> "Tokens":
        """The difference of both."""
        return Tokens(self.into - other.into, self.out - other.out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What was asked of a server so far, and what it cost.

    `requests` were sent, and `retries` times one was sent again; `reused` requests were not sent, because their answer
    was kept or an equal one was sent. The tokens are those of answers, as the server counted them; `estimated` answers
    came without a count, and count at their worst. `cost` is in the currency of the price table, None without one; what
    a provider charges for requests that it did not answer is not in it.
    """

    requests: int = 0
    retries: int = 0
    reused: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: int = 0
    cost: float | None = None

    def said(self) -> str:
        """The same in words, for a message."""
        cost = "" if self.cost is None else f", {self.cost:,.4g} spent"
        about = "about " if self.estimated else ""
        return (
            f"{self.requests:,} requests sent and {self.reused:,} reused, "
            f"{about}{self.tokens_in:,} tokens in and {self.tokens_out:,} out{cost}"
        )

    def said_of_dry_run(self) -> str:
        """The same of requests that would be sent."""
        cost = "" if self.cost is None else f", at a cost of {self.cost:,.4g} at most"
        return (
            f"{self.requests:,} requests would be sent and {self.reused:,} reused, with {self.tokens_in:,} tokens in "
            f"and {self.tokens_out:,} out at most{cost}"
        )


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a million tokens in, and of a million tokens out."""

    into: Decimal
    out: Decimal

    def cost(self, tokens: Tokens) -> Decimal:
        """What these tokens cost."""
        return (self.into * tokens.into + self.out * tokens.out) / _MILLION


class PriceTable:
    """Prices by the names of models.

    It is read from a TOML file with a table for each model, whose name may have wildcards; the first that fits a model
    counts, and a full name before those with wildcards:

        ["gpt-4o-mini*"]
        input = 0.15     # a million tokens in, in any currency
        output = 0.60
    """

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = dict(prices)

    @classmethod
    def read(cls, file: Path) -> Self:
        """The table of a file. Raises InputError if the file is missing, no TOML, or has anything else than prices."""
        try:
            tables = tomllib.loads(file.read_text(encoding="utf-8"), parse_float=Decimal)
        except OSError as error:
            raise InputError(f"the prices {file} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise InputError(f"the prices {file} are not a TOML file: {error}.") from error
        return cls({name: _price(name, table, file) for name, table in tables.items()})

    def of(self, model: str) -> Price | None:
        """The price of a model, or None if the table does not have it."""
        if model in self._prices:
            return self._prices[model]
        return next((price for name, price in self._prices.items() if fnmatchcase(model, name)), None)


class Budget:
    """Counts what is asked and spent, and refuses what would be too much; several threads may use it.

    A request that is under way counts at its worst: all tokens of its prompt and the most that it may generate. So
    `max_cost` is never exceeded, unless a server counts more tokens than that.

    Raises UsageError if `options` have prices, but none for this model; InputError if they cannot be read.
    """

    def __init__(self, model: str, options: ApiOptions) -> None:
        self._options = options
        self._price = None if options.prices is None else _price_of(model, options.prices)
        self._most = None if options.max_cost is None else Decimal(str(options.max_cost))
        self._lock = threading.Lock()
        self._spent = Spent(cost=None if self._price is None else 0.0)
        self._tokens = Tokens(0, 0)
        self._under_way = Tokens(0, 0)

    @property
    def spent(self) -> Spent:
        """What was spent so far."""
        return self._spent

    def affords(self, worst: Tokens) -> bool:
        """Whether a request with these tokens at most may be sent now."""
        return self._lacking(worst) is None

    def reserve(self, worst: Tokens) -> None:
        """Count a request that is sent now. Raises BudgetError, without counting it, if that would be too much."""
        with self._lock:
            if lacking := self._lacking(worst):
                raise BudgetError(
                    f"the budget is used up: {self._spent.said()}. What was answered is kept; raise `{lacking}` and "
                    "run this again to go on from there."
                )
            self._under_way = self._under_way.plus(worst)
            self._spent = replace(self._spent, requests=self._spent.requests + 1)

    def answered(self, worst: Tokens, answer: Mapping[str, JsonValue]) -> None:
        """Count the answer to a request that was reserved."""
        tokens = counted_tokens(answer)
        with self._lock:
            self._under_way = self._under_way.minus(worst)
            self._tokens = self._tokens.plus(tokens or worst)
            self._spent = replace(
                self._spent,
                tokens_in=self._tokens.into,
                tokens_out=self._tokens.out,
                estimated=self._spent.estimated + (tokens is None),
                cost=None if self._price is None else float(self._price.cost(self._tokens)),
            )

    def failed(self, worst: Tokens) -> None:
        """Stop counting a request that was reserved and has no answer as one that is under way."""
        with self._lock:
            self._under_way = self._under_way.minus(worst)

    def retried(self) -> None:
        """Count a request that is sent again."""
        with self._lock:
            self._spent = replace(self._spent, retries=self._spent.retries + 1)

    def reused(self) -> None:
        """Count a request that need not be sent."""
        with self._lock:
            self._spent = replace(self._spent, reused=self._spent.reused + 1)

    def _lacking(self, worst: Tokens) -> str | None:
        """The option that does not allow another request, if one does not."""
        if self._options.max_requests is not None and self._spent.requests >= self._options.max_requests:
            return "max_requests"
        if self._most is None or self._price is None:
            return None
        cost = self._price.cost(self._tokens.plus(self._under_way).plus(worst))
        return "max_cost" if cost > self._most else None


_COUNTS: Final = (
    ("usage", "prompt_tokens", "completion_tokens"),  # OpenAI's API
    ("meta_info", "prompt_tokens", "completion_tokens"),  # SGLang's own
    (None, "tokens_evaluated", "tokens_predicted"),  # llama.cpp's own
    (None, "prompt_eval_count", "eval_count"),  # Ollama's own
)
"""Where answers say how many tokens they took: the object inside the answer, its members for tokens in and out."""


def counted_tokens(answer: Mapping[str, JsonValue]) -> Tokens | None:
    """The tokens of an answer as the server counted them, or None if it does not say."""
    for inside, into, out in _COUNTS:
        counts = answer if inside is None else answer.get(inside)
        if isinstance(counts, Mapping) and _is_count(read := counts.get(into)):
            written = counts.get(out)
            return Tokens(read, written if _is_count(written) else 0)
    return None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _price_of(model: str, file: Path) -> Price:
    price = PriceTable.read(file).of(model)
    if price is None:
        raise UsageError(f'{file} has no price for {model}; add a table ["{model}"] with its input and output.')
    return price


def _price(name: str, table: Any, file: Path) -> Price:
    if not isinstance(table, dict) or table.keys() != {"input", "output"}:
        raise InputError(f'the prices {file} must have a table ["{name}"] with input and output, and nothing else.')
    numbers = [table["input"], table["output"]]
    if not all(_is_count(one) or (isinstance(one, Decimal) and one.is_finite() and one >= 0) for one in numbers):
        raise InputError(f'the prices of "{name}" in {file} must be numbers that are not negative.')
    return Price(Decimal(numbers[0]), Decimal(numbers[1]))
