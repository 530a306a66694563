"""Counts requests and tokens, and enforces the limit of requests."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeGuard

from pydantic import JsonValue

from ralm.errors import BudgetError
from ralm.lm.api.transport import ApiRequest

_LARGEST_COUNT: Final = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiUsage:
    """The requests to a server so far, and their tokens.

    `requests` were sent, with `retries` retries; `reused` requests were not sent, because their answer was stored or an
    equal one was sent. The tokens are those that the server counted; `estimated` answers came without a count and count
    at their maximum.
    """

    requests: int = 0
    retries: int = 0
    reused: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: int = 0

    def describe(self) -> str:
        """The usage in words, for a message."""
        about = "about " if self.estimated else ""
        return (
            f"{self.requests:,} requests sent and {self.reused:,} reused, "
            f"{about}{self.tokens_in:,} tokens in and {self.tokens_out:,} out"
        )

    def describe_dry_run(self) -> str:
        """The usage of a dry run in words."""
        return (
            f"{self.requests:,} requests would be sent and {self.reused:,} reused, with {self.tokens_in:,} tokens in "
            f"and {self.tokens_out:,} out at most"
        )


class Budget:
    """Counts requests and their tokens, and rejects requests beyond `max_requests`; several threads may use it."""

    def __init__(self, max_requests: int | None) -> None:
        self._max_requests = max_requests
        self._lock = threading.Lock()
        self.usage = ApiUsage()

    @property
    def is_used_up(self) -> bool:
        """Whether no more requests may be sent."""
        return self._max_requests is not None and self.usage.requests >= self._max_requests

    def sent(self) -> None:
        """Count a request that is sent now. Raises BudgetError, without counting it, if the budget is used up."""
        with self._lock:
            if self.is_used_up:
                raise BudgetError(
                    f"the budget is used up: {self.usage.describe()}. Answers so far are stored; raise `max_requests` "
                    "and run this again to continue."
                )
            self._add(requests=1)

    def answered(self, request: ApiRequest, answer: Mapping[str, JsonValue]) -> None:
        """Count the tokens of an answer, the maximum if the server did not."""
        counted = tokens_in_answer(answer)
        tokens_in, tokens_out = counted or (request.tokens, request.max_new_tokens)
        with self._lock:
            self._add(tokens_in=tokens_in, tokens_out=tokens_out, estimated=counted is None)

    def retried(self) -> None:
        """Count a retry."""
        with self._lock:
            self._add(retries=1)

    def reused(self) -> None:
        """Count a request that is not sent."""
        with self._lock:
            self._add(reused=1)

    def _add(self, **counts: int) -> None:
        self.usage = replace(self.usage, **{name: getattr(self.usage, name) + count for name, count in counts.items()})


_COUNTS: Final = (
    ("usage", "prompt_tokens", "completion_tokens"),  # OpenAI's API
    ("meta_info", "prompt_tokens", "completion_tokens"),  # SGLang's own
    (None, "tokens_evaluated", "tokens_predicted"),  # llama.cpp's own
)
"""The object in an answer with its counts of tokens, and its fields for tokens in and out."""


def tokens_in_answer(answer: Mapping[str, JsonValue]) -> tuple[int, int] | None:
    """The tokens in (of the prompt) and out (generated) as the server counted them, or None."""
    for inside, into, out in _COUNTS:
        counts = answer if inside is None else answer.get(inside)
        if isinstance(counts, Mapping) and _is_count(read := counts.get(into)):
            written = counts.get(out)
            return read, written if _is_count(written) else 0
    return None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT
