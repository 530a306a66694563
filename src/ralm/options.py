"""Declares an option once, in the record that owns it.

    stride: Annotated[int, Option("Number of tokens between retrievals.")] = 4

This puts the name, type, default, bounds, choices, help, and conditions of an option in one place. The flags of a
command, the values of a sweep, the JSON schema of a request, and the keys of a part (`ralm.grammar`) are made from it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import KW_ONLY, Field, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_origin

from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.removed import removal_of
from ralm.validation import MAX_COUNT, MAX_SEED, check_count, check_number


@dataclass(frozen=True, slots=True)
class Needs:
    """The condition for an option to have an effect: in words, with arguments in backticks as in messages, and as a
    function of the record that has the option."""

    text: str
    met: Callable[[Any], bool]

    def unmet(self, record: Any) -> str:
        """Return the condition in words if it does not hold, else ""."""
        return "" if self.met(record) else self.text


@dataclass(frozen=True, slots=True)
class Option:
    """What an option declares besides its name, type and default.

    `minimum` defaults to 1 for whole numbers and to 0 for others; with `above`, a number must be above it. `flag` is
    the name on the command line if it is another one; "" means no flag. `part` is the kind of the part that a text
    names, or "keys" for a record that is written as `key=value,key=value` (`ralm.grammar`). `private` is a key that
    requests may not choose: it names a file, a model or an address.
    """

    help: str
    _: KW_ONLY
    minimum: float | None = None
    maximum: float = MAX_COUNT
    above: bool = False
    default_text: str | None = None
    flag: str | None = None
    needs: Needs | None = None
    part: str | None = None
    private: bool = False

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]) -> Any:
        """The schema of the type with help and bounds; pydantic calls this for a field of a request or a recipe."""
        schema = handler(core_schema) | {"description": self.help}
        for number in (schema, *schema.get("anyOf", ())):
            if number.get("type") in ("integer", "number"):
                minimum = self.lowest(whole=number["type"] == "integer")
                number |= {"exclusiveMinimum" if self.above else "minimum": minimum, "maximum": self.maximum}
        return schema

    def check(self, name: str, kind: Any, value: Any) -> None:
        """Raise UsageError if a value of this type is outside the bounds or not one of the choices."""
        kinds = without_none(kind)
        if value is None and kinds != kind:
            return
        if get_origin(kinds) is Literal and value not in get_args(kinds):
            if sentence := removal_of(f"{name}={value}"):
                raise UsageError(sentence)
            raise UsageError(f"`{name}` must be one of {', '.join(get_args(kinds))}, not {value!r}.")
        if any(not one.isascii() and one != one.encode(errors="replace").decode() for one in _texts_of(value)):
            raise UsageError(f"`{name}` is not UTF-8, which is required here: {value!r}.")
        if kinds is int:
            check_count(name, value, minimum=int(self.lowest(whole=True)), maximum=int(self.maximum))
        elif kinds is float:
            check_number(name, value, minimum=self.lowest(whole=False), maximum=self.maximum, above=self.above)

    def lowest(self, *, whole: bool) -> float:
        """Return the lower bound of a number."""
        return self.minimum if self.minimum is not None else 1 if whole else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Changes to the flags of a record and of those in it: flags that are left out, descriptions of defaults, and
    conditions in place of their own, which look at what holds them."""

    without: tuple[str, ...] = ()
    default_text: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, Needs] = field(default_factory=dict)


def _texts_of(value: Any) -> tuple[str, ...]:
    """The texts of a value: itself, or those of a tuple; none of another type."""
    return tuple(one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, str))


def seed_option(needs: Needs | None = None) -> Option:
    """The declaration of a seed, which every record that draws at random has."""
    return Option("Seed of random draws.", minimum=0, maximum=MAX_SEED, needs=needs)


class Declared(NamedTuple):
    """A field of a record, its type, and its declaration as an option."""

    field: "Field[Any]"
    kind: Any
    option: Option

    @property
    def key(self) -> str:
        """The name where options have unique names."""
        return key_of(self.field.name, self.option)


@cache
def declared(record: type) -> tuple[Declared, ...]:
    """Return the options of a record: its fields that are annotated with an `Option`."""
    return tuple(
        Declared(one, kind, mark)
        for one in fields(record)
        for kind, marks in [annotation(one.type)]
        for mark in marks
        if isinstance(mark, Option)
    )


def check_options(record: Any) -> None:
    """Raise UsageError if an option of a record, which calls this on creation, is out of bounds or no choice."""
    for one, kind, option in declared(type(record)):  # type: ignore[arg-type]
        option.check(one.name, kind, getattr(record, one.name))


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is `named` by its kind and name, whose `config` has all its options too."""

    named: ClassVar[tuple[str, str]]

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return the name and all options."""
        return {**dict([self.named]), **asdict(self)}


def check_effects(record: Any, written: Mapping[str, str]) -> None:
    """Raise UsageError if an option, in a record or one within it, has no effect; `written` has each by its name."""
    reject_unused(unused_options(record, written), written)


def reject_unused(unused: Mapping[str, str], written: Mapping[str, str]) -> None:
    """Raise UsageError for the first option without an effect."""
    for name, needs in unused.items():
        raise UsageError(f"{written[name]} has no effect without {needs}.")


def unused_options(record: Any, names: Collection[str]) -> dict[str, str]:
    """Return the options of these names that no record uses, of this one and those in it, each with what it needs."""
    missing: dict[str, list[str]] = {}
    for name, needs in _conditions(record, names, "", {}):
        missing.setdefault(name, []).append(needs)
    return {name: " or ".join(dict.fromkeys(needs)) for name, needs in missing.items() if all(needs)}


def _conditions(
    record: Any, names: Collection[str], missing: str, outer: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the options of these names, each with its unmet condition, or "".

    `missing` is that of the whole record; `outer` has those that the records around it set for its options.
    """
    for one in fields(record):
        marks = annotation(one.type)[1]
        option = next((mark for mark in marks if isinstance(mark, Option)), None)
        value = getattr(record, one.name)
        is_group = is_dataclass(value) and (option is None or option.part is None)
        if not is_group and (option is None or key_of(one.name, option) not in names):
            continue
        unmet = missing or outer.get(one.name, option.needs.unmet(record) if option and option.needs else "")
        if is_group:
            changes = next((mark.needs for mark in marks if isinstance(mark, Flags)), {})
            inner = {name: needs.unmet(record) for name, needs in changes.items()}
            yield from _conditions(value, names, unmet, {**outer, **inner})
        else:
            yield key_of(one.name, option), unmet


def key_of(name: str, option: Option | None) -> str:
    """Return the name of a field or parameter where options have unique names: that of its flag."""
    return ((option and option.flag) or name).replace("-", "_").lstrip("_")


def flag_of(name: str, option: Option | None) -> str:
    """The flag of a field or parameter, as the user writes it."""
    named = (option and option.flag) or name
    return named if named.startswith("-") else "--" + named.replace("_", "-")


def negative_flag(flag: str) -> str:
    """The flag that means no."""
    return "--no-" + flag.removeprefix("--")


def annotation(of: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without `Annotated`, and the metadata of `Annotated`."""
    return (get_args(of)[0], of.__metadata__) if get_origin(of) is Annotated else (of, ())


def without_none(kind: Any) -> Any:
    """The type without `None`."""
    if get_origin(kind) is UnionType or str(get_origin(kind)) == "typing.Union":
        return next(one for one in get_args(kind) if one is not NoneType)
    return kind
