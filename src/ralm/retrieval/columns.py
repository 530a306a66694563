"""The metadata of the passages of an index by key, so that filters read no metadata of single passages.

Passages that follow each other and have the same metadata, such as those of a document, are a run. A column holds the
values of one kind of a key, beside the run of each. A list counts by its items, an object by its keys (`author.name`);
null is no value. The columns are written beside the passages.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.corpus.store import PASSAGES_FILE, PassageStore, arrow_texts
from ralm.errors import DamagedFolderError
from ralm.records import BoolArray, Metadata

Kind: TypeAlias = Literal["text", "number", "truth"]
RunArray: TypeAlias = NDArray[np.int32]
COLUMNS_FILE: Final = "columns.arrow"
_SCHEMA: Final = pa.schema(
    [
        ("key", pa.large_binary()),
        ("kind", pa.large_binary()),
        ("listed", pa.int64()),
        ("runs", pa.large_list(pa.int32())),
        ("texts", pa.large_list(pa.large_binary())),
        ("numbers", pa.large_list(pa.float64())),
    ]
)
"""A row for each column; the first row has the numbers of passages of the runs as `runs`."""
_KINDS: Final = {"float64": pa.float64(), "int64": pa.int64(), "int32": pa.int32()}


class ColumnName(NamedTuple):
    """A key and the kind of its values; `listed` are the items of lists."""

    key: str
    kind: Kind
    listed: bool


class Column(NamedTuple):
    """Values, UTF-8 (large_binary) or float64, and the run (int32) that has each."""

    values: pa.Array
    runs: RunArray


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The metadata of the passages of an index: the number of passages of each run, and the columns."""

    sizes_R: RunArray
    columns: dict[ColumnName, Column]

    def rows(self, runs: RunArray) -> BoolArray:
        """Return which rows belong to one of these runs."""
        found_R = np.zeros(len(self.sizes_R), np.bool_)
        found_R[runs] = True
        return np.repeat(found_R, self.sizes_R)


def write_columns(folder: Path) -> None:
    """Write the columns of the passages in a folder, which are complete, beside them, if they have any metadata. There
    may be as many columns as values."""
    sizes, texts = array("i"), defaultdict[ColumnName, bytearray](bytearray)
    runs: defaultdict[ColumnName, array[int]] = defaultdict(lambda: array("i"))
    lengths: defaultdict[ColumnName, array[int]] = defaultdict(lambda: array("q"))
    numbers: defaultdict[ColumnName, array[float]] = defaultdict(lambda: array("d"))
    for run, (size, metadata) in enumerate(PassageStore(folder / PASSAGES_FILE).metadata_runs()):
        sizes.append(size)
        for name, value in dict.fromkeys(_leaves(metadata)):
            runs[name].append(run)
            if isinstance(value, bytes):
                texts[name] += value
                lengths[name].append(len(value))
            else:
                numbers[name].append(value)
    if not runs:
        return
    names = sorted(runs)
    ends = np.append(0, _joined(lengths, names, np.int64)).cumsum()
    every_text = pa.py_buffer(b"".join(texts[name] for name in names if name in texts))
    content = pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(ends), every_text])
    arrays = [
        arrow_texts([b"", *(name.key.encode("utf-8", "surrogatepass") for name in names)], pa.large_binary()),
        arrow_texts([b"number", *(name.kind.encode() for name in names)], pa.large_binary()),
        arrow_numbers(np.array([False, *(name.listed for name in names)], np.int64)),
        _lists(
            [sizes, *(runs[name] for name in names)], arrow_numbers(np.append(sizes, _joined(runs, names, np.int32)))
        ),
        _lists([(), *(lengths.get(name, ()) for name in names)], content),
        _lists([(), *(numbers.get(name, ()) for name in names)], arrow_numbers(_joined(numbers, names, np.float64))),
    ]
    with pa.OSFile(str(folder / COLUMNS_FILE), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))


class ColumnFile:
    """The columns in a file, which is opened at once and mapped on first use.

    Raises DamagedFolderError if it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._errors():
            self._source = pa.memory_map(str(path))

    def read(self, passages: int) -> Columns:
        """Return the columns, which must be those of so many passages."""
        with self._errors():
            file = pa.ipc.open_file(self._source)
            if file.schema != _SCHEMA or file.num_record_batches != 1:
                raise pa.ArrowInvalid("it has other fields")
            batch = file.get_batch(0)
            batch.validate(full=True)
            keys, kinds, listed, runs, texts, numbers = batch.columns
            columns = {}
            for place in range(1, batch.num_rows):
                kind: Any = kinds[place].as_py().decode()
                key = keys[place].as_py().decode("utf-8", "surrogatepass")
                values = (texts if kind == "text" else numbers)[place].values
                name = ColumnName(key, kind, bool(listed[place].as_py()))
                columns[name] = Column(values, _runs(runs[place].values))
            sizes_R = _runs(runs[0].values)
            if sizes_R.sum() != passages or not all(_fits(column, len(sizes_R)) for column in columns.values()):
                raise ValueError("its runs do not fit the passages")
            return Columns(sizes_R, columns)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, ValueError, IndexError, AttributeError) as error:
            raise DamagedFolderError(f"{self._path} is damaged ({error}); build the index again.") from None


def _fits(column: Column, runs: int) -> bool:
    """Return whether a column has a run for each value, and no other runs than there are."""
    own = column.runs
    return len(own) == len(column.values) and (len(own) == 0 or bool(own.min() >= 0 and own.max() < runs))


def arrow_numbers(values: NDArray[Any]) -> pa.Array:
    """Return numbers as an array of Arrow; `pa.array` would import pandas."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(_KINDS[values.dtype.name], len(values), [None, pa.py_buffer(values)])


def _runs(values: pa.Array) -> RunArray:
    """Return an array of Arrow without nulls as integers, which are not copied."""
    return np.frombuffer(values.buffers()[1] or b"", np.int32)[values.offset : values.offset + len(values)]


def _joined(
    columns: "dict[ColumnName, array[Any]]", names: Sequence[ColumnName], kind: type[np.number]
) -> NDArray[Any]:
    """Return the numbers of columns, one column after the other."""
    return np.frombuffer(b"".join(columns[name] for name in names if name in columns), kind)


def _lists(parts: Sequence[Sized], values: pa.Array) -> pa.Array:
    """Return values as an array of lists, each as long as one of these parts."""
    return pa.LargeListArray.from_arrays(arrow_numbers(np.cumsum([0, *map(len, parts)], dtype=np.int64)), values)


def _leaves(metadata: Metadata) -> Iterator[tuple[ColumnName, bytes | float]]:
    """Yield the values of metadata with their columns."""
    left: list[tuple[str, JsonValue, bool]] = [(key, value, False) for key, value in metadata.items()]
    while left:
        key, value, listed = left.pop()
        if isinstance(value, dict):
            left += ((f"{key}.{name}", inner, listed) for name, inner in value.items())
        elif isinstance(value, list):
            left += ((key, item, True) for item in value)
        elif value is not None:
            yield ColumnName(key, kind_of_value(value), listed), stored_value(value)


def kind_of_value(value: str | float | bool) -> Kind:
    """Return the kind of a value."""
    return "text" if isinstance(value, str) else "truth" if isinstance(value, bool) else "number"


def stored_value(value: str | float | bool) -> bytes | float:
    """Return a value as columns hold it."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    try:
        return float(value) + 0.0  # -0.0 becomes 0.0
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
