"""Options for asking a server; does not import openai, so that the command line starts fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """How a server is asked, how much may be spent, and where its answers are stored.

    `context_length` is for servers that do not report it, some of which truncate a longer text silently; it can only
    lower a reported length. `max_requests` does not count retries. `max_cost` is in the currency of `prices`, a TOML
    file with the price of a million tokens in and out for each model (see `PriceTable`). A `dry_run` sends only the
    requests of the first contact with a server.

    Raises UsageError if an option is out of bounds, or `max_cost` is given without `prices`.
    """

    tokenizer: Annotated[
        str | None,
        Option("API: tokenizer of the model: hub name, folder, or tiktoken:NAME.", default_text="the server's own"),
    ] = None
    top_logprobs: Annotated[
        int | None,
        Option(
            "API: number of most likely next tokens to request.",
            maximum=1_000_000,
            default_text="as many as it lists",
        ),
    ] = None
    context_length: Annotated[
        int | None,
        Option("API: context length of the model, new tokens included.", minimum=3, default_text="the server's value"),
    ] = None
    requests_at_once: Annotated[int, Option("API: maximum number of concurrent requests.", maximum=1000)] = 16
    timeout: Annotated[
        float,
        Option("API: seconds without an answer before a request is retried.", above=True, maximum=86_400),
    ] = 120.0
    retries: Annotated[int, Option("API: maximum number of retries of a request.", minimum=0, maximum=100)] = 5
    max_requests: Annotated[
        int | None, Option("API: stop before sending more requests than this.", default_text="no limit")
    ] = None
    max_cost: Annotated[
        float | None,
        Option(
            "API: stop before spending more than this, in the currency of `prices`.",
            default_text="no limit",
            needs=Needs("`prices`", lambda options: options.prices is not None),
        ),
    ] = None
    prices: Annotated[
        Path | None, Option("API: TOML file with the price of a million tokens for each model.", default_text="none")
    ] = None
    dry_run: Annotated[
        bool, Option("API: report the maximum number of requests and tokens of the job, and send none.")
    ] = False
    answers: Annotated[
        Path | None,
        Option("API: file that stores the answers, so that none is paid for twice.", default_text="in the cache"),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_cost is not None and self.prices is None:
            raise UsageError("`max_cost` needs `prices`, the prices of tokens.")
