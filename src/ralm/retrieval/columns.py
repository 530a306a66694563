"""The metadata of the passages of a segment by value, so that filters read no metadata of single passages.

Passages that follow each other and have the same metadata, such as those of a document, are a run. For each key and
kind of value, a column holds the distinct values in order, and the runs that have each. A list counts by its items, an
object by its keys (`author.name`); null is no value. The columns are written beside the passages of a segment.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.corpus.store import PASSAGES_FILE, PassageStore, arrow_texts
from ralm.errors import DamagedFolderError
from ralm.records import Metadata
from ralm.retrieval.filters import MAX_TEXT_BYTES, BoolArray, Condition, Value

Kind: TypeAlias = Literal["text", "number", "truth"]
COLUMNS_FILE: Final = "columns.arrow"
_SCHEMA: Final = pa.schema(
    [
        ("key", pa.large_binary()),
        ("kind", pa.large_binary()),
        ("texts", pa.large_list(pa.large_binary())),
        ("numbers", pa.large_list(pa.float64())),
        ("ends", pa.large_list(pa.int64())),
        ("runs", pa.large_list(pa.int32())),
    ]
)
"""A row for each column; the first row has the numbers of passages of the runs as `ends`."""


class Column(NamedTuple):
    """The values of one kind of a key, in order: texts as UTF-8, others as float64. The runs (int32) with value v are
    those from `ends[v]` to `ends[v + 1]` (int64), in order. StoredTexts are cut where no text of a filter reaches."""

    values: "Sequence[bytes] | NDArray[np.float64]"
    ends: NDArray[np.int64]
    runs: NDArray[np.int32]

    def runs_of(self, condition: Condition, values: Sequence[Value]) -> Iterator[NDArray[np.int32]]:
        """The runs with a value that fulfils a condition on values of this kind."""
        for begin, end in self._places(condition, [stored_value(value) for value in values]):
            yield self.runs[self.ends[begin] : self.ends[end]]

    def _places(self, condition: Condition, targets: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """Where the values begin and end that fulfil a condition."""
        values, every = self.values, len(self.values)
        match condition.operator:
            case "exists":
                yield 0, every
            case "in":
                yield from ((bisect_left(values, one), bisect_right(values, one)) for one in targets)
            case "<":
                yield 0, bisect_left(values, targets[0])
            case "<=":
                yield 0, bisect_right(values, targets[0])
            case ">":
                yield bisect_right(values, targets[0]), every
            case ">=":
                yield bisect_left(values, targets[0]), every


@dataclass(frozen=True, slots=True, eq=False)
class SegmentColumns:
    """The metadata of the passages of a segment: the number of passages of each run (int64), and the columns."""

    sizes_R: NDArray[np.int64]
    columns: dict[tuple[str, Kind], Column]

    def rows(self, runs: Sequence[NDArray[np.int32]]) -> BoolArray:
        """Which rows belong to any of some lists of runs."""
        found_R = np.zeros(len(self.sizes_R), np.bool_)
        for some in runs:
            found_R[some] = True
        return np.repeat(found_R, self.sizes_R)


def collect_columns(store: PassageStore) -> SegmentColumns:
    """The columns of the passages of a store, whose metadata is read once."""
    sizes = array("q")
    entries: dict[tuple[str, Kind], _Entries] = {}
    for run, (size, metadata) in enumerate(store.metadata_runs()):
        sizes.append(size)
        for key, kind, value in dict.fromkeys(_leaves(metadata)):
            if (key, kind) not in entries:
                entries[key, kind] = _Entries()
            entries[key, kind].add(run, value)
    columns = {name: entries[name].column() for name in sorted(entries)}
    return SegmentColumns(np.frombuffer(sizes, np.int64), columns)


class _Entries:
    """The values of one kind of a key as they are read, in little memory."""

    def __init__(self) -> None:
        self._runs = array("i")
        self._numbers = array("d")
        self._texts = bytearray()
        self._ends = array("q", [0])

    def add(self, run: int, value: bytes | float) -> None:
        self._runs.append(run)
        if isinstance(value, bytes):
            self._texts += value
            self._ends.append(len(self._texts))
        else:
            self._numbers.append(value)

    def column(self) -> Column:
        """The values in order, with the runs that have each."""
        values: Any
        if len(self._numbers):
            values, codes = np.unique(np.frombuffer(self._numbers), return_inverse=True)
        else:
            encoded = _texts(np.frombuffer(self._ends, np.int64), self._texts).dictionary_encode()
            order = _numbers(pc.sort_indices(encoded.dictionary), np.uint64)
            values = StoredTexts.of(pc.take(encoded.dictionary, _array(order)))
            ranks = np.empty(len(order), np.int64)
            ranks[order] = np.arange(len(order))
            codes = ranks[_numbers(encoded.indices, np.int32)]
        runs = np.frombuffer(self._runs, np.int32)[np.argsort(codes, kind="stable")]
        return Column(values, np.cumsum([0, *np.bincount(codes, minlength=len(values))], dtype=np.int64), runs)


class StoredTexts(Sequence[bytes]):
    """StoredTexts as UTF-8, one after the other in `content`; `ends` (int64) begins with 0."""

    def __init__(self, ends: NDArray[np.int64], content: memoryview) -> None:
        self.ends, self.content = ends, content

    @classmethod
    def of(cls, texts: pa.Array) -> "StoredTexts":
        """The texts of a large_binary array, whose buffers are not copied."""
        _, ends, content = texts.buffers()
        places = np.frombuffer(ends, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        return cls(places, memoryview(content or b""))

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes]: ...

    def __getitem__(self, place: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        return bytes(self.content[self.ends[place] : self.ends[place + 1]])


def write_columns(folder: Path) -> bool:
    """Write the columns of the passages in the folder of a segment, which are complete, beside them; returns whether
    they have any metadata, without which nothing is written."""
    columns = collect_columns(PassageStore(folder / PASSAGES_FILE))
    if not columns.columns:
        return False
    none, sizes = np.zeros(0), Column(np.zeros(0), columns.sizes_R, np.zeros(0, np.int32))
    rows = [(("", "sizes"), sizes), *columns.columns.items()]
    texts = [
        one.values if isinstance(one.values, StoredTexts) else StoredTexts.of(arrow_texts([], pa.large_binary()))
        for _, one in rows
    ]
    numbers = [none if isinstance(one.values, StoredTexts) else np.asarray(one.values, np.float64) for _, one in rows]
    arrays = [
        *(
            arrow_texts([name[place].encode("utf-8", "surrogatepass") for name, _ in rows], pa.large_binary())
            for place in (0, 1)
        ),
        _lists([_texts(one.ends, one.content) for one in texts]),
        *(_lists([_array(one) for one in some]) for some in (numbers, [one.ends for _, one in rows])),
        _lists([_array(one.runs) for _, one in rows]),
    ]
    batch = pa.record_batch(arrays, schema=_SCHEMA)
    with pa.OSFile(str(folder / COLUMNS_FILE), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_batch(batch)
    return True


class ColumnFile:
    """The columns of a segment in a file, which is opened at once and mapped on first use.

    Raises DamagedFolderError if it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._errors():
            self._source = pa.memory_map(str(path))

    def read(self, passages: int) -> SegmentColumns:
        """The columns, which must be those of so many passages."""
        with self._errors():
            file = pa.ipc.open_file(self._source)
            if file.schema != _SCHEMA or file.num_record_batches != 1:
                raise pa.ArrowInvalid("it has other fields")
            batch = file.get_batch(0)
            batch.validate(full=True)
            names, kinds = (StoredTexts.of(batch.column(place)) for place in (0, 1))
            texts, numbers, ends, runs = (_parts_of(batch.column(place)) for place in (2, 3, 4, 5))
            columns = {}
            for place in range(1, len(names)):
                kind: Any = str(kinds[place], "utf-8")
                values: Any = StoredTexts.of(texts[place]) if kind == "text" else _numbers(numbers[place], np.float64)
                column = Column(values, _numbers(ends[place], np.int64), _numbers(runs[place], np.int32))
                columns[str(names[place], "utf-8", "surrogatepass"), kind] = column
            sizes_R = _numbers(ends[0], np.int64)
            if sizes_R.sum() != passages or not all(_fits(one, len(sizes_R)) for one in columns.values()):
                raise ValueError("its runs do not fit the passages")
            return SegmentColumns(sizes_R, columns)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, ValueError, IndexError) as error:
            raise DamagedFolderError(f"{self._path} is damaged ({error}); build the index again.") from None


