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

_KEYED: Final = {
    "lm-args": ModelOptions,
    "encoder-args": EncoderArguments,
    "fields": Fields,
    "question-fields": QuestionFields,
    "limits": Limits,
}
_KINDS: Final = (*CATALOGUES, *_KEYED)


def help_command(
    part: Annotated[str | None, options.argument(f"Kind of part: {', '.join(_KINDS)}.", "PART")] = None,
) -> None:
    """List the parts of a kind and their keys, each with its default and bounds.

    A part is written NAME:key=value,key=value: `--reader ensemble:documents=4`. A value that holds a comma stands in
    quotes. A class of your own is module:Class:key=value.

    Example: `ralm help mixer`
    """
    from ralm.cli.output import print_line

    if part not in (*_KINDS, None):
        raise UsageError(
            f"there is no kind of part {part!r}: give one of {', '.join(_KINDS)}; for a command, ralm NAME --help."
        )
    for kind in _KINDS if part is None else (part,):
        for name, record in {"": _KEYED[kind]}.items() if kind in _KEYED else CATALOGUES[kind].records.items():
            print_line("--fields of ralm qa" if kind == "question-fields" else f"--{kind} {name}".rstrip())
            for key, declaration in keys_of(record).items():
                print_line(
                    f"    {key + '=' + _default(declaration):<28} {declaration.option.help}{_bounds(declaration)}"
                )


def _default(declaration: Declared) -> str:
    value: Any = declaration.default
    if declaration.option.default_text is not None or not isinstance(value, bool | int | float | str):
        return "..."
    return as_text(value)


def _bounds(declaration: Declared) -> str:
    option, kind = declaration.option, without_none(annotation(declaration.kind)[0])
    bounds = ""
    if choices := get_args(kind) if get_origin(kind) is Literal else ():
        bounds = "one of " + ", ".join(choices)
    if kind in (int, float):
        minimum = option.lowest(whole=kind is int)
        bounds = f"{'above' if option.above else 'from'} {minimum:g}"
        bounds += "" if option.maximum >= MAX_COUNT else f" to {option.maximum:g}"
    said = [option.default_text and f"default: {option.default_text}", bounds]
    return f" [{'; '.join(filter(None, said))}]" if any(said) else ""
