"""`--over KEY=v1,v2,...`: the jobs of a command with several values of one option."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from ralm.cli.flags import Given
from ralm.errors import UsageError
from ralm.grammar import pieces, quoted
from ralm.options import Option, options_of, reject_unused, unused_options, without_none
from ralm.settings import CATALOGUES, part_texts

Over = Annotated[
    str | None,
    Option(
        "Compare values of an option, KEY=v1,v2,...: of any except those of the text, the questions or the models; a "
        "key of a part is OPTION.KEY, such as mixer.eta=0.5,1."
    ),
]
_FIXED: Final = (
    "lm",
    "lm_args",
    "judge",
    "limit",
    "limit_tokens",
    "fields",
    "stop",
)
"""Options that all jobs share: the same text or questions are read with one model, which is loaded once."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs by the value of the `option`; a single one without `over`. `given` has the option too."""

    option: str
    by_value: dict[str, Any]
    given: Given


class Shared:
    """Calls functions once with the same arguments, so that jobs that need the same part open it once."""

    def __init__(self) -> None:
        self._results: dict[Any, Any] = {}

    def __call__(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return what the function returned for these arguments, if it was called with them, else call it."""
        key = (function, arguments)
        if key not in self._results:
            self._results[key] = function(*arguments)
        result: _Result = self._results[key]
        return result


def swept_options(record: type) -> dict[str, Any]:
    """Return the types of the options of a job that can be swept, by parameter name."""
    options = (one for one in options_of(record) if not one.option.argument and one.key not in _FIXED)
    return {one.key: without_none(one.kind) for one in options}


def make_jobs(given: Given, make_job: Callable[..., Any], record: type, over: str | None) -> Jobs:
    """Return the jobs, which are of the type `record`.

    Raises UsageError if there is no such option or value, or if options that are given have no effect in any job.
    """
    if over is None:
        option, jobs = "", {"": make_job()}
    else:
        option, _, values = over.partition("=")
        whole, _, key = option.partition(".")
        name, kinds = whole.replace("-", "_"), swept_options(record)
        if name not in kinds:
            names = ", ".join(kind.replace("_", "-") for kind in kinds)
            raise UsageError(f"`over` must be KEY=v1,v2,... with a KEY of {names}, not {over!r}.")
        given = {**given, name: f"--{whole}"}
        parsed = _parsed(option, kinds[name], values)
        if key:
            parsed = {value: _with_key(make_job(), name, f"{key}={quoted(value)}") for value in parsed}
        jobs = {value: make_job(**{name: option_value}) for value, option_value in parsed.items()}
    unused = [unused_options(job, given) for job in jobs.values()]
    in_all = {name: needs for name, needs in unused[0].items() if all(name in one for one in unused)}
    if option and name in in_all:
        needs = in_all[name]
        raise UsageError(f"--{option} makes no difference: it has no effect without {needs}.")
    if "baseline" in given and not any(job.has_passages for job in jobs.values()):
        in_all["baseline"] = "--index or --retrieved"
    reject_unused(in_all, given)
    return Jobs(option, jobs, given)


def _with_key(job: Any, name: str, key: str) -> str:
    """The text of a part of a job with one key changed; UsageError if the option names no part."""
    if name not in CATALOGUES:
        raise UsageError(f"--{name.replace('_', '-')} has no keys: the options with keys are {', '.join(CATALOGUES)}.")
    catalogue, text = CATALOGUES[name], part_texts(job.pipeline.retrieval, job.pipeline.reading)[name]
    return catalogue.onto(f"{catalogue.name_of(text)}:{key}", text)


def _parsed(option: str, kind: Any, values: str) -> dict[str, Any]:
    """The values of an option of this type, by their text on the command line."""
    try:
        texts = [text.strip('"') for text in pieces(values)] + [""] * (not values or values.endswith(","))
        parsed = {value: kind(value) if kind in (int, float, Path) else value for value in texts}
        if kind is bool:
            parsed = {value: {"true": True, "false": False}[value] for value in parsed}
    except (ValueError, KeyError):
        kinds = {int: "whole numbers", float: "numbers", bool: "true and false"}[kind]
        raise UsageError(f"the values of --{option} must be {kinds} separated by commas, not {values!r}.") from None
    if len({*parsed.values()}) < len(texts):
        raise UsageError(f"--{option} has a value twice: {values}.")
    return parsed
