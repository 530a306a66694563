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
"""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from sys import float_info
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from ralm.errors import UsageError

if TYPE_CHECKING:
    from ralm.records import BoolArray
    from ralm.retrieval.columns import IndexColumns

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
_CONSTANTS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}


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
    if _is_none(second) and name == "in":
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
        case ast.Name(name) if name not in _CONSTANTS:
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
        case ast.Name(name) if name in ("true", "false"):
            return bool(_CONSTANTS[name])
        case ast.Name(name):
            raise _error(node, f'one side of a comparison is a key, and a text stands in quotes: "{name}"')
        case ast.Constant(bool(truth)):
            return truth
        case ast.Constant(str(text)):
            return text
        case ast.Constant(int() | float() as number):
            if abs(number) > float_info.max:
                raise _error(node, "a number is finite, and at most 1.7e308")
            return number
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float()) as operand):
            return -float(_value(operand))
    raise _error(node, "a key is compared with a number, a text in quotes, True or False; a missing one by `is None`")


def _is_none(node: ast.expr) -> bool:
    return (isinstance(node, ast.Constant) and node.value is None) or (isinstance(node, ast.Name) and node.id == "null")


def _error(node: ast.expr, remedy: str) -> UsageError:
    shown = ast.unparse(node)
    shown = f"{shown[:_SHOWN]}..." if len(shown) > _SHOWN else shown
    return UsageError(f"the filter cannot be read at `{shown}`: {remedy}.")
