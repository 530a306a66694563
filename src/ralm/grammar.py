"""How a part is named, with its settings: `NAME:key=value,key=value`.

    ensemble:documents=4,temperature=2        a part of ralm; its keys are the options of its record
    my_module:MyReader:heading="Facts, old"   a class of your own; a value that holds a comma stands in quotes
    http://localhost:8000                     a service, which is named by its URL and has no keys

The same text names a part on the command line, in files of settings, requests, recipes, `model_args` of the harness,
and Python. A `Catalogue` holds the parts of one kind.
"""

import hashlib
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_origin

from ralm.errors import UsageError, short_message
from ralm.options import Declared, make_record, options_of, without_none
from ralm.storage.remote import is_url
from ralm.validation import config_of

_PIECE: Final = re.compile(r'(?:[^,"]|"[^"]*")+')
_NUMBERS: Final = {int: "a whole number", float: "a number"}
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The parts that an `option` names, such as readers, and the `members` that a class of your own must have."""

    option: str
    records: Mapping[str, type]
    members: tuple[str, ...]

    def parse(self, text: str) -> Any:
        """Return the record of a part of ralm, or the `OwnPart` that a text names; UsageError if it names none."""
        name, rest = _split(text, self.records)
        title = f'`{self.option}="{name}"`'
        if name in self.records:
            return parse_keys(self.records[name], rest, title)
        if ":" in name and not is_url(name):
            return OwnPart(title, name, rest, self.members)
        names = ", ".join(self.records)
        raise UsageError(f"{title} is not known: write one of {names}, or a class of your own as module:Class.")

    def name_of(self, text: str) -> str:
        """Return the name in a text, without keys."""
        return _split(text, self.records)[0]

    def written_keys(self, text: str) -> dict[str, str]:
        """Return the keys in a text with their values."""
        return parse_pairs(_split(text, self.records)[1], text)

    def onto(self, text: str, base: str) -> str:
        """Return a text with the keys of `base` that it lacks, if both name the same part."""
        name = self.name_of(text)
        if name != self.name_of(base):
            return text
        pairs = self.written_keys(base) | self.written_keys(text)
        return ":".join([name, *filter(None, [",".join(f"{key}={quoted(value)}" for key, value in pairs.items())])])


@dataclass(frozen=True, slots=True)
class OwnPart:
    """A class of the user's own, which is looked for in the current folder too, with the values of its arguments."""

    title: str
    name: str
    keys: str
    members: tuple[str, ...]

    def make(self, *arguments: Any) -> Any:
        """Return an object of the class, made with these arguments and the keys by name.

        Its `config` has the class, its keys, and the hash of the file that defines it, too. Raises UsageError if there
        is no such class, if it cannot be made, or if it lacks a member of its protocol.
        """
        made_by = self.load()
        keys = {key: json_or_text(value) for key, value in parse_pairs(self.keys, self.title).items()}
        file = inspect.getsourcefile(made_by)
        code = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).exists() else None
        record = {"class": self.name, **({"keys": keys} if keys else {}), "code": code}
        try:
            part = _with_config(made_by, record)(*arguments, **keys)
        except Exception as error:
            raise self._error(
                f"{made_by.__name__} cannot be made: {type(error).__name__}: {short_message(error)}"
            ) from error
        for member in self.members:
            if not hasattr(part, member):
                raise self._error(f"{made_by.__name__} has no `{member}`, which such a part needs")
        return part

    def shared(self) -> Any:
        """Return the object of the class and these keys, which a process makes once; raises what `make` raises."""
        return _shared(self, self.load())

    def load(self) -> type:
        """Return the class; UsageError if there is none."""
        module, _, attribute = self.name.partition(":")
        sys.path.insert(0, "")
        try:
            loaded = getattr(importlib.import_module(module), attribute, None)
        except Exception as error:
            raise self._error(f"{module} cannot be imported: {type(error).__name__}: {short_message(error)}") from error
        finally:
            sys.path.remove("")
        if not isinstance(loaded, type):
            raise self._error(f"{module} has no class {attribute}")
        return loaded

    def _error(self, reason: str) -> UsageError:
        return UsageError(f"{self.title}: {reason}.")


@lru_cache(maxsize=64)
def _shared(part: OwnPart, _class: type) -> Any:
    return part.make()


def parse_keys(record: type[_Record], text: str, title: str) -> _Record:
    """Return a record with the values of `key=value,key=value`; a UsageError begins with the `title`."""
    return read_keys(record, parse_pairs(text, title), title)


