"""Filters of passages: `year >= 2020 and lang in ("de", "en") and not title.startswith("Draft")`.

A filter is a Python expression over a passage's metadata, title and id:

    key              a field of the metadata (`author.name` in an object, `metadata["my key"]` for any other name), or
                     `title` or `id` of the document
    key == value     also !=, <, <=, >, >= and `2000 <= year < 2010`; a value is a number, a text in quotes, or True
    key in (a, b)    one of several values; `"text" in key`: an item of a list, or a part of a text
    key is None      the passage has no value; `key is not None`
    key.startswith("text"), key.endswith("text")

These are joined by `and`, `or`, `not` and parentheses. A list counts by its items, so a comparison holds if any value
of the key satisfies it; a passage without the key satisfies none. `!=` is `not ==`, `not in` is `not (... in ...)`.
Numbers are compared as 64-bit floats, text by its characters' code points.

The metadata of an index is in columns. A column has the values of one kind of a key: texts, numbers or truth values,
alone or as items of lists. A list counts by its items, an object by its keys (`author.name`); null is no value. Each
value has the range of the passages that have it: those that follow each other with the same metadata, such as the
passages of a document.
"""

import ast
import re
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from itertools import accumulate
from pathlib import Path
from sys import float_info
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.corpus.documents import some_names
from ralm.corpus.store import PASSAGES_FILE, PassageStore, arrow_texts, true_places
from ralm.errors import DamagedFolderError, UsageError
from ralm.records import ORIGIN, BoolArray, Metadata

Value: TypeAlias = str | float | bool
"""A text, a number or a truth value that a key is compared with."""
Test: TypeAlias = "Callable[[IndexColumns], BoolArray]"
"""Which rows of an index fulfil a part of a filter."""
MAX_BYTES: Final = 1 << 16
_MAX_DEPTH: Final = 30
_MAX_COMPARISONS: Final = 200
_SHOWN: Final = 60
_QUOTED: Final = re.compile(r""" "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' """, re.VERBOSE)
_REFUSED: Final = re.compile(r"[^\w\s.,()\[\]{}<>=!-]|\b(?:if|await|yield)\b|(?:(?:\bnot\b|-)\s*){30}")
"""What a filter never has outside quotes, some of which would exhaust the stack of Python's parser."""
_OPERATORS: Final[dict[type, str]] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_NEGATED: Final[dict[type, type]] = {ast.NotEq: ast.Eq, ast.NotIn: ast.In, ast.IsNot: ast.Is}
_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
Kind: TypeAlias = Literal["text", "number", "truth"]
COLUMNS_FILE: Final = "columns.arrow"
_SCHEMA: Final = pa.schema(
    [
        ("column", pa.dictionary(pa.int32(), pa.large_binary())),
        ("first", pa.int32()),
        ("last", pa.int32()),
        ("value", pa.large_binary()),
    ]
)
"""A row for each value, sorted by column; `last` is one past the last passage. A number has 8 bytes."""
_ORIGINS: Final = ("id", "title")
"""The keys that are not metadata."""
_PLURAL: Final[dict[Kind, str]] = {"text": "text", "number": "numbers", "truth": "true or false"}
_COMPARED: Final = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_MATCHED: Final = {"startswith": "starts_with", "endswith": "ends_with", "contains": "match_substring"}
_MASKS_KEPT: Final = 8
"""Latest filters whose masks are kept."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter: its text, in a normal form, and the test of rows that it is."""

    text: str
    test: Test = field(compare=False, repr=False)


