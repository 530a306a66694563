"""Declares an option once, in the record that owns it.

    stride: Annotated[int, Option("Number of tokens between retrievals.")] = 4

This puts the name, type, default, bounds, choices and help of an option in one place. The flags of a command, the
values of a sweep, and the keys of a part (`ralm.grammar`) are made from it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, MISSING, asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_origin

from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.validation import MAX_COUNT, MAX_SEED, check_count, check_number, check_strings, is_utf8


@dataclass(frozen=True, slots=True)
class Option:
    """What an option declares besides its name, type and default.

    `minimum` defaults to 1 for whole numbers and to 0 for others; with `above`, a number must be above it. `flag` is
    the name on the command line if it is another one; "" means no flag. `part` is the kind of the part that a text
    names, or "keys" for a record that is written as `key=value,key=value` (`ralm.grammar`). `private` is a key that
    requests may not choose: it names a file, a model or an address, or decides what a search costs. `argument` means an
    argument of a command, which its help calls `metavar`.

    A record whose options stand beside the others may leave some of them out (`without`).
    """

    help: str
    _: KW_ONLY
    minimum: float | None = None
    maximum: float = MAX_COUNT
    above: bool = False
    default_text: str | None = None
    flag: str | None = None
    part: str | None = None
    private: bool = False
    argument: bool = False
    metavar: str | None = None
    without: tuple[str, ...] = ()

    def check(self, name: str, kind: Any, value: Any) -> None:
        """Raise UsageError if a value of this type is outside the bounds or not one of the choices."""
        kinds = without_none(kind)
        if value is None and kinds != kind:
            return
        if get_origin(kinds) is Literal and value not in get_args(kinds):
            raise UsageError(f"`{name}` must be one of {', '.join(get_args(kinds))}, not {value!r}.")
        texts = (text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str))
        if not all(map(is_utf8, texts)):
            raise UsageError(f"`{name}` is not UTF-8, which is required here: {value!r}.")
        if isinstance(value, tuple) and "" in value:
            raise UsageError(f"`{name}` must not be empty.")
        if get_origin(kinds) is tuple:
            check_strings(name, value)
        elif kinds is int:
            check_count(name, value, minimum=int(self.lowest(whole=True)), maximum=int(self.maximum))
        elif kinds is float:
            check_number(name, value, minimum=self.lowest(whole=False), maximum=self.maximum, above=self.above)

    def lowest(self, *, whole: bool) -> float:
        """Return the lower bound of a number."""
        return self.minimum if self.minimum is not None else 1 if whole else 0


def seed_option() -> Option:
    """Return the declaration of a seed, which every record that draws at random has."""
    return Option("Seed of random draws.", minimum=0, maximum=MAX_SEED)


class Declared(NamedTuple):
    """An option: the name, type and declaration of a field, its default (MISSING if none), and its title in help.

    The title is what the record that has the option decides, as where it stands in another record says.
    """

    name: str
    kind: Any
    option: Option
    default: Any
    group: str = ""

    @property
    def key(self) -> str:
        """The name where options have unique names: that of its flag."""
        return (self.option.flag or self.name).replace("-", "_").lstrip("_")

    @property
    def is_group(self) -> bool:
        """Whether it is a record whose options stand beside the others."""
        return is_dataclass(self.kind) and self.option.part is None


@cache
def declared(record: type) -> tuple[Declared, ...]:
    """Return the options of a record: its fields that are annotated with an `Option`."""
    return tuple(
        Declared(field.name, kind, option, default)
        for field in fields(record)
        for kind, marks in [annotation(field.type)]
        for option in marks
        if isinstance(option, Option)
        for default in [field.default if field.default_factory is MISSING else field.default_factory()]
    )


def options_of(record: type, base: Any = MISSING, without: tuple[str, ...] = ()) -> Iterator[Declared]:
    """Yield the options with a flag or key of a record and of those in it; defaults are those of `base`, if given."""
    for declaration in _on_base(record, base, without):
        if declaration.is_group:
            title = declaration.option.help.removesuffix(".")
            for option in options_of(declaration.kind, declaration.default, (*without, *declaration.option.without)):
                yield option._replace(group=option.group or title)
        elif declaration.option.flag != "":
            yield declaration


def make_record(record: Any, values: Mapping[str, Any], base: Any = MISSING, without: tuple[str, ...] = ()) -> Any:
    """Return a record with values by the keys of `options_of`; others are those of `base`, or defaults."""
    made: dict[str, Any] = {}
    for declaration in _on_base(record, base, without):
        if declaration.is_group:
            made[declaration.name] = make_record(
                declaration.kind, values, declaration.default, (*without, *declaration.option.without)
            )
        elif declaration.key in values and declaration.option.flag != "":
            made[declaration.name] = values[declaration.key]
    return replace(base, **made) if isinstance(base, record) else record(**made)


def _on_base(record: type, base: Any, without: tuple[str, ...]) -> Iterator[Declared]:
    for declaration in declared(record):
        if declaration.name not in without:
            default = getattr(base, declaration.name) if isinstance(base, record) else declaration.default
            is_same = default == declaration.default
            option = declaration.option if is_same else replace(declaration.option, default_text=None)
            yield declaration._replace(default=default, option=option)


def check_options(record: Any) -> None:
    """Raise UsageError if an option of a record, which calls this on creation, is out of bounds or no choice."""
    for declaration in declared(type(record)):  # type: ignore[arg-type]
        if not declaration.option.argument:  # whoever reads an argument says what is wrong with it
            declaration.option.check(declaration.name, declaration.kind, getattr(record, declaration.name))


class Checked:
    """The base of records whose options are checked on creation; one that checks more calls `check_options` itself."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True)
class Part(Checked):
    """A part that is `named` by its kind and name, whose `config` has all its options too."""

    named: ClassVar[tuple[str, str]]

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return the name and all options."""
        return {**dict([self.named]), **asdict(self)}


def annotation(of: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without `Annotated`, and the metadata of `Annotated`."""
    return (get_args(of)[0], of.__metadata__) if get_origin(of) is Annotated else (of, ())


def without_none(kind: Any) -> Any:
    """Return the type without `None`."""
    if get_origin(kind) is UnionType or str(get_origin(kind)) == "typing.Union":
        return next(member for member in get_args(kind) if member is not NoneType)
    return kind
