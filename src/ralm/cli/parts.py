"""`ralm help`: the parts of a kind, with their keys."""

from typing import Annotated, Any, Final, Literal, get_args, get_origin

from ralm.answering.options import QuestionFields
from ralm.cli import options
from ralm.corpus.documents import Fields
from ralm.errors import UsageError
from ralm.grammar import as_text, keys_of
from ralm.lm.registry import ModelOptions
from ralm.options import Declared, annotation, without_none
from ralm.retrieval.dense.options import EncoderArguments
from ralm.serving.options import Limits
from ralm.settings import CATALOGUES
from ralm.validation import MAX_COUNT

RECORDS: Final[dict[str, dict[str, type]]] = {
    **{kind: dict(catalogue.records) for kind, catalogue in CATALOGUES.items()},
    "lm-args": {"": ModelOptions},
    "encoder-args": {"": EncoderArguments},
    "fields": {"": Fields},
    "question-fields": {"": QuestionFields},
    "limits": {"": Limits},
}
"""The record of each part, by its kind and name; options that name no part, such as `--limits`, have it under ""."""


def help_command(
    part: Annotated[str | None, options.argument(f"Kind of part: {', '.join(RECORDS)}.", "PART")] = None,
) -> None:
    """List the parts of a kind and their keys, each with its default and bounds.

    A part is written NAME:key=value,key=value: `--reader ensemble:documents=4`. A value that holds a comma stands in
    quotes. A class of your own is module:Class:key=value.

    Example: `ralm help mixer`
    """
    from ralm.cli.output import print_line

    if part not in (*RECORDS, None):
        raise UsageError(
            f"there is no kind of part {part!r}: give one of {', '.join(RECORDS)}; for a command, ralm NAME --help."
        )
    for kind in RECORDS if part is None else (part,):
        for name, record in RECORDS[kind].items():
            print_line("--fields of ralm qa" if kind == "question-fields" else f"--{kind} {name}".rstrip())
            for key, declaration in keys_of(record).items():
                print_line(f"    {key + '=' + default_of(declaration):<28} {meaning_of(declaration)}")


def default_of(declaration: Declared) -> str:
    """Return the default of a key as it is written, or "..." if it is no fixed value."""
    value: Any = declaration.default
    if declaration.option.default_text is not None or not isinstance(value, bool | int | float | str):
        return "..."
    return as_text(value)


def meaning_of(declaration: Declared) -> str:
    """Return the help of a key with its default in words, its choices and its bounds."""
    option, kind = declaration.option, without_none(annotation(declaration.kind)[0])
    notes = [f"default: {option.default_text}"] if option.default_text else []
    if get_origin(kind) is Literal:
        notes.append("one of " + ", ".join(get_args(kind)))
    elif kind in (int, float):
        highest = "" if option.maximum >= MAX_COUNT else f" to {option.maximum:g}"
        notes.append(f"{'above' if option.above else 'from'} {option.lowest(whole=kind is int):g}{highest}")
    return option.help + (f" [{'; '.join(notes)}]" if notes else "")