def parse_filter(text: str) -> Filter:
    """Return the filter of an expression; UsageError if it cannot be read."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise UsageError(f"the filter has over {MAX_BYTES:,} bytes: shorten it.")
    text = " ".join(text.split("\n")).strip()
    if not text:
        raise UsageError("the filter is empty; write a comparison such as `year >= 2020`.")
    unquoted = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), text)
    if rejected := _REFUSED.search(unquoted):
        raise _unread(text, rejected.start(), "no part of a filter, or nested too deeply")
    if max(accumulate((sign in "([{") - (sign in ")]}") for sign in unquoted)) > _MAX_DEPTH:
        raise _unread(text, 0, "nested too deeply")
    try:
        node = ast.parse(text, mode="eval").body
        if sum(len(part.ops) for part in ast.walk(node) if isinstance(part, ast.Compare)) > _MAX_COMPARISONS:
            raise UsageError(f"the filter has over {_MAX_COMPARISONS} comparisons: list values as `key in (1, 2)`.")
        return Filter(ast.unparse(node), _test(node, 0))
    except SyntaxError as error:
        raise _unread(text, (error.offset or 1) - 1, error.msg) from None
    except (ValueError, RecursionError, MemoryError):
        raise _unread(text, 0, "nested too deeply, or no valid text") from None


def _unread(text: str, place: int, reason: str) -> UsageError:
    shown = f"{text[max(0, place - _SHOWN) : place]}[HERE]{text[place : place + _SHOWN]}"
    return UsageError(f'the filter cannot be read ({reason}): {shown}; write it as `year >= 2020 and lang == "en"`.')


def _test(node: ast.expr, depth: int) -> Test:
    """Return the test of an expression."""
    if depth > _MAX_DEPTH:
        raise UsageError(f"the filter has over {_MAX_DEPTH} nested parts: simplify it.")
    match node:
        case ast.BoolOp(operator, parts):
            return _joined([_test(part, depth + 1) for part in parts], isinstance(operator, ast.And))
        case ast.UnaryOp(ast.Not(), part):
            return _negated(_test(part, depth + 1))
        case ast.Compare(first, operators, rights):
            sides = [first, *rights]
            pairs = zip(sides, operators, rights, strict=False)
            return _joined([_comparison(*pair) for pair in pairs], every=True)
        case ast.Call(ast.Attribute(key, "startswith" | "endswith" as name), [ast.Constant(str(text))], []):
            return _condition(_required_key(key), name, [text])
    raise _error(node, 'compare a key with a value, such as `year >= 2020` or `lang in ("de", "en")`')


def _joined(tests: Sequence[Test], every: bool) -> Test:
    join: Any = np.logical_and if every else np.logical_or
    return lambda columns: reduce(join, (test(columns) for test in tests))


def _negated(test: Test) -> Test:
    return lambda columns: ~test(columns)


def _comparison(first: ast.expr, operator: ast.cmpop, second: ast.expr) -> Test:
    """Return the test of two sides, one of which is a key."""
    if positive := _NEGATED.get(type(operator)):
        return _negated(_comparison(first, positive(), second))
    key = _key(first)
    if isinstance(operator, ast.In):
        if key is None:
            return _condition(_required_key(second), "contains", [_value(first)])
        if not isinstance(second, ast.Tuple | ast.List | ast.Set):
            raise _error(second, "the values after `in` stand in parentheses, each with a comma: (1, 2)")
        return _condition(key, "in", [_value(item) for item in second.elts])
    if key is None:
        key, first, second = _required_key(second), second, first
        name = _FLIPPED.get(_OPERATORS.get(type(operator), ""), "in")
    else:
        name = _OPERATORS.get(type(operator), "in")
    is_none = isinstance(second, ast.Constant) and second.value is None
    if is_none and name == "in":
        return _negated(_condition(key, "exists", []))
    value = _value(second)
    if isinstance(operator, ast.Is) or (isinstance(value, bool) and name != "in"):
        raise _error(second, "`is` takes None, and True and False are compared by == or !=")
    return _condition(key, name, [value])


def _condition(key: str, operator: str, values: Sequence[Value]) -> Test:
    return lambda columns: columns.matching(key, operator, values)


def _key(node: ast.expr) -> str | None:
    """Return the key that an expression names, None if it is no key."""
    match node:
        case ast.Name(name):
            return "id" if name == "document_id" else name
        case ast.Attribute(owner, name):
            return f"{_required_key(owner)}.{name}"
        case ast.Subscript(ast.Name("metadata"), ast.Constant(str(name))):
            return name
    return None


def _required_key(node: ast.expr) -> str:
    key = _key(node)
    if key is None:
        raise _error(node, "one side of a comparison is a key")
    return key


def _value(node: ast.expr) -> Value:
    """Return the text, number or truth value of an expression."""
    match node:
        case ast.Name(name):
            quoted = f'one side of a comparison is a key, and a text stands in quotes: "{name}"'
            raise _error(
                node, {"true": "write True", "false": "write False", "null": "write is None"}.get(name, quoted)
            )
        case ast.Constant(bool() | str() as value):
            return value
        case ast.Constant(int() | float() as number):
            if abs(number) > float_info.max:
                raise _error(node, "a number is finite, and at most 1.7e308")
            return number
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float()) as operand):
            return -float(_value(operand))
    raise _error(node, "a key is compared with a number, a text in quotes, True or False; a missing one by `is None`")


def _error(node: ast.expr, remedy: str) -> UsageError:
    shown = ast.unparse(node)
    shown = f"{shown[:_SHOWN]}..." if len(shown) > _SHOWN else shown
    return UsageError(f"the filter cannot be read at `{shown}`: {remedy}.")


class _Column(NamedTuple):
    """Values, UTF-8 (large_binary) or float64, and the ranges (int32) of the passages that have each."""

    kind: Kind
    is_listed: bool
    values: pa.Array
    first_V: NDArray[np.int32]
    last_V: NDArray[np.int32]


def write_columns(folder: Path) -> None:
    """Write the columns of the passages in a folder, which are complete, beside them, if these have any metadata."""
    codes: dict[bytes, int] = {}
    code_V, first_V, last_V, end_V, content = array("i"), array("i"), array("i"), array("q", [0]), bytearray()
    first = 0
    for size, metadata in PassageStore(folder / PASSAGES_FILE).metadata_runs():
        for name, value in dict.fromkeys(_leaves(metadata)):
            code_V.append(codes.setdefault(name, len(codes)))
            first_V.append(first)
            last_V.append(first + size)
            content += value
            end_V.append(len(content))
        first += size
    if not codes:
        return
    names = sorted(codes)
    rank = np.argsort([codes[name] for name in names]).astype(np.int32)
    rank_V = rank[np.frombuffer(code_V, np.int32)]
    values = pa.Array.from_buffers(pa.large_binary(), len(rank_V), [None, pa.py_buffer(end_V), pa.py_buffer(content)])
    columns = pa.DictionaryArray.from_arrays(_arrow(pa.int32(), rank_V), arrow_texts(names, pa.large_binary()))
    ranges = [_arrow(pa.int32(), np.frombuffer(places, np.int32)) for places in (first_V, last_V)]
    batch = pa.record_batch([columns, *ranges, values], schema=_SCHEMA)
    with pa.OSFile(str(folder / COLUMNS_FILE), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_batch(batch.take(_arrow(pa.int64(), np.argsort(rank_V, kind="stable"))))


class IndexColumns:
    """The metadata, titles and ids of the passages of an index, read from `file` on first use; for several threads."""

    def __init__(self, name: str, passages: PassageStore, file: Path | None) -> None:
        self._name = name
        self._passages = passages
        self._file = file
        with self._errors():
            self._source = file and pa.memory_map(str(file))
        self.mask = lru_cache(_MASKS_KEPT)(lambda criterion: criterion.test(self))
        """Returns the mask of the passages that pass a filter, and raises what `matching` raises."""

    def matching(self, key: str, operator: str, values: Sequence[Value]) -> BoolArray:
        """Return the passages with a value of the key that fulfils a comparison; UsageError for a wrong key or kind."""
        columns = self._columns.get(key, [])
        self._check(key, ["text"] if key in _ORIGINS else sorted({column.kind for column in columns}), values)
        if key in _ORIGINS:
            texts, mask_N = self._passages.origin_texts(key == "title"), np.zeros(len(self._passages), np.bool_)
            mask_N[_places(texts, operator, [_stored(value) for value in values])] = True
            mask_N[_places(texts, "in", [b""])] = False
            return mask_N
        starts_N = np.zeros(len(self._passages) + 1, np.int32)
        for column in columns:
            same = [_stored(value) for value in values if _kind(value) == column.kind]
            compared = "in" if operator == "contains" and column.is_listed else operator
            places = _places(column.values, compared, same)
            np.add.at(starts_N, column.first_V[places], 1)
            np.subtract.at(starts_N, column.last_V[places], 1)
        return np.cumsum(starts_N[:-1]) > 0

    def _check(self, key: str, kinds: Sequence[Kind], values: Sequence[Value]) -> None:
        if not kinds:
            keys = some_names(sorted({*self._columns, *_ORIGINS}, key=lambda name: (name in _ORIGINS, name)))
            raise UsageError(f"no passage of {self._name} has the key {key!r}; the keys are {keys}.")
        for value in values:
            if _kind(value) not in kinds:
                plural = " and ".join(_PLURAL[kind] for kind in kinds)
                quoted = "; put it in quotes to compare it as text" if "text" in kinds else ""
                raise UsageError(
                    f"the key {key!r} of {self._name} holds {plural}, which cannot be compared with {value!r}{quoted}."
                )

    @cached_property
    def _columns(self) -> dict[str, list[_Column]]:
        """Return the columns of each key."""
        columns: dict[str, list[_Column]] = {}
        if self._source is None:
            return columns
        with self._errors():
            file = pa.ipc.open_file(self._source)
            if file.schema != _SCHEMA or file.num_record_batches != 1:
                raise pa.ArrowInvalid("it has other fields")
            batch = file.get_batch(0)
            batch.validate(full=True)
            numbers: Any = (batch["column"].indices, batch["first"], batch["last"])
            code_V, first_V, last_V = (np.from_dlpack(array).astype(np.int32, copy=False) for array in numbers)
            if first_V.min() < 0 or (first_V > last_V).any() or last_V.max() > len(self._passages):
                raise ValueError("its ranges do not fit the passages")
            names = [name.as_py().decode("utf-8", "surrogatepass") for name in batch["column"].dictionary]
            bounds = np.searchsorted(code_V, np.arange(len(names) + 1)).tolist()
            for name, begin, end in zip(names, bounds[:-1], bounds[1:], strict=True):
                kind, is_listed, key = name.split(" ", 2)
                values = batch["value"].slice(begin, end - begin)
                values = values if kind == "text" else values.cast(pa.binary(8)).view(pa.float64())
                column = _Column(kind, is_listed == "1", values, first_V[begin:end], last_V[begin:end])
                columns.setdefault(key, []).append(column)
        return columns

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, ValueError, AttributeError) as error:
            raise DamagedFolderError(f"{self._file} is damaged ({error}); build the index again.") from None


def _leaves(metadata: Metadata) -> Iterator[tuple[bytes, bytes]]:
    """Yield the values of metadata, each after the name of its column."""
    rest: list[tuple[str, JsonValue, bool]] = [(key, value, False) for key, value in metadata.items() if key != ORIGIN]
    while rest:
        key, value, is_listed = rest.pop()
        if isinstance(value, dict):
            rest += ((f"{key}.{name}", inner, is_listed) for name, inner in value.items())
        elif isinstance(value, list):
            rest += ((key, item, True) for item in value)
        elif value is not None:
            yield f"{_kind(value)} {int(is_listed)} {key}".encode("utf-8", "surrogatepass"), _stored(value)


def _kind(value: Value) -> Kind:
    """Return the kind of a value."""
    return "text" if isinstance(value, str) else "truth" if isinstance(value, bool) else "number"


def _stored(value: Value) -> bytes:
    """Return a value as columns hold it."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    try:
        number = float(value) + 0.0  # -0.0 becomes 0.0
    except OverflowError:
        number = float("inf") if value > 0 else float("-inf")
    return struct.pack("<d", number)


def _arrow(kind: pa.DataType, values: NDArray[Any]) -> pa.Array:
    """Return numbers as an array of Arrow; `pa.array` would import pandas, which takes a second."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _places(values: Any, operator: str, stored: Sequence[bytes]) -> Any:
    """Return the places of values that fulfil a comparison with stored values of their kind."""
    import pyarrow.compute as pc

    if operator == "exists":
        return slice(None)
    if not stored or (operator in _MATCHED and values.type == pa.float64()):
        return []
    if operator in _MATCHED:
        return true_places(getattr(pc, _MATCHED[operator])(values, stored[0]))
    is_number = values.type == pa.float64()
    right = _arrow(pa.float64(), np.frombuffer(b"".join(stored))) if is_number else arrow_texts(stored, values.type)
    if operator == "in":
        return true_places(pc.is_in(values, value_set=right))
    return true_places(getattr(pc, _COMPARED[operator])(values, right[0]))
