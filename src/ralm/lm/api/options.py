"""Options for asking a server; does not import openai, so that the command line starts fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """How a server is asked, how much may be spent, and where its answers are kept.

    `context_length` is for servers that do not say how much their model reads, some of which read too much of it
    without a word; it can only lower what a server says.
    `max_requests` counts requests without their retries. `max_cost` is in the currency of `prices`, a TOML file with
    the price of a million tokens in and out for each model (see `PriceTable`). A `dry_run` sends nothing but what the
    first contact with a server needs.

    Raises UsageError if an option is out of bounds, or `max_cost` is given without `prices`.
    """

    tokenizer: Annotated[
        str | None,
        Option("API: tokenizer of the model: hub name, folder, or tiktoken:NAME.", default_text="the server's own"),
    ] = None
    likeliest: Annotated[
        int | None,
        Option(
            "API: ask for this many of the likeliest next tokens.",
            maximum=1_000_000,
            default_text="as many as it lists",
        ),
    ] = None
    context_length: Annotated[
        int | None,
        Option("API: most tokens of the model, new ones included.", minimum=3, default_text="what the server says"),
    ] = None
    requests_at_once: Annotated[int, Option("API: most requests that are under way at once.", maximum=1000)] = 16
    timeout: Annotated[
        float,
        Option("API: seconds that a server may be silent before a request is sent again.", above=True, maximum=86_400),
    ] = 120.0
    retries: Annotated[int, Option("API: most times that a request is sent again.", minimum=0, maximum=100)] = 5
    max_requests: Annotated[
        int | None, Option("API: stop before more requests than this are sent.", default_text="no limit")
    ] = None
    max_cost: Annotated[
        float | None,
        Option(
            "API: stop before more than this is spent, in the currency of `prices`.",
            default_text="no limit",
            needs=Needs("`prices`", lambda options: options.prices is not None),
        ),
    ] = None
    prices: Annotated[
        Path | None, Option("API: TOML file with the price of a million tokens for each model.", default_text="none")
    ] = None
    dry_run: Annotated[
        bool, Option("API: say how many requests and tokens the job would take at most, and send none of them.")
    ] = False
    answers: Annotated[
        Path | None,
        Option("API: file that keeps the answers, so that none is paid for twice.", default_text="in the cache"),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_cost is not None and self.prices is None:
            raise UsageError("`max_cost` needs `prices`, which say what a token costs.")
