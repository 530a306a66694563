"""What the program is asked with: prompts and queries, as arguments, on standard input, or in a file.

A file of text has one a line. A file of JSON lines (.jsonl) has a string a line, or an object that holds it, so that
it may have several lines itself.
"""

import json
import sys
from pathlib import Path

from ralm.corpus.text import BYTE_ORDER_MARK, decode, read_text
from ralm.errors import InputError, UsageError

_JSON_LINES = ".jsonl"


def read_prompts(prompt: str | None, file: Path | None) -> list[str]:
    """The prompt itself, or standard input where it is `-`; without one, those of a file."""
    if file is not None:
        return _of_file(file, "prompt")
    return [_standard_input().rstrip("\n")] if prompt == "-" else [_argument(prompt or "", "the prompt")]


def read_queries(query: str | None, file: Path | None) -> list[str]:
    """The query itself; without one, those of a file."""
    return [_argument(query or "", "the query")] if file is None else _of_file(file, "query")


def _argument(text: str, what: str) -> str:
    if not _is_text(text):
        raise UsageError(f"{what} is not UTF-8: {text}")
    return text


def _standard_input() -> str:
    if sys.stdin is None:
        raise UsageError("there is no standard input: give the prompt as an argument.")
    return decode(sys.stdin.buffer.read(), "standard input", InputError).removeprefix(BYTE_ORDER_MARK)


def _of_file(file: Path, what: str) -> list[str]:
    lines = read_text(file).removesuffix("\n").split("\n")
    if file.suffix != _JSON_LINES:
        return [line.removesuffix("\r") for line in lines]
    return [_of_json(line, f"{file}, line {place}", what) for place, line in enumerate(lines, 1) if line.strip()]


def _of_json(line: str, where: str, what: str) -> str:
    """The string of a line, or what an object has by the name of `what`."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where} is not JSON; a file {_JSON_LINES} has a JSON value a line.") from None
    if isinstance(found, dict):
        found = found.get(what)
    if not isinstance(found, str):
        raise InputError(f'{where} is neither a string nor an object with the string "{what}".')
    if not _is_text(found):
        raise InputError(f"{where} holds half a character (a lone surrogate): it is no text.")
    return found


def _is_text(text: str) -> bool:
    """Whether a string can be written as UTF-8; an argument that is not UTF-8 cannot, nor half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
