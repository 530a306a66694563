"""Opens a prompt by name, or from a TOML file that is checked for its texts and places."""

import json
import tomllib
from collections.abc import Container
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

from pydantic import TypeAdapter, ValidationError

from ralm.answering.options import CHAT_ANSWER, AnswerOptions
from ralm.answering.prompts import ASKING, CHOICES_PLACE, PLACE, QuestionPrompt
from ralm.corpus.files import read_utf8
from ralm.errors import InputError, UsageError
from ralm.grammar import parse_keys
from ralm.lm.tokenizer import has_chat_template
from ralm.options import Option
from ralm.protocols import Reader, Tokenizer
from ralm.reading.ensemble import Ensemble

PROMPTS: Final = ("in-context-ralm", "replug", "replug-choice", "replug-choice-code", "chat", "chat-choice", "numbered")
"""The prompts that have a name: those of the two papers, and those for models with a chat template."""
_SUFFIX: Final = ".toml"
_ASKS: Final = (("documents", "question"), ("choices",))
_PLACES: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "closed": (("question",), ("choices",)),
    "one": _ASKS,
    "several": _ASKS,
    "document": (("text",), ("title", "number")),
    "answer": (("answer",), ()),
    "choice": (("letter", "choice"), ()),
    **dict.fromkeys(("between", "after", "between_choices", "system"), ((), ())),
}
"""The places that each text of a prompt must have, and those that it may have."""
_KEYS: Final = [field.name for field in fields(QuestionPrompt) if field.name != "name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptKeys:
    """The keys of a prompt with `chat`."""

    system: Annotated[str | None, Option("System message of the chat.", default_text="that of the prompt, or none")] = (
        None
    )
    turns: Annotated[bool, Option("Show demonstrations as turns of the chat, not in the message that asks.")] = False


def open_prompt(text: Path | str) -> QuestionPrompt:
    """Open a prompt by its name, or from a TOML file; a chat may have keys, `chat:turns=true,system="Be brief."`.

    Raises:
        InputError: There is no such prompt, or the file is not a prompt; the message names the fault.
        UsageError: A key is wrong.
    """
    name, _, keys = str(text).partition(":")
    changed = parse_keys(PromptKeys, keys, f"`prompt` {name}")
    if name in PROMPTS:
        file = files("ralm.answering").joinpath("prompt_files", f"{name}{_SUFFIX}")
        prompt = replace(_parsed(file.read_text("utf-8"), name), name=name)
    elif Path(name).suffix == _SUFFIX:
        prompt = replace(_parsed(read_utf8(Path(name), InputError), name), name=Path(name).name)
    else:
        raise InputError(f"{name} is unknown: give one of {', '.join(PROMPTS)} or a {_SUFFIX} file.")
    system = prompt.system if changed.system is None else changed.system
    return replace(prompt, system=system, turns=prompt.turns or changed.turns)


def chosen_prompt(
    prompt: QuestionPrompt | None, tokenizer: Tokenizer, reader: Reader, options: AnswerOptions, named: Container[str]
) -> tuple[QuestionPrompt, AnswerOptions]:
    """Return the prompt, by default `chat` or the paper's with this reader, and the options, `as_chat` after a chat."""
    if prompt is None:
        paper = "replug" if isinstance(reader, Ensemble) else "in-context-ralm"
        prompt = open_prompt("chat" if has_chat_template(tokenizer) else paper)
    return prompt, as_chat(options, named) if prompt.chat else options


def as_chat(options: AnswerOptions, named: Container[str]) -> AnswerOptions:
    """Return the options as `CHAT_ANSWER`, but for those that are `named`."""
    usual = {name: getattr(CHAT_ANSWER, name) for name in ("new_tokens", "stop") if name not in named}
    return replace(options, **usual)


def _parsed(content: str, where: str) -> QuestionPrompt:
    try:
        table = tomllib.loads(content)
        if unknown := sorted(table.keys() - _KEYS):
            raise UsageError(f"it has {', '.join(unknown)}; a prompt has {', '.join(_KEYS)}.")
        prompt = TypeAdapter(QuestionPrompt).validate_json(json.dumps(table, default=str), strict=True)
        _check_places(prompt, table)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not TOML: {error}.") from None
    except UsageError as error:
        raise InputError(f"{where}: {error}") from None
    except ValidationError as error:
        faults = (f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors())
        raise InputError(f"{where} is no prompt: {'; '.join(faults)}.") from None
    return prompt


def _check_places(prompt: QuestionPrompt, keys: Container[str]) -> None:
    """Raise UsageError if places are missing, unknown or where a prompt is cut, or if a text never shows choices."""
    for name, (required, allowed) in _PLACES.items():
        places = PLACE.findall(getattr(prompt, name))
        if lacking := [place for place in required if place not in places]:
            raise UsageError(f"{name} lacks {{{lacking[0]}}}.")
        if unknown := [place for place in places if place not in (*required, *allowed)]:
            raise UsageError(f"{name} has {{{unknown[0]}}}, which is never filled there.")
        if places.count("documents") > 1:
            raise UsageError(f"{name} has {{documents}} twice.")
    for name, form in (("one", prompt.one), ("several", prompt.several)):
        before = form.partition("{documents}")[0]
        if early := [place for place in ("{question}", CHOICES_PLACE) if place in before]:
            raise UsageError(
                f"{name} has {early[0]} before {{documents}}, where a prompt that is too long is cut: put it after "
                "them."
            )
    without = [name for name in ASKING if CHOICES_PLACE not in getattr(prompt, name)]
    if 0 < len(without) < len(ASKING):
        raise UsageError(f"{without[0]} lacks {CHOICES_PLACE}, which the other texts have.")
    if without and (idle := [name for name in ("choice", "between_choices") if name in keys]):
        raise UsageError(f"{idle[0]} has no effect, since closed, one and several lack {CHOICES_PLACE}.")