_KINDS: Final = {"float64": pa.float64(), "int64": pa.int64(), "int32": pa.int32(), "uint64": pa.uint64()}


def _fits(column: Column, runs: int) -> bool:
    """Whether a column divides its runs among its values, and has no other runs than there are."""
    ends, own = column.ends, column.runs
    divides = (
        len(ends) == len(column.values) + 1 and ends[0] == 0 and ends[-1] == len(own) and (np.diff(ends) >= 0).all()
    )
    return bool(divides and (len(own) == 0 or (own.min() >= 0 and own.max() < runs)))


def _array(values: NDArray[Any]) -> pa.Array:
    """Numbers as an array of Arrow; `pa.array` would import pandas."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(_KINDS[values.dtype.name], len(values), [None, pa.py_buffer(values)])


def _numbers(values: pa.Array, kind: type[Any]) -> NDArray[Any]:
    """An array of Arrow without nulls as numbers, which are not copied."""
    buffer = values.buffers()[1]
    return np.frombuffer(buffer or b"", kind)[values.offset : values.offset + len(values)]


def _texts(ends: NDArray[np.int64], content: Any) -> pa.Array:
    """StoredTexts as a large_binary array."""
    ends = np.ascontiguousarray(ends)
    return pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(content)])


def _lists(parts: Sequence[pa.Array]) -> pa.Array:
    """Arrays as one array of lists."""
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return pa.LargeListArray.from_arrays(_array(ends), pa.concat_arrays(parts))


def _parts_of(lists: pa.Array) -> list[pa.Array]:
    """The lists of an array of lists."""
    ends = _numbers(lists.offsets, np.int64).tolist()
    return [lists.values.slice(begin, end - begin) for begin, end in pairwise(ends)]


def _leaves(metadata: Metadata) -> Iterator[tuple[str, Kind, Any]]:
    """The keys and values of metadata, as columns hold them."""
    left: list[tuple[str, JsonValue]] = [*metadata.items()]
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += ((f"{key}.{name}", one) for name, one in value.items())
        elif isinstance(value, list):
            left += ((key, one) for one in value)
        elif value is not None:
            yield key, value_kind(value), stored_value(value)


def value_kind(value: Value) -> Kind:
    """The kind of a value."""
    return "text" if isinstance(value, str) else "truth" if isinstance(value, bool) else "number"


def stored_value(value: Value) -> Any:
    """A value as columns hold it. A text that is cut is still longer than one of a filter, so both compare alike."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")[: MAX_TEXT_BYTES + 1]
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
