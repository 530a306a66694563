"""Options that several commands share and that no record has, and a default that depends on two records."""

from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

from ralm.cli.idle import Use
from ralm.errors import UsageError
from ralm.lm.api.endpoint import is_api
from ralm.lm.api.options import ApiOptions
from ralm.options import Option
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.reading.sampling import GenerationOptions
from ralm.retrieval.dense.options import QUERY_TOKENS
from ralm.retrieval.retriever import RetrieverOptions
from ralm.training.options import ExampleOptions

Index = Annotated[Path, Option("Folder that `ralm index` made.")]
Model = Annotated[
    str, Option("Causal language model: a hub name, a local folder, ralm-tiny, or URL#MODEL of a server's API.")
]
LimitTokens = Annotated[
    int | None,
    Option("Use only this many tokens from the beginning of the text.", least=2, default_said="the whole text"),
]
SkipBad = Annotated[bool, Option("Skip broken lines of files, and count them; in folders they always are.")]
Force = Annotated[bool, Option("Replace an existing output of ralm.")]
Ray = Annotated[
    str | None,
    Option("Work on the Ray cluster at this address, HOST:PORT; auto is the one that this machine belongs to."),
]
Json = Annotated[bool, Option("Print only one JSON object.")]

RERANKING: Final = ("reranking", "rerank_lm", "cut_together")
"""Options of reading that questions do not have."""
QUERY_TOKENS_SAID: Final = {"query_tokens": f"{PlanOptions().query_tokens}; dense: {QUERY_TOKENS}"}
_Asking = TypeVar("_Asking", PlanOptions, GenerationOptions, ExampleOptions)


def check_sources(index: Path | None, retrieved: Path | None, reading: ReadingOptions) -> None:
    """Raise UsageError if there are two sources of passages, or none for a reader that reads several."""
    if index and retrieved:
        raise UsageError("`index` and `retrieved` are two sources of passages: give one of them.")
    if reading.reader != "in-context" and not (index or retrieved):
        raise UsageError(f'`reader="{reading.reader}"` reads passages: give `index` or `retrieved` too.')


def model_uses(*models: str | None, runs: str = "dtype device compile ray") -> tuple[Use, ...]:
    """What options of models need: those in `runs` a model that runs here, those of servers one behind an API."""
    behind_api = [is_api(name) for name in models if name]
    return (
        Use(runs, not all(behind_api), "a model that runs here"),
        Use(ApiOptions, any(behind_api), "a model behind an API"),
    )


def paper_prompt(reading: ReadingOptions) -> str:
    """The prompt of the paper that has this reader."""
    return "replug" if reading.reader == "ensemble" else "in-context-ralm"


def with_query_tokens(options: _Asking, retrieval: RetrieverOptions, given: Container[str]) -> _Asking:
    """The options with the papers' query length for this retriever, if no length is given."""
    if retrieval.is_dense and "query_tokens" not in given:
        return replace(options, query_tokens=QUERY_TOKENS)
    return options
