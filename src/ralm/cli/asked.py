"""Reads texts to evaluate from files; prompts, queries and questions from arguments, standard input or a file.

A text file of prompts, queries or questions has one per line. A JSON Lines file (.jsonl) has one string per line, or an
object that contains it, so that each may have several lines.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from ralm.corpus.files import BYTE_ORDER_MARK, decode, read_text, read_text_in_chunks
from ralm.errors import InputError, UsageError

_JSON_LINES = ".jsonl"


def open_text(file: Path, limit_tokens: int | None) -> Iterable[str]:
    """The text of a file in chunks: all of it now, or with a limit of tokens, when they are asked for."""
    return [read_text(file)] if limit_tokens is None else read_text_in_chunks(file)


def read_asked(text: str | None, file: Path | None, what: str) -> list[str]:
    """The text, or standard input if it is `-`; if `file` is given, the texts of the file. `what` they are: a prompt, a
    query or a question."""
    if file is not None:
        return _of_file(file, what)
    return [_standard_input(what).rstrip("\r\n")] if text == "-" else [_argument(text or "", f"the {what}")]


def _argument(text: str, what: str) -> str:
    if not _is_text(text):
        raise UsageError(f"{what} is not UTF-8: {text}")
    return text


def _standard_input(what: str) -> str:
    if sys.stdin is None:
        raise UsageError(f"there is no standard input: give the {what} as an argument.")
    return decode(sys.stdin.buffer.read(), "standard input", InputError).removeprefix(BYTE_ORDER_MARK)


def _of_file(file: Path, what: str) -> list[str]:
    lines = read_text(file).removesuffix("\n").split("\n")
    if file.suffix != _JSON_LINES:
        return [line.removesuffix("\r") for line in lines]
    return [_of_json(line, f"{file}, line {place}", what) for place, line in enumerate(lines, 1) if line.strip()]


def _of_json(line: str, where: str, what: str) -> str:
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
