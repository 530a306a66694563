"""How an option is declared: once, in the record that owns it.

    stride: Annotated[int, Option("Number of tokens between retrievals.")] = 4

This puts the name, type, default, bounds, choices, help, and conditions of an option in one place. The flags of a
command, the values of a sweep and the JSON schema of a request are made from it. Knows nothing of any of these.
"""

from collections.abc import Callable, Container
from dataclasses import KW_ONLY, Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from ralm.bounds import MOST, MOST_SEEDS, check_count, check_number
from ralm.errors import UsageError


@dataclass(frozen=True, slots=True)
class Needs:
    """The condition for an option to have an effect.

    `met` takes the record that holds the option and says whether the condition holds. `said` is the condition in words,
    with arguments in backticks as in messages: `windows="blocked"`.
    """

    said: str
    met: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Option:
    """What an option declares besides its name, type and default.

    `least` and `most` bound a number. `least` defaults to 1 for whole numbers and to 0 for others. With `above`, the
    number must be above `least`. `default_said` describes the default if the value does not explain itself (mostly
    None). `flag` is the name on the command line if it differs from the field's name; "" means no flag.
    """

    help: str
    _: KW_ONLY
    least: float | None = None
    most: float = MOST
    above: bool = False
    default_said: str | None = None
    flag: str | None = None
    needs: Needs | None = None

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]) -> Any:
        """The schema of the type with help and bounds; pydantic calls this for a field of a request or a recipe."""
        schema = handler(core_schema) | {"description": self.help}
        for number in (schema, *schema.get("anyOf", ())):
            if number.get("type") in ("integer", "number"):
                least = self._least(whole=number["type"] == "integer")
                number |= {"exclusiveMinimum" if self.above else "minimum": least, "maximum": self.most}
        return schema

    def check(self, name: str, kind: Any, value: Any) -> None:
        """Raise UsageError if a value of this type is outside the bounds or not one of the choices."""
        kinds = without_none(kind)
        if value is None and kinds != kind:
            return
        if get_origin(kinds) is Literal and value not in get_args(kinds):
            raise UsageError(f"`{name}` must be one of {', '.join(get_args(kinds))}, not {value!r}.")
        if kinds is int:
            check_count(name, value, least=int(self._least(whole=True)), most=int(self.most))
        elif kinds is float:
            check_number(name, value, least=self._least(whole=False), most=self.most, above=self.above)

    def _least(self, *, whole: bool) -> float:
        return self.least if self.least is not None else 1 if whole else 0


def seed_option(needs: Needs) -> Option:
    """The declaration of a seed, which every record that draws at random has."""
    return Option("Seed of random draws.", least=0, most=MOST_SEEDS, needs=needs)


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


def negative_of(flag: str) -> str:
    """The flag that means no."""
    return "--no-" + flag.removeprefix("--")


def flags_of(record: Any, base: Any, always: Container[str] = ()) -> list[str]:
    """The flags that turn the record `base` into `record`, records within them included; options of the names in
    `always` are told even if they are the same."""
    flags: list[str] = []
    for declaration in declared(type(record)):  # type: ignore[arg-type]
        name, option = declaration.field.name, declaration.option
        value, before = getattr(record, name), getattr(base, name)
        if is_dataclass(value):
            flags += flags_of(value, before, always)
        elif option.flag != "" and (value != before or name in always):
            flags += _told(declaration.flag, value)
    return flags


def _told(flag: str, value: Any) -> list[str]:
    """A flag with its value; a tuple is told one by one."""
    assert value is not None, f"{flag} has no flag that means none"
    if isinstance(value, bool):
        return [flag if value else negative_of(flag)]
    return [part for one in (value if isinstance(value, tuple) else (value,)) for part in (flag, str(one))]


def annotation(of: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without `Annotated`, and the metadata of `Annotated`."""
    return (get_args(of)[0], of.__metadata__) if get_origin(of) is Annotated else (of, ())


def without_none(kind: Any) -> Any:
    """The type without `None`."""
    if get_origin(kind) is UnionType or str(get_origin(kind)) == "typing.Union":
        return next(one for one in get_args(kind) if one is not NoneType)
    return kind
