"""The `model_args` of the harness as options: flat names and values in, records out (`ralm.options.Arguments`)."""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final

from ralm.errors import UsageError
from ralm.harness.options import HarnessOptions
from ralm.options import Arguments, coerced
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.retrieval.dense.options import QUERY_TOKENS

_ARGUMENTS: Final = Arguments({PlanOptions: ("max_length",), ReadingOptions: ("reranking", "rerank_lm")})
"""Without the options that the harness does not have, or has elsewhere."""


def kinds_of_arguments() -> dict[str, Any]:
    """The types of the values of all arguments, by name."""
    return _ARGUMENTS.kinds(HarnessOptions)


def options_of(given: Mapping[str, Any]) -> HarnessOptions:
    """The options that the harness's arguments stand for; None stands for the default.

    Raises UsageError if an argument is unknown, has a value of another type, or has no effect, and what the records
    raise.
    """
    given = {name: value for name, value in given.items() if value is not None}
    known = kinds_of_arguments()
    for name in given:
        if name not in known:
            raise UsageError(f"ralm has no argument `{name}`: {_instead(name, [*known])}.")
    values = {name: coerced(name, known[name], value) for name, value in _with_batch_size(given).items()}
    if "lm" not in values:
        raise UsageError("ralm needs the argument `lm`: the language model to evaluate, a hub name or a folder.")
    options = _ARGUMENTS.changed(HarnessOptions(lm=values["lm"]), values)
    _ARGUMENTS.refuse_idle(options, values)
    if options.retrieval.is_dense and "query_tokens" not in values:
        return replace(options, plan=replace(options.plan, query_tokens=QUERY_TOKENS))
    return options


def _with_batch_size(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, where a batch size of `auto`, or of `auto:N` for several trials, is none."""
    automatic = str(given.get("batch_size")).partition(":")[0] == "auto"
    return {name: value for name, value in given.items() if not (automatic and name == "batch_size")}


def _instead(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"the nearest is `{close[0]}`" if close else f"its arguments are {', '.join(known)}"
