"""Options that several commands share, and input from arguments, standard input or files.

A text file of prompts, queries or questions has one per line. A JSON Lines file (.jsonl) has one string per line, or an
object that contains it, so that each may have several lines.
"""

import json
import sys
from collections.abc import Container, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

from ralm.cli.flags import Use
from ralm.corpus.files import BYTE_ORDER_MARK, decode, read_text, read_text_in_chunks
from ralm.errors import InputError, UsageError
from ralm.lm.api.endpoint import ApiOptions, is_api
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
    Option("Use only this many tokens from the beginning of the text.", minimum=2, default_text="the whole text"),
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


_JSON_LINES = ".jsonl"


def open_text(file: Path, limit_tokens: int | None) -> Iterable[str]:
    """The text of a file in chunks: all of it now, or with a limit of tokens, when they are asked for."""
    return [read_text(file)] if limit_tokens is None else read_text_in_chunks(file)


def read_asked(text: str | None, file: Path | None, what: str) -> list[str]:
    """The text, or standard input if it is `-`; if `file` is given, the texts of the file. `what` they are: a prompt, a
    query or a question."""
    if file is not None:
        return _from_file(file, what)
    return [_from_standard_input(what).rstrip("\r\n")] if text == "-" else [_from_argument(text or "", f"the {what}")]


def _from_argument(text: str, what: str) -> str:
    if not _is_text(text):
        raise UsageError(f"{what} is not UTF-8: {text}")
    return text


def _from_standard_input(what: str) -> str:
    if sys.stdin is None:
        raise UsageError(f"there is no standard input: give the {what} as an argument.")
    return decode(sys.stdin.buffer.read(), "standard input", InputError).removeprefix(BYTE_ORDER_MARK)


def _from_file(file: Path, what: str) -> list[str]:
    lines = read_text(file).removesuffix("\n").split("\n")
    if file.suffix != _JSON_LINES:
        return [line.removesuffix("\r") for line in lines]
    return [_from_json(line, f"{file}, line {place}", what) for place, line in enumerate(lines, 1) if line.strip()]


def _from_json(line: str, where: str, what: str) -> str:
    """The string of a line, or the value of the key `what` if the line is an object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where} is not JSON; a {_JSON_LINES} file has one JSON value per line.") from None
    if isinstance(found, dict):
        found = found.get(what)
    if not isinstance(found, str):
        raise InputError(f'{where} is neither a string nor an object with the string "{what}".')
    if not _is_text(found):
        raise InputError(f"{where} holds a lone surrogate (half of a character), which is not valid text.")
    return found


def _is_text(text: str) -> bool:
    """Whether a string can be encoded as UTF-8; arguments that are not UTF-8 and lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
