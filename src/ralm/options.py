"""How an option is declared: once, in the record that owns it.

    stride: Annotated[int, Option("Number of tokens between retrievals.")] = 4

Name, type, default, bounds, choices, help, and what the option needs to have an effect are then in one place. The flags
of a command, the values of a sweep and the JSON schema of a request are made from it; this module knows none of them.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, Field, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from ralm.bounds import MOST, check_count, check_number
from ralm.errors import UsageError


@dataclass(frozen=True, slots=True)
class Needs:
    """What an option needs to have an effect: `met` tells it of the record that holds the option, `said` says it.

    A sentence names arguments as messages do: `windows="blocked"` in backticks.
    """

    said: str
    met: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Option:
    """What is to be known of an option besides its name, type and default.

    `least` and `most` bound a number; whole numbers are counts from 1 unless `least` says otherwise, and with `above` a
    number must be above `least`. `default_said` says what the default is where the value does not (None, mostly).
    `flag` is what the command line calls the option where that is not the field's name; "" where it has no flag.
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
        """The schema of the type with help and bounds: pydantic asks for it, for a request's field or a recipe."""
        schema = handler(core_schema) | {"description": self.help}
        for number in (schema, *schema.get("anyOf", ())):
            if number.get("type") in ("integer", "number"):
                least = self._least(whole=number["type"] == "integer")
                number |= {"exclusiveMinimum" if self.above else "minimum": least, "maximum": self.most}
        return schema

    def check(self, name: str, kind: Any, value: Any) -> None:
        """Raise UsageError where a value of this type lies outside the bounds, or is none of the choices."""
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


class Declared(NamedTuple):
    """A field of a record, its type, and how it is declared."""

    field: "Field[Any]"
    kind: Any
    option: Option


@cache
def declared(record: type) -> tuple[Declared, ...]:
    """The options of a record; a field without an `Option` is none."""
    return tuple(
        Declared(field, kind, mark)
        for field in fields(record)
        for kind, marks in [annotation(field.type)]
        for mark in marks
        if isinstance(mark, Option)
    )


def check_options(record: Any) -> None:
    """Raise UsageError where an option of a record lies outside its bounds, or is none of its choices.

    Records call this as they are made, so that a command, a script, a sweep and a server are told the same.
    """
    for field, kind, option in declared(type(record)):  # type: ignore[arg-type]
        option.check(field.name, kind, getattr(record, field.name))


def annotation(of: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type, and what `Annotated` says of it."""
    return (get_args(of)[0], of.__metadata__) if get_origin(of) is Annotated else (of, ())


def without_none(kind: Any) -> Any:
    """The type of what a value is where it is not None."""
    if get_origin(kind) is UnionType or str(get_origin(kind)) == "typing.Union":
        return next(one for one in get_args(kind) if one is not NoneType)
    return kind
