"""Options that several commands share, `--over` among them, and input from arguments, standard input or files.

A text file of prompts, queries or questions has one per line. A JSON Lines file (.jsonl) has one string per line, or an
object that contains it, so that each may have several lines.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from ralm.cli.flags import UserFlags
from ralm.corpus.files import decode, line_feeds, read_text
from ralm.errors import InputError, UsageError
from ralm.grammar import pieces, quoted, read_value
from ralm.lm.registry import ModelOptions
from ralm.options import Declared, Option, options_of
from ralm.reading import ReadingOptions, plan, sampling
from ralm.retrieval.retriever import RetrieverOptions
from ralm.settings import CATALOGUES, LM, LM_ARGS, part_texts
from ralm.training.options import ExampleOptions
from ralm.validation import is_utf8


def argument(text: str, metavar: str | None = None) -> Option:
    """Return the declaration of an argument with this help."""
    return Option(text, argument=True, metavar=metavar)


PROMPT_TEXT: Final = "model with a chat template: chat; else ensemble: replug; else in-context-ralm"
SKIP_BAD: Final = Option("Skip broken lines of files, and count them; in folders they always are.")
FIELDS: Final = Option(
    "Which fields make a document, such as text=body,title=name; `ralm help fields` lists the keys.", part="keys"
)

Force = Annotated[bool, Option("Replace an existing output of ralm.")]
IndexArgument = Annotated[Path, argument("Folder that `ralm index` made.", "DIR")]
IndexFolder = Annotated[Path, Option("Folder that `ralm index` made.")]
LimitTokens = Annotated[
    int | None,
    Option("Use only this many tokens from the beginning of the text.", minimum=2, default_text="the whole text"),
]
Model = Annotated[ModelOptions, LM_ARGS]
ModelName = Annotated[str, Option(LM)]
SkipBad = Annotated[bool, SKIP_BAD]
KINDS: Final = "text, Markdown, YAML, JSON Lines, JSON, CSV, DPR's TSV, Parquet, HTML, PDF, DOCX, XLSX, PPTX, notebooks"
"""The kinds of files that are documents."""
_JSON_LINES: Final = ".jsonl"
_HasQueryTokens = TypeVar("_HasQueryTokens", plan.PlanOptions, sampling.GenerationOptions, ExampleOptions)


def check_reranked_questions(reading: ReadingOptions) -> None:
    """Raise UsageError if passages of questions cannot be chosen so."""
    if reading.reranker_name == "oracle":
        raise UsageError('`rerank="oracle"` reads the answer: choose another reranker for questions.')


def with_query_tokens(options: _HasQueryTokens, retrieval: RetrieverOptions, user_flags: UserFlags) -> _HasQueryTokens:
    """Return the options with the papers' query length for this retriever, unless the user set one."""
    if retrieval.is_dense and "query_tokens" not in user_flags:
        return replace(options, query_tokens=plan.DENSE_QUERY_TOKENS)
    return options


def read_input(text: str | None, file: Path | None, what: str) -> list[str]:
    """Return the text, or standard input for `-`, or the texts of a file; `what` names them in messages."""
    if (text is None) == (file is None):
        plural = "queries" if what == "query" else f"{what}s"
        raise UsageError(f"give either a `{what}` or `{plural}` FILE.")
    if file is not None:
        lines = read_text(file).removesuffix("\n").split("\n")
        if file.suffix != _JSON_LINES:
            return lines
        return [_from_json(line, f"{file}, line {place}", what) for place, line in enumerate(lines, 1) if line.strip()]
    assert text is not None
    if text != "-":
        if not is_utf8(text):
            raise UsageError(f"the {what} is not UTF-8: {text}")
        return [line_feeds(text)]
    if sys.stdin is None:
        raise UsageError(f"there is no standard input: give the {what} as an argument.")
    content = decode(sys.stdin.buffer.read(), "standard input", InputError)
    return [line_feeds(content).rstrip("\n")]


def _from_json(line: str, where: str, what: str) -> str:
    """Return the string of a line, or the value of the key `what` if the line is an object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where} is not JSON; a {_JSON_LINES} file has one JSON value per line.") from None
    if isinstance(value, dict):
        value = value.get(what)
    if not isinstance(value, str):
        raise InputError(f'{where} is neither a string nor an object with the string "{what}".')
    if not is_utf8(value):
        raise InputError(f"{where} holds a lone surrogate (half of a character), which is not valid text.")
    return line_feeds(value)


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
    """Return jobs of type `record`; UsageError if there is no such option or value, or no passages for a baseline."""
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
    if "baseline" in user_flags and not any(job.has_passages for job in jobs.values()):
        raise UsageError("`baseline` has no effect without `index` or `retrieved`.")
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
