"""The metadata of the passages of an index as columns, and which passages have values that fulfil a comparison.

A column has the values of one kind of a key: texts, numbers or truth values, alone or as items of lists. A list counts
by its items, an object by its keys (`author.name`); null is no value. Each value has the range of the passages that
have it: those that follow each other with the same metadata, such as the passages of a document.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.corpus.documents import some_names
from ralm.corpus.store import PASSAGES_FILE, PassageStore, arrow_texts, true_places
from ralm.errors import DamagedFolderError, UsageError
from ralm.records import ORIGIN, BoolArray, Metadata
from ralm.retrieval.filters import Value

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
            return self._origins_with(key, operator, [_stored(value) for value in values])
        starts_N = np.zeros(len(self._passages) + 1, np.int32)
        for column in columns:
            same = [_stored(value) for value in values if _kind(value) == column.kind]
            compared = "in" if operator == "contains" and column.is_listed else operator
            places = _places(column.values, compared, same)
            np.add.at(starts_N, column.first_V[places], 1)
            np.subtract.at(starts_N, column.last_V[places], 1)
        return np.cumsum(starts_N[:-1]) > 0

    def _origins_with(self, key: str, operator: str, values: Sequence[bytes]) -> BoolArray:
        """Return which passages have an id or title, unless empty, that fulfils a comparison."""
        texts = self._passages.origin_texts(key == "title")
        mask_N = np.zeros(len(self._passages), np.bool_)
        mask_N[_places(texts, operator, values)] = True
        mask_N[_places(texts, "in", [b""])] = False
        return mask_N

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
            names = [_read_name(name.as_py()) for name in batch["column"].dictionary]
            bounds = np.searchsorted(code_V, np.arange(len(names) + 1)).tolist()
            for (key, kind, is_listed), begin, end in zip(names, bounds[:-1], bounds[1:], strict=True):
                values = batch["value"].slice(begin, end - begin)
                values = values if kind == "text" else values.cast(pa.binary(8)).view(pa.float64())
                column = _Column(kind, is_listed, values, first_V[begin:end], last_V[begin:end])
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


def _read_name(name: bytes) -> tuple[str, Any, bool]:
    """Return the key of a column, its kind, and whether its values are items of lists."""
    kind, is_listed, key = name.decode("utf-8", "surrogatepass").split(" ", 2)
    return key, kind, is_listed == "1"


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
