"""Counts requests and tokens, computes their cost from a table of prices, and enforces budgets."""

import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard

from pydantic import JsonValue

from ralm.errors import BudgetError, InputError, UsageError
from ralm.lm.api.endpoint import ApiOptions

_MILLION: Final = 1_000_000
_LARGEST_COUNT: Final = 1 << 53


class Tokens(NamedTuple):
    """Numbers of tokens in (of prompts) and out (generated)."""

    into: int
    out: int

    def plus(self, other: "Tokens") -> "Tokens":
        """The sum of both."""
        return Tokens(self.into + other.into, self.out + other.out)

    def minus(self, other: "Tokens") -> "Tokens":
        """The difference of both."""
        return Tokens(self.into - other.into, self.out - other.out)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiUsage:
    """The requests to a server so far, and their cost.

    `requests` were sent, with `retries` retries; `reused` requests were not sent, because their answer was stored or an
    equal one was sent. The tokens are those that the server counted; `estimated` answers came without a count and count
    at their maximum. `cost` is in the currency of the price table, None without one, and excludes charges for requests
    without an answer.
    """

    requests: int = 0
    retries: int = 0
    reused: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: int = 0
    cost: float | None = None

    def describe(self) -> str:
        """The usage in words, for a message."""
        cost = "" if self.cost is None else f", {self.cost:,.4g} spent"
        about = "about " if self.estimated else ""
        return (
            f"{self.requests:,} requests sent and {self.reused:,} reused, "
            f"{about}{self.tokens_in:,} tokens in and {self.tokens_out:,} out{cost}"
        )

    def describe_dry_run(self) -> str:
        """The usage of a dry run in words."""
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
        """The cost of these tokens."""
        return (self.into * tokens.into + self.out * tokens.out) / _MILLION


def read_prices(file: Path) -> dict[str, Price]:
    """The prices of models by their names, which may have wildcards.

    The TOML file has a table for each model:

        ["gpt-4o-mini*"]
        input = 0.15     # a million tokens in, in any currency
        output = 0.60

    Raises InputError if the file is missing, no TOML, or has anything else than prices.
    """
    if file.exists() and not file.is_file():
        raise InputError(f"the prices {file} cannot be read: that is no file.")
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise InputError(f"the prices {file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InputError(f"the prices {file} are not a TOML file: {error}.") from error
    return {name: _price(name, table, file) for name, table in tables.items()}


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """The price of a model: by its full name, or by the first pattern that fits; None if there is none."""
    fitting = (price for name, price in prices.items() if fnmatchcase(model, name))
    return prices.get(model) or next(fitting, None)


class Budget:
    """Counts requests and their cost, and rejects requests beyond the limits; several threads may use it.

    A request in flight counts at its maximum: all tokens of its prompt and all that it may generate. So `max_cost` is
    never exceeded, unless a server counts more tokens than that.

    Raises UsageError if `options` have prices, but none for this model; InputError if they cannot be read.
    """

    def __init__(self, model: str, options: ApiOptions) -> None:
        self._options = options
        self._price = None if options.prices is None else price_of(model, read_prices(options.prices))
        if options.prices is not None and self._price is None:
            raise UsageError(
                f'{options.prices} has no price for {model}; add a table ["{model}"] with its input and output.'
            )
        self._max_cost = None if options.max_cost is None else Decimal(str(options.max_cost))
        self._lock = threading.Lock()
        self._usage = ApiUsage(cost=None if self._price is None else 0.0)
        self._tokens = Tokens(0, 0)
        self._in_flight = Tokens(0, 0)

    @property
    def usage(self) -> ApiUsage:
        """The usage so far."""
        return self._usage

    def affords(self, worst: Tokens) -> bool:
        """Whether a request with at most these tokens may be sent now."""
        return self._lacking(worst) is None

    def reserve(self, worst: Tokens) -> None:
        """Count a request that is sent now. Raises BudgetError, without counting it, if it exceeds the budget."""
        with self._lock:
            if lacking := self._lacking(worst):
                raise BudgetError(
                    f"the budget is used up: {self._usage.describe()}. Answers so far are stored; raise `{lacking}` "
                    "and run this again to continue."
                )
            self._in_flight = self._in_flight.plus(worst)
            self._usage = replace(self._usage, requests=self._usage.requests + 1)

    def answered(self, worst: Tokens, answer: Mapping[str, JsonValue]) -> None:
        """Count the answer to a request that was reserved."""
        tokens = tokens_in_answer(answer)
        with self._lock:
            self._in_flight = self._in_flight.minus(worst)
            self._tokens = self._tokens.plus(tokens or worst)
            self._usage = replace(
                self._usage,
                tokens_in=self._tokens.into,
                tokens_out=self._tokens.out,
                estimated=self._usage.estimated + (tokens is None),
                cost=None if self._price is None else float(self._price.cost(self._tokens)),
            )

    def failed(self, worst: Tokens) -> None:
        """Stop counting a reserved request without an answer."""
        with self._lock:
            self._in_flight = self._in_flight.minus(worst)

    def retried(self) -> None:
        """Count a retry."""
        with self._lock:
            self._usage = replace(self._usage, retries=self._usage.retries + 1)

    def reused(self) -> None:
        """Count a request that is not sent."""
        with self._lock:
            self._usage = replace(self._usage, reused=self._usage.reused + 1)

    def _lacking(self, worst: Tokens) -> str | None:
        """The option that forbids another request, or None."""
        if self._options.max_requests is not None and self._usage.requests >= self._options.max_requests:
            return "max_requests"
        if self._max_cost is None or self._price is None:
            return None
        cost = self._price.cost(self._tokens.plus(self._in_flight).plus(worst))
        return "max_cost" if cost > self._max_cost else None


_COUNTS: Final = (
    ("usage", "prompt_tokens", "completion_tokens"),  # OpenAI's API
    ("meta_info", "prompt_tokens", "completion_tokens"),  # SGLang's own
    (None, "tokens_evaluated", "tokens_predicted"),  # llama.cpp's own
)
"""The object in an answer with its counts of tokens, and its fields for tokens in and out."""


def tokens_in_answer(answer: Mapping[str, JsonValue]) -> Tokens | None:
    """The tokens of an answer as the server counted them, or None."""
    for inside, into, out in _COUNTS:
        counts = answer if inside is None else answer.get(inside)
        if isinstance(counts, Mapping) and _is_count(read := counts.get(into)):
            written = counts.get(out)
            return Tokens(read, written if _is_count(written) else 0)
    return None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT


def _price(name: str, table: Any, file: Path) -> Price:
    if not isinstance(table, dict) or table.keys() != {"input", "output"}:
        raise InputError(f'the prices {file} must have a table ["{name}"] with input and output, and nothing else.')
    numbers = [table["input"], table["output"]]
    if not all(_is_count(one) or (isinstance(one, Decimal) and one.is_finite() and one >= 0) for one in numbers):
        raise InputError(f'the prices of "{name}" in {file} must be numbers that are not negative.')
    return Price(Decimal(numbers[0]), Decimal(numbers[1]))
