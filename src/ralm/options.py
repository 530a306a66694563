"""Declares an option once, in the record that owns it.

    stride: Annotated[int, Option("Number of tokens between retrievals.")] = 4

This puts the name, type, default, bounds, choices, help, and conditions of an option in one place. The flags of a
command, the values of a sweep, the JSON schema of a request, and the arguments of another program (`Arguments`) are
made from it.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import KW_ONLY, Field, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin

from ralm.errors import UsageError
from ralm.removed import removal_of
from ralm.validation import MAX_COUNT, MAX_SEED, check_count, check_number


@dataclass(frozen=True, slots=True)
class Needs:
    """The condition for an option to have an effect.

    `met` returns whether the condition holds for the record that has the option. `text` is the condition in words, with
    arguments in backticks as in messages: `windows="blocked"`.
    """

    text: str
    met: Callable[[Any], bool]

    @classmethod
    def value(cls, name: str, *values: str) -> "Needs":
        """The condition that the record's option `name` has one of these values."""
        *others, last = (f'`"{one}"`' for one in values)
        listed = f"{', '.join(others)} or {last}" if others else last
        return cls(f"`{name}={listed.removeprefix('`')}", lambda record: getattr(record, name) in values)


@dataclass(frozen=True, slots=True)
class Option:
    """What an option declares besides its name, type and default.

    `minimum` and `maximum` bound a number. `minimum` defaults to 1 for whole numbers and to 0 for others. With `above`,
    the number must be above `minimum`. `default_text` describes the default if the value does not explain itself
    (mostly None). `flag` is the name on the command line if it differs from the field's name; "" means no flag. `own`
    allows `module:Class`, a class of the user's own, beside the choices.
    """

    help: str
    _: KW_ONLY
    minimum: float | None = None
    maximum: float = MAX_COUNT
    above: bool = False
    default_text: str | None = None
    flag: str | None = None
    needs: Needs | None = None
    own: bool = False

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]) -> Any:
        """The schema of the type with help and bounds; pydantic calls this for a field of a request or a recipe."""
        schema = handler(core_schema) | {"description": self.help}
        for number in (schema, *schema.get("anyOf", ())):
            if number.get("type") in ("integer", "number"):
                minimum = self._minimum(whole=number["type"] == "integer")
                number |= {"exclusiveMinimum" if self.above else "minimum": minimum, "maximum": self.maximum}
        return schema

    def check(self, name: str, kind: Any, value: Any) -> None:
        """Raise UsageError if a value of this type is outside the bounds or not one of the choices."""
        kinds = without_none(kind)
        if value is None and kinds != kind:
            return
        if get_origin(kinds) is Literal and value not in get_args(kinds) and not (self.own and is_own(value)):
            if sentence := removal_of(f"{name}={value}"):
                raise UsageError(sentence)
            more = ", or a class of your own as module:Class" if self.own else ""
            raise UsageError(f"`{name}` must be one of {', '.join(get_args(kinds))}{more}, not {value!r}.")
        if kinds is int:
            check_count(name, value, minimum=int(self._minimum(whole=True)), maximum=int(self.maximum))
        elif kinds is float:
            check_number(name, value, minimum=self._minimum(whole=False), maximum=self.maximum, above=self.above)

    def _minimum(self, *, whole: bool) -> float:
        return self.minimum if self.minimum is not None else 1 if whole else 0


def is_own(value: object) -> bool:
    """Whether a value names a class of the user's own: `module:Class`."""
    return isinstance(value, str) and all(value.partition(":"))


def seed_option(needs: Needs) -> Option:
    """The declaration of a seed, which every record that draws at random has."""
    return Option("Seed of random draws.", minimum=0, maximum=MAX_SEED, needs=needs)


class Declared(NamedTuple):
    """A field of a record, its type, and its declaration as an option."""

    field: "Field[Any]"
    kind: Any
    option: Option

    @property
    def flag(self) -> str:
        """The flag as the user writes it."""
        return flag_of(self.field.name, self.option)


@cache
def declared(record: type) -> tuple[Declared, ...]:
    """The options of a record: its fields that are annotated with an `Option`."""
    return tuple(
        Declared(field, kind, mark)
        for field in fields(record)
        for kind, marks in [annotation(field.type)]
        for mark in marks
        if isinstance(mark, Option)
    )


def check_options(record: Any) -> None:
    """Raise UsageError if an option of a record is outside its bounds or not one of its choices.

    Records call this on creation, so that a command, a script, a sweep and a server report the same errors.
    """
    for field, kind, option in declared(type(record)):  # type: ignore[arg-type]
        option.check(field.name, kind, getattr(record, field.name))


def flag_of(name: str, option: Option | None) -> str:
    """The flag of a field or parameter, as the user writes it."""
    named = (option and option.flag) or name
    return named if named.startswith("-") else "--" + named.replace("_", "-")


def negative_flag(flag: str) -> str:
    """The flag that means no."""
    return "--no-" + flag.removeprefix("--")


