"""How much a model reads at a time; importing this loads nothing heavy."""

from dataclasses import dataclass
from typing import Annotated

from ralm.options import Option, check_options


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How much a local model reads at a time for all requests together.

    `chunk_tokens` of new prompts are read between two tokens of the others: with few, the others wait less; with many,
    all are read faster. `cached_tokens` are held in memory, padding included; what does not fit waits.
    """

    chunk_tokens: Annotated[
        int, Option("Most tokens of new prompts that are read between two tokens of other requests.")
    ] = 512
    cached_tokens: Annotated[
        int, Option("Most tokens whose keys and values are held in memory; requests that do not fit wait.")
    ] = 65_536

    def __post_init__(self) -> None:
        check_options(self)
