"""`--over KEY=v1,v2,...`: the jobs of a command with several values of one option."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, TypeAlias

from ralm.cli.flags import UserFlags
from ralm.errors import UsageError
from ralm.grammar import pieces, quoted, read_value
from ralm.options import Declared, Option, options_of, reject_unused, unused_options
from ralm.settings import CATALOGUES, part_texts

Over = Annotated[
    str | None,
    Option(
        "Compare values of an option, KEY=v1,v2,...: of any except those of the text, the questions or the models; a "
        "key of a part is OPTION.KEY, such as mixer.eta=0.5,1."
    ),
]
_FIXED: Final = ("lm", "lm_args", "limit", "limit_tokens", "fields", "stop")
"""Options that all jobs share: the same text or questions are read with one model, which is loaded once."""
Shared: TypeAlias = Callable[..., Any]
"""What opens a part for several jobs once: it calls a function with arguments."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs by the value of the `option`; a single one without `over`. `user_flags` has the option too."""

    option: str
    by_value: dict[str, Any]
    user_flags: UserFlags


def sharing() -> Shared:
    """Return a function that calls another with arguments, once with the same ones."""
    return cache(lambda function, *arguments: function(*arguments))


def swept_options(record: type) -> dict[str, Declared]:
    """Return the options of a job that can be swept, by parameter name."""
    return {flag.key: flag for flag in options_of(record) if not flag.option.argument and flag.key not in _FIXED}


def make_jobs(user_flags: UserFlags, make_job: Callable[..., Any], record: type, over: str | None) -> Jobs:
    """Return jobs of type `record`; UsageError if there is no such option or value, or one has no effect in any job."""
    if over is None:
        option, jobs = "", {"": make_job()}
    else:
        option, _, values = over.partition("=")
        whole, _, key = option.partition(".")
        name, swept = whole.replace("-", "_"), swept_options(record)
        if name not in swept:
            names = ", ".join(key.replace("_", "-") for key in swept)
            raise UsageError(f"`over` must be KEY=v1,v2,... with a KEY of {names}, not {over!r}.")
        user_flags = {**user_flags, name: f"--{whole}"}
        parsed = _parsed(option, swept[name], values)
        if key:
            parsed = {value: _with_key(make_job(), name, f"{key}={quoted(value)}") for value in parsed}
        jobs = {value: make_job(**{name: option_value}) for value, option_value in parsed.items()}
    unused = [unused_options(job, user_flags) for job in jobs.values()]
    in_all = {name: needs for name, needs in unused[0].items() if all(name in of_job for of_job in unused)}
    if option and name in in_all:
        needs = in_all[name]
        raise UsageError(f"--{option} makes no difference: it has no effect without {needs}.")
    if "baseline" in user_flags and not any(job.has_passages for job in jobs.values()):
        in_all["baseline"] = "--index or --retrieved"
    reject_unused(in_all, user_flags)
    return Jobs(option, jobs, user_flags)


def _with_key(job: Any, name: str, key: str) -> str:
    """Return the text of a part of a job with one key changed; UsageError if the option names no part."""
    if name not in CATALOGUES:
        raise UsageError(f"--{name.replace('_', '-')} has no keys: the options with keys are {', '.join(CATALOGUES)}.")
    catalogue, text = CATALOGUES[name], part_texts(job.pipeline.retrieval, job.pipeline.reading)[name]
    return catalogue.onto(f"{catalogue.name_of(text)}:{key}", text)


def _parsed(option: str, declaration: Declared, values: str) -> dict[str, Any]:
    """Return the values of an option, by their text on the command line."""
    texts = [text.strip('"') for text in pieces(values)] + [""] * (not values or values.endswith(","))
    parsed = {text: read_value(declaration, text) for text in texts}
    if len({*parsed.values()}) < len(texts):
        raise UsageError(f"--{option} has a value twice: {values}.")
    return parsed