def flags_of(record: Any, base: Any, always: Container[str] = ()) -> list[str]:
    """The flags that turn the record `base` into `record`, including records within them, and those of the options
    named in `always` even if they are equal."""
    flags: list[str] = []
    for declaration in declared(type(record)):  # type: ignore[arg-type]
        name, option = declaration.field.name, declaration.option
        value, before = getattr(record, name), getattr(base, name)
        if is_dataclass(value):
            flags += flags_of(value, before, always)
        elif option.flag != "" and (value != before or name in always):
            flags += _as_flags(declaration.flag, value)
    return flags


def _as_flags(flag: str, value: Any) -> list[str]:
    """A flag with its value; it is repeated for each value of a tuple."""
    assert value is not None, f"{flag} has no flag that means none"
    if isinstance(value, bool):
        return [flag if value else negative_flag(flag)]
    return [part for one in (value if isinstance(value, tuple) else (value,)) for part in (flag, str(one))]


def annotation(of: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without `Annotated`, and the metadata of `Annotated`."""
    return (get_args(of)[0], of.__metadata__) if get_origin(of) is Annotated else (of, ())


def without_none(kind: Any) -> Any:
    """The type without `None`."""
    if get_origin(kind) is UnionType or str(get_origin(kind)) == "typing.Union":
        return next(one for one in get_args(kind) if one is not NoneType)
    return kind


_Record = TypeVar("_Record")
_EXPECTED: Final = {bool: "True or False", int: "a whole number", float: "a number"}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments that records have; `skipped` names options that are no arguments, by record."""

    skipped: Mapping[type, tuple[str, ...]]

    def of(self, record: type) -> dict[str, Declared]:
        """The declarations of all arguments of a record, by name; the last duplicate wins."""
        return dict(self._all(record))

    def kinds(self, record: type) -> dict[str, Any]:
        """The types of the values of all arguments of a record, by name."""
        return {name: without_none(one.kind) for name, one in self._all(record)}

    def changed(self, base: _Record, values: Mapping[str, Any]) -> _Record:
        """The record with these values of its arguments; UsageError, with their names, if a value is invalid."""
        made = {}
        for one in self._parts(type(base)):
            if is_dataclass(one.kind):
                made[one.field.name] = self.changed(getattr(base, one.field.name), values)
            elif _name(one) in values:
                made[one.field.name] = values[_name(one)]
        try:
            changed: _Record = replace(base, **made)  # type: ignore[type-var]
        except UsageError as error:
            raise UsageError(self._as_arguments(str(error), type(base))) from None
        return changed

    def reject_unused(self, record: Any, given: Mapping[str, Any]) -> None:
        """Raise UsageError if an argument that is given has no effect in any of the records that have it."""
        unmet: dict[str, list[str]] = {}
        for name, need in self._unmet(record, ""):
            unmet.setdefault(name, []).append(need)
        for name in given:
            if name in unmet and all(unmet[name]):
                needed = " or ".join(dict.fromkeys(unmet[name]))
                raise UsageError(f"`{name}` has no effect without {needed}.")

    def _all(self, record: type) -> Iterator[tuple[str, Declared]]:
        for one in self._parts(record):
            if is_dataclass(one.kind):
                yield from self._all(one.kind)  # type: ignore[arg-type]
            else:
                yield _name(one), one

    def _parts(self, record: type) -> Iterator[Declared]:
        skipped = self.skipped.get(record, ())
        return (one for one in declared(record) if one.field.name not in skipped and one.option.flag != "")

    def _unmet(self, record: Any, need: str) -> Iterator[tuple[str, str]]:
        """Each argument of a record, and what it needs to have an effect; empty if it has one."""
        for one in self._parts(type(record)):
            own = need or self._unmet_need(one.option.needs, record)
            value = getattr(record, one.field.name)
            if is_dataclass(one.kind):
                yield from self._unmet(value, own)
            else:
                yield _name(one), own

    def _unmet_need(self, needs: Needs | None, record: Any) -> str:
        return "" if needs is None or needs.met(record) else self._as_arguments(needs.text, type(record))

    def _as_arguments(self, message: str, record: type) -> str:
        """A message of a record, with the flat names of its options."""
        for one in self._parts(record):
            named = _name(one)
            message = message.replace(f"`{one.field.name}`", f"`{named}`")
            message = message.replace(f"`{one.field.name}=", f"`{named}=")
        return message


def coerce(name: str, kind: Any, value: Any) -> Any:
    """A value that another program parsed, as the argument's type; UsageError if it is not of that type."""
    if kind in (str, Path):
        return kind(str(value))
    if get_origin(kind) is Literal:
        return str(value)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if (kind is bool and isinstance(value, bool)) or (kind is int and whole):
        return value
    if kind is float and (whole or isinstance(value, float)):
        return float(value)
    raise UsageError(f"`{name}` must be {_EXPECTED[kind]}, not {value!r}.")


def _name(one: Declared) -> str:
    return (one.option.flag or one.field.name).replace("-", "_")
