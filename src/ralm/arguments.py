"""Flat names and values in, records of options out: the arguments of another program, the fields of a request.

Names, types, bounds and needs come from the declarations in the records (`ralm.options`), so that an argument exists as
soon as a record declares it. The options of records within a record are arguments too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_origin

from ralm.errors import UsageError
from ralm.options import Declared, Needs, declared, without_none

Record = TypeVar("Record")
_SAID: Final = {bool: "True or False", int: "a whole number", float: "a number"}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments that records have; `left_out` names options that are none, by record."""

    left_out: Mapping[type, tuple[str, ...]]

    def of(self, record: type) -> dict[str, Declared]:
        """The declarations of all arguments of a record, by name; of equal names the last."""
        return dict(self._all(record))

    def kinds(self, record: type) -> dict[str, Any]:
        """The types of the values of all arguments of a record, by name."""
        return {name: without_none(one.kind) for name, one in self._all(record)}

    def changed(self, base: Record, values: Mapping[str, Any]) -> Record:
        """The record with these values of its arguments; UsageError, with their names, if a value is refused."""
        made = {}
        for one in self._parts(type(base)):
            if is_dataclass(one.kind):
                made[one.field.name] = self.changed(getattr(base, one.field.name), values)
            elif _name(one) in values:
                made[one.field.name] = values[_name(one)]
        try:
            changed: Record = replace(base, **made)  # type: ignore[type-var]
        except UsageError as error:
            raise UsageError(self._as_arguments(str(error), type(base))) from None
        return changed

    def refuse_idle(self, record: Any, given: Mapping[str, Any]) -> None:
        """Raise UsageError if an argument that is given has no effect in any of the records that have it."""
        lacking: dict[str, list[str]] = {}
        for name, lacks in self._lacking(record, ""):
            lacking.setdefault(name, []).append(lacks)
        for name in given:
            if name in lacking and all(lacking[name]):
                needed = " or ".join(dict.fromkeys(lacking[name]))
                raise UsageError(f"`{name}` does nothing here: it goes with {needed}.")

    def _all(self, record: type) -> Iterator[tuple[str, Declared]]:
        for one in self._parts(record):
            if is_dataclass(one.kind):
                yield from self._all(one.kind)  # type: ignore[arg-type]
            else:
                yield _name(one), one

    def _parts(self, record: type) -> Iterator[Declared]:
        left_out = self.left_out.get(record, ())
        return (one for one in declared(record) if one.field.name not in left_out and one.option.flag != "")

    def _lacking(self, record: Any, lacks: str) -> Iterator[tuple[str, str]]:
        """Each argument of a record, and what it lacks to have an effect; nothing if it has one."""
        for one in self._parts(type(record)):
            own = lacks or self._lacks(one.option.needs, record)
            value = getattr(record, one.field.name)
            if is_dataclass(one.kind):
                yield from self._lacking(value, own)
            else:
                yield _name(one), own

    def _lacks(self, needs: Needs | None, record: Any) -> str:
        return "" if needs is None or needs.met(record) else self._as_arguments(needs.said, type(record))

    def _as_arguments(self, message: str, record: type) -> str:
        """A message of a record, with the flat names of its options."""
        for one in self._parts(record):
            named = _name(one)
            message = message.replace(f"`{one.field.name}`", f"`{named}`")
            message = message.replace(f"`{one.field.name}=", f"`{named}=")
        return message


def typed(name: str, kind: Any, value: Any) -> Any:
    """A value as another program parsed it, of the argument's type; UsageError if it cannot be of that type."""
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


def _name(one: Declared) -> str:
    return (one.option.flag or one.field.name).replace("-", "_")
