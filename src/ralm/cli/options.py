"""Options that several commands share, and input from arguments, standard input or files.

A text file of prompts, queries or questions has one per line. A JSON Lines file (.jsonl) has one string per line, or an
object that contains it, so that each may have several lines.
"""

import json
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

from ralm.cli.flags import UserFlags
from ralm.cli.process import print_note
from ralm.corpus.documents import Skipped
from ralm.corpus.files import decode, line_feeds, read_text
from ralm.errors import InputError, UsageError
from ralm.lm.registry import ModelOptions
from ralm.options import Needs, Option
from ralm.reading import ReadingOptions, plan, sampling
from ralm.retrieval.retriever import RetrieverOptions
from ralm.settings import LM, LM_ARGS
from ralm.training.options import ExampleOptions
from ralm.validation import is_utf8


def argument(text: str, metavar: str | None = None) -> Option:
    """Return the declaration of an argument with this help."""
    return Option(text, argument=True, metavar=metavar)


def force_option(output: str | None) -> Option:
    """Return the declaration of `force` for the output that a parameter names, None if the command always has one."""
    needs = None if output is None else Needs(f"`{output}`", lambda command: getattr(command, output) is not None)
    return Option("Replace an existing output of ralm.", needs=needs)


PROMPT_TEXT: Final = "model with a chat template: chat; else ensemble: replug; else in-context-ralm"
NEEDS_INDEX: Final = Needs("`index`", lambda command: command.pipeline.retrieves)
SKIP_BAD: Final = Option("Skip broken lines of files, and count them; in folders they always are.")
FIELDS: Final = Option(
    "Which fields make a document, such as text=body,title=name; `ralm help fields` lists the keys.", part="keys"
)

Force = Annotated[bool, force_option("out")]
IndexArgument = Annotated[Path, argument("Folder that `ralm index` made.", "DIR")]
IndexFolder = Annotated[Path, Option("Folder that `ralm index` made.")]
LimitTokens = Annotated[
    int | None,
    Option("Use only this many tokens from the beginning of the text.", minimum=2, default_text="the whole text"),
]
Model = Annotated[ModelOptions, LM_ARGS]
ModelName = Annotated[str, Option(LM)]
SkipBad = Annotated[bool, SKIP_BAD]
SkippedFile = Annotated[Path | None, Option("File to write with all that is skipped, and why, as JSON Lines.")]
KINDS: Final = "text, Markdown, YAML, JSON Lines, JSON, CSV, DPR's TSV, Parquet, HTML, PDF, DOCX, XLSX, PPTX, notebooks"
"""The kinds of files that are documents."""
_JSON_LINES: Final = ".jsonl"
_HasQueryTokens = TypeVar("_HasQueryTokens", plan.PlanOptions, sampling.GenerationOptions, ExampleOptions)


def check_reranked_questions(reading: ReadingOptions) -> None:
    """Raise UsageError if passages of questions cannot be chosen so; print that lexical reranking is for text."""
    if reading.reranker_name == "oracle":
        raise UsageError('`rerank="oracle"` reads the answer: choose another reranker for questions.')
    if reading.reranker_name == "lexical":
        print_note(
            "--rerank lexical is for text; on questions it chose worse passages than BM25's first: read an ensemble"
        )


def with_query_tokens(options: _HasQueryTokens, retrieval: RetrieverOptions, user_flags: UserFlags) -> _HasQueryTokens:
    """Return the options with the papers' query length for this retriever, unless the user set one."""
    if retrieval.is_dense and "query_tokens" not in user_flags:
        return replace(options, query_tokens=plan.DENSE_QUERY_TOKENS)
    return options


def counting_skipped(listing: Path | None) -> Skipped:
    """Return a count of what is skipped, which lists it in a new file if one is named."""
    if listing is None:
        return Skipped()
    stream = listing.open("w", encoding="utf-8", errors="surrogateescape")
    skipped = Skipped(listing=stream)
    weakref.finalize(skipped, stream.close)
    return skipped


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
