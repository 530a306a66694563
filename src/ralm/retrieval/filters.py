"""Filters of passages by metadata, title and document id: expressions such as `year >= 2020 and lang in (en, de)`.

An expression has comparisons, joined by `and`, `or`, `not` and parentheses:

    key = value      also !=, <, <=, > and >=; `key in (value, value)`; `exists key`
    key              a field of the metadata (`author.name` for an object in it), or `title` or `id` of the document
    value            a number, true or false, or text, in quotes if it has spaces, quotes or one of ()=<>!,

Numbers are compared as 64-bit floats, text by its characters' code points. A comparison holds if any value of the key
in a passage satisfies it, so a list in the metadata counts by its items; a passage without the key satisfies none.
`key != value` is `not key = value`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, Final, Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ralm.corpus.numbering import Numbering
from ralm.errors import UsageError
from ralm.protocols import Retriever
from ralm.records import IntArray

BoolArray: TypeAlias = NDArray[np.bool_]
Value: TypeAlias = str | float | bool
"""A text, a number or a truth value that a key is compared with."""
Operator: TypeAlias = Literal["in", "<", "<=", ">", ">=", "exists"]
MAX_TEXT_BYTES: Final = 511
"""The longest text, in UTF-8, that a key can be compared with."""
_MAX_DEPTH: Final = 100
_SHOWN: Final = 60
_HERE: Final = "[HERE]"
_TOKEN: Final = re.compile(
    r"""(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<sign><=|>=|!=|==?|[<>(),])|(?P<word>[^\s()=<>!,"']+)""",
    re.DOTALL,
)
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_BARE: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_RESERVED: Final = {"and", "or", "not", "in", "exists", "true", "false", "null"}
_ORDERS: Final[dict[str, Operator]] = {"<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclass(frozen=True, slots=True)
class Condition:
    """A key beside values: several for `in`, none for `exists`, otherwise one; `=` is `in` with one value."""

    key: str
    operator: Operator
    values: tuple[Value, ...] = ()

    def __str__(self) -> str:
        key, values = _written_text(self.key), [written_value(value) for value in self.values]
        if self.operator == "exists":
            return f"exists {key}"
        if self.operator == "in" and len(values) != 1:
            return f"{key} in ({', '.join(values)})"
        return f"{key} {'=' if self.operator == 'in' else self.operator} {values[0]}"


@dataclass(frozen=True, slots=True)
class Not:
    """The passages that do not pass a filter."""

    part: "Filter"

    def __str__(self) -> str:
        return f"not ({self.part})" if isinstance(self.part, Junction) else f"not {self.part}"


@dataclass(frozen=True, slots=True)
class Junction:
    """The passages that pass all filters (`and`), or any of them (`or`)."""

    operator: Literal["and", "or"]
    parts: tuple["Filter", ...]

    def __str__(self) -> str:
        parts = [f"({one})" if isinstance(one, Junction) and one.operator == "or" else str(one) for one in self.parts]
        return f" {self.operator} ".join(parts)


Filter: TypeAlias = Condition | Not | Junction
"""A filter in its normal form; `str` writes it as an expression that `parse_filter` reads."""


def compare(key: str, operator: str, values: Iterable[Value]) -> Filter:
    """The filter of one comparison: =, !=, <, <=, >, >=, in, not in or exists.

    Raises UsageError if a value cannot be compared so.
    """
    key = "id" if key == "document_id" else key
    checked = [_checked(key, value) for value in values]
    if operator == "exists":
        return Condition(key, "exists")
    if order := _ORDERS.get(operator):
        if isinstance(checked[0], bool):
            raise UsageError(f"{_written_text(key)} {operator} {written_value(checked[0])}: compare it by = or !=.")
        return Condition(key, order, (checked[0],))
    distinct = {written_value(value): value for value in checked}
    found = Condition(key, "in", tuple(distinct[written] for written in sorted(distinct)))
    return negate(found) if operator in ("!=", "not in") else found


def negate(part: Filter) -> Filter:
    """The passages that do not pass a filter."""
    return part.part if isinstance(part, Not) else Not(part)


def join(operator: Literal["and", "or"], parts: Sequence[Filter]) -> Filter:
    """The passages that pass all of some filters, or any; there must be one at least."""
    distinct: dict[str, Filter] = {}
    for part in parts:
        same = isinstance(part, Junction) and part.operator == operator
        distinct |= {str(one): one for one in (part.parts if isinstance(part, Junction) and same else (part,))}
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    return Junction(operator, tuple(distinct[written] for written in sorted(distinct)))


def parse_filter(text: str) -> Filter:
    """The filter of an expression; UsageError, with the place marked, if it cannot be read."""
    return _Parser(text).parse()


def conditions(found: Filter) -> Iterator[Condition]:
    """All conditions of a filter."""
    match found:
        case Condition():
            yield found
        case Not(part):
            yield from conditions(part)
        case Junction(_, parts):
            for one in parts:
                yield from conditions(one)


def written_value(value: Value) -> str:
    """A value as an expression has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _written_text(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))


def _written_text(text: str) -> str:
    """A text, bare if it can be."""
    if _BARE.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _checked(key: str, value: Value) -> Value:
    """A value that can be compared; whole numbers become floats."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if len(value.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            raise UsageError(f"{key} is compared with a text of over {MAX_TEXT_BYTES} bytes; shorten it.")
        return value
    try:
        number = float(value) + 0.0  # -0.0 becomes 0.0
    except OverflowError:
        number = float("inf")
    if not isfinite(number):
        raise UsageError(f"{key} is compared with a number that is not finite, or too large.")
    return number


@dataclass(frozen=True, eq=False)
class Passing:
    """The passages of an index that pass a filter: `rows` (bool) says which rows do; removed ones do not."""

    filter: Filter
    rows: BoolArray
    numbering: Numbering

    @property
    def numbers(self) -> IntArray:
        """The numbers (int64, rising) of the passages."""
        return self.numbering.numbers(np.flatnonzero(self.rows))

    @cached_property
    def count(self) -> int:
        """How many passages pass."""
        return int(np.count_nonzero(self.rows))

    def within(self, other: "Passing | None") -> "Passing":
        """Those that pass another filter, too."""
        if other is None:
            return self
        return Passing(join("and", [self.filter, other.filter]), self.rows & other.rows, self.numbering)


def filter_retriever(retriever: Retriever, passing: Passing) -> Retriever:
    """The best of the passages that pass a filter, as a retriever; UsageError if it cannot filter."""
    own: Callable[[Passing], Retriever] | None = getattr(retriever, "filtered", None)
    if own is None:
        raise UsageError(f"{type(retriever).__name__} cannot search with a filter: do so in the class itself.")
    return own(passing)


class _Token:
    """A piece of an expression, and where it begins."""

    __slots__ = ("begin", "kind", "text")

    def __init__(self, kind: str, text: str, begin: int) -> None:
        self.kind, self.text, self.begin = kind, text, begin

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words


class _Parser:
    """Reads an expression by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*self._split()]
        self._place = 0
        self._depth = 0

    def parse(self) -> Filter:
        if self._next.kind == "end":
            raise UsageError("the filter is empty; write a comparison such as `year >= 2020`.")
        found = self._either()
        if self._next.kind != "end":
            self._fail("expected `and`, `or` or the end")
        return found

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _split(self) -> Iterator[_Token]:
        place = 0
        while True:
            place += len(self._text[place:]) - len(self._text[place:].lstrip())
            if place == len(self._text):
                break
            found = _TOKEN.match(self._text, place)
            if found is None or found.lastgroup is None:
                quote = self._text[place] in "\"'"
                self._fail("expected the closing quote of this text" if quote else "expected `!=`", place)
            yield _Token(found.lastgroup, found[0], place)
            place = found.end()
        yield _Token("end", "", place)

    def _take(self) -> _Token:
        token = self._next
        self._place += token.kind != "end"
        return token

    def _either(self) -> Filter:
        return self._joined("or", self._all)

    def _all(self) -> Filter:
        return self._joined("and", self._one)

    def _joined(self, word: Literal["and", "or"], part: Any) -> Filter:
        parts = [part()]
        while self._next.is_word(word):
            self._take()
            parts.append(part())
        return join(word, parts)

    def _one(self) -> Filter:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(f"expected at most {_MAX_DEPTH} nested parts")
        try:
            if self._next.is_word("not"):
                self._take()
                return negate(self._one())
            if self._next.text == "(":
                self._take()
                found = self._either()
                self._expect(")")
                return found
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Filter:
        if self._next.is_word("exists"):
            self._take()
            return compare(self._key(), "exists", ())
        begin, key = self._next.begin, self._key()
        if self._next.is_word("exists"):
            self._take()
            return compare(key, "exists", ())
        if self._next.is_word("in", "not"):
            operator = "in"
            if self._take().text.lower() == "not":
                operator = "not in"
                if not self._take().is_word("in"):
                    self._fail("expected `in`", self._tokens[self._place - 1].begin)
            return self._compared(begin, key, operator, self._list())
        if self._next.kind != "sign" or self._next.text in "(),":
            self._fail("expected =, !=, <, <=, >, >=, `in` or `exists`")
        operator = self._take().text
        return self._compared(begin, key, operator.replace("==", "="), [self._value()])

    def _compared(self, begin: int, key: str, operator: str, values: list[Value]) -> Filter:
        try:
            return compare(key, operator, values)
        except UsageError as error:
            raise UsageError(f"{str(error).removesuffix('.')}: {self._marked(begin)}.") from None

    def _key(self) -> str:
        token = self._next
        if token.is_word("and", "or", "not", "in") or token.kind in ("sign", "end"):
            self._fail("expected a key")
        return self._unquoted(self._take())

    def _value(self) -> Value:
        token = self._next
        if token.is_word("null"):
            self._fail("expected a value; a missing one is `not exists KEY`")
        if token.is_word("and", "or", "not", "in", "exists") or token.kind in ("sign", "end"):
            self._fail("expected a value")
        self._take()
        if token.is_word("true", "false"):
            return token.text.lower() == "true"
        if token.kind == "word" and _NUMBER.fullmatch(token.text):
            return float(token.text)
        return self._unquoted(token)

    def _list(self) -> list[Value]:
        self._expect("(")
        values = [self._value()]
        while self._next.text == ",":
            self._take()
            values.append(self._value())
        self._expect(")")
        return values

    def _expect(self, sign: str) -> None:
        if self._next.kind != "sign" or self._next.text != sign:
            self._fail(f"expected `{sign}`")
        self._take()

    def _unquoted(self, token: _Token) -> str:
        return token.text if token.kind == "word" else re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL)

    def _fail(self, expected: str, begin: int | None = None) -> NoReturn:
        place = self._next.begin if begin is None else begin
        raise UsageError(f"the filter cannot be read: {expected} at {_HERE}: {self._marked(place)}")

    def _marked(self, place: int) -> str:
        """The expression with the place marked; of a long one, the part around it."""
        before, after = self._text[:place], self._text[place:]
        if len(before) > _SHOWN:
            before = f"...{before[-_SHOWN:]}"
        if len(after) > _SHOWN:
            after = f"{after[:_SHOWN]}..."
        return f"{before}{_HERE}{after}"