def read_keys(record: type[_Record], texts: Mapping[str, str], title: str) -> _Record:
    """Return the record of keys that are parsed already; raises what `parse_keys` raises."""
    declarations = keys_of(record)
    for key in texts:
        if key not in declarations:
            keys = f"its keys are {', '.join(declarations)}" if declarations else "it has none"
            raise UsageError(f"{title} has no key {key!r}: {keys}.")
    for key, declaration in declarations.items():
        if declaration.default is MISSING and key not in texts:
            raise UsageError(f"{title} needs {key}=...: {declaration.option.help}")
    try:
        made: _Record = make_record(record, {key: read_value(declarations[key], text) for key, text in texts.items()})
    except UsageError as error:
        message = str(error)
        raise UsageError(message if message.startswith(title) else f"{title}: {message.replace('`', '')}") from None
    return made


def keys_of(record: type) -> dict[str, Declared]:
    """Return the declarations of the keys of a record, and of those of the records in it, by name."""
    return {declaration.key: declaration for declaration in options_of(record)}


def keys_text(record: Any, base: Any) -> str:
    """Return the keys that turn the record `base` into `record`, as `parse_keys` reads them."""
    before = {declaration.key: declaration.default for declaration in options_of(type(base), base)}
    after = {declaration.key: declaration.default for declaration in options_of(type(record), record)}
    return ",".join(f"{key}={quoted(as_text(value))}" for key, value in after.items() if value != before[key])


def quoted(value: str) -> str:
    """Return a value as it is written after `key=`."""
    return f'"{value}"' if "," in value else value


def is_own(name: str) -> bool:
    """Return whether a name may be that of a class of the user's own: `module:Class`."""
    return re.fullmatch(r"[\w.]+:[A-Za-z_]\w*(:.*)?", name) is not None


def pieces(text: str) -> Iterator[str]:
    """Yield what stands between the commas of a text, outside quotes; UsageError if a quote is not closed."""
    if text.count('"') % 2:
        raise UsageError(f"a quote is not closed: {text}")
    return (match[0].strip() for match in _PIECE.finditer(text))


def _split(text: str, names: Mapping[str, type]) -> tuple[str, str]:
    """Return the name at the beginning of a text, and its keys."""
    if is_url(text):
        return text, ""
    name, _, rest = text.partition(":")
    attribute, _, keys = rest.partition(":")
    return (f"{name}:{attribute}", keys) if name not in names and attribute.isidentifier() else (name, rest)


def parse_pairs(text: str, title: str) -> dict[str, str]:
    """Return the values of keys by name; UsageError, which begins with the `title`, if one is written twice."""
    pairs: dict[str, str] = {}
    for piece in pieces(text):
        key, equals, value = piece.partition("=")
        if not equals:
            raise UsageError(f"{title} takes keys as key=value, not {piece!r}.")
        key = key.strip().replace("-", "_")
        if key in pairs:
            raise UsageError(f"{title} has the key {key!r} twice: leave one out.")
        pairs[key] = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
    return pairs


def read_value(declaration: Declared, text: str) -> Any:
    """Return a value as the type of its key; UsageError if it is of another type."""
    key, kind = declaration.key, without_none(declaration.kind)
    if declaration.option.part == "keys":
        return parse_keys(kind, text, f"`{key}`")
    if get_origin(kind) is tuple:
        return tuple(pieces(text))
    if kind is bool:
        if text not in ("true", "false"):
            raise UsageError(f"`{key}` is true or false, not {text!r}.")
        return text == "true"
    try:
        return text if get_origin(kind) is Literal else kind(text)
    except ValueError:
        raise UsageError(f"`{key}` must be {_NUMBERS[kind]}, not {text!r}.") from None


def as_text(value: Any) -> str:
    """Return the text of a value."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def json_or_text(value: str) -> Any:
    """Return the value that a text is as JSON, or else the text."""
    with suppress(ValueError):
        return json.loads(value)
    return value


def _with_config(made_by: type, record: Mapping[str, Any]) -> type:
    """Return the class with a `config` that has these values too."""

    def config(part: Any) -> dict[str, Any]:
        value = vars(part)["config"] if "config" in vars(part) else super(derived, part).config
        return {**config_of(type(made_by.__name__, (), {"config": value})(), "part"), **record}

    def set_config(part: Any, value: Any) -> None:
        vars(part)["config"] = value

    derived: Any = type(made_by.__name__, (made_by,), {"config": property(config, set_config)})
    return derived
