"""The `model_args` of the harness as options: flat names and values in, records out.

Names, types, bounds and needs come from the declarations in the records (`ralm.options`), so that an argument exists as
soon as a record declares it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, get_origin

from ralm.errors import UsageError
from ralm.harness.options import HarnessOptions
from ralm.options import Declared, Needs, declared, without_none
from ralm.pipeline.options import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.retrieval.dense.options import QUERY_TOKENS

_LEFT_OUT: Final[Mapping[type, tuple[str, ...]]] = {
    PlanOptions: ("max_length",),
    ReadingOptions: ("reranking", "rerank_lm"),
}
"""Options of records that the harness does not have, or has elsewhere."""
_SAID: Final = {bool: "True or False", int: "a whole number", float: "a number"}


def kinds_of_arguments() -> dict[str, Any]:
    """The types of the values of all arguments, by name."""
    return dict(_kinds(HarnessOptions))


def options_of(given: Mapping[str, Any]) -> HarnessOptions:
    """The options that the harness's arguments stand for; None stands for the default.

    Raises UsageError if an argument is unknown, has a value of another type, or has no effect, and what the records
    raise.
    """
    given = {name: value for name, value in given.items() if value is not None}
    known = kinds_of_arguments()
    for name in given:
        if name not in known:
            raise UsageError(f"ralm has no argument `{name}`: {_instead(name, [*known])}.")
    values = {name: _typed(name, known[name], value) for name, value in _with_batch_size(given).items()}
    if "lm" not in values:
        raise UsageError("ralm needs the argument `lm`: the language model to evaluate, a hub name or a folder.")
    options = _made(HarnessOptions(lm=values["lm"]), values)
    _refuse_idle(options, values)
    if options.retrieval.is_dense and "query_tokens" not in values:
        return replace(options, plan=replace(options.plan, query_tokens=QUERY_TOKENS))
    return options


def _with_batch_size(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, where a batch size of `auto`, or of `auto:N` for several trials, is none."""
    automatic = str(given.get("batch_size")).partition(":")[0] == "auto"
    return {name: value for name, value in given.items() if not (automatic and name == "batch_size")}


def _kinds(record: type) -> Iterator[tuple[str, Any]]:
    for one in _parts(record):
        if is_dataclass(one.kind):
            yield from _kinds(one.kind)  # type: ignore[arg-type]
        else:
            yield _name(one), without_none(one.kind)


def _parts(record: type) -> Iterator[Declared]:
    return (
        one for one in declared(record) if one.field.name not in _LEFT_OUT.get(record, ()) and one.option.flag != ""
    )


def _name(one: Declared) -> str:
    return (one.option.flag or one.field.name).replace("-", "_")


def _made(base: Any, values: Mapping[str, Any]) -> Any:
    """The record, with these values of its arguments."""
    made = {}
    for one in _parts(type(base)):
        if is_dataclass(one.kind):
            made[one.field.name] = _made(getattr(base, one.field.name), values)
        elif _name(one) in values:
            made[one.field.name] = values[_name(one)]
    try:
        return replace(base, **made)
    except UsageError as error:
        raise UsageError(_as_arguments(str(error), type(base))) from None


def _typed(name: str, kind: Any, value: Any) -> Any:
    """The value of an argument as the harness parsed it, of the argument's type."""
    if kind in (str, Path):
        return kind(str(value))
    if get_origin(kind) is Literal:
        return str(value)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if (kind is bool and isinstance(value, bool)) or (kind is int and whole):
        return value
    if kind is float and (whole or isinstance(value, float)):
        return float(value)
    raise UsageError(f"`{name}` must be {_SAID[kind]}, not {value!r}.")


def _refuse_idle(options: HarnessOptions, values: Mapping[str, Any]) -> None:
    """Raise UsageError if an argument has no effect in any of the records that have it."""
    lacking: dict[str, list[str]] = {}
    for name, lacks in _lacking(options, ""):
        lacking.setdefault(name, []).append(lacks)
    for name in values:
        if all(lacking[name]):
            raise UsageError(f"`{name}` does nothing here: it goes with {' or '.join(dict.fromkeys(lacking[name]))}.")


def _lacking(record: Any, lacks: str) -> Iterator[tuple[str, str]]:
    """Each argument of a record, and what it lacks to have an effect; nothing if it has one."""
    for one in _parts(type(record)):
        own = lacks or _lacks(one.option.needs, record)
        value = getattr(record, one.field.name)
        if is_dataclass(one.kind):
            yield from _lacking(value, own)
        else:
            yield _name(one), own


def _lacks(needs: Needs | None, record: Any) -> str:
    return "" if needs is None or needs.met(record) else _as_arguments(needs.said, type(record))


def _as_arguments(message: str, record: type) -> str:
    """A message of a record, with the flat names of its options."""
    for one in _parts(record):
        message = message.replace(f"`{one.field.name}`", f"`{_name(one)}`")
    return message


def _instead(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"the nearest is `{close[0]}`" if close else f"its arguments are {', '.join(known)}"
