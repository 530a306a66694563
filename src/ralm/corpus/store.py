"""Stores the passages of a corpus in one Arrow file, written as a stream and memory-mapped for access by number.

Every record batch except the last has the same number of rows, so the number of a passage gives its place. Strings are
read directly from Arrow's buffers (offsets and UTF-8 bytes), without creating Arrow scalars. Each batch is checked on
first use, since memory-mapped offsets that are wrong could crash the process.

The column `metadata` holds JSON objects. An empty string means the same metadata as in the row before, within a batch,
so the passages of a document store its metadata once. Rows before the first object have no metadata.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NoReturn, TypeAlias, TypeVar, overload

import numpy as np
import pyarrow as pa

from ralm.corpus.documents import metadata_from_json, metadata_to_json
from ralm.errors import CorpusError, DamagedFolderError, UsageError
from ralm.records import ORIGIN, IntArray, Metadata, Passage
from ralm.validation import is_utf8

PASSAGES_FILE: Final = "passages.arrow"
ROWS_A_BATCH: Final = 8192
# the texts of a batch may exceed the 2 GiB limit of `string` offsets, for example if they are whole books
_SCHEMA: Final = pa.schema(
    [
        ("document_id", pa.string()),
        ("title", pa.string()),
        ("text", pa.large_string()),
        ("metadata", pa.large_string()),
    ]
)
_ONLY_ORIGIN: Final = re.compile(rb'\{"%b":"[^"\\]*+"\}' % ORIGIN.encode())
_AS_BEFORE: Final = b""
_NOTHING: Final = metadata_to_json({}).encode()

_Column: TypeAlias = tuple[memoryview, memoryview]
"""The string offsets of a column, and its bytes."""
_Batch: TypeAlias = tuple[_Column, _Column, _Column, _Column | None]
"""Document ids, titles, texts, and metadata, which is None if no passage of the batch has any."""
_T = TypeVar("_T")


def write_passages(path: Path, passages: Iterable[Passage]) -> Iterator[Passage]:
    """Write passages to `path` and yield each one, so that they can be indexed in the same pass.

    The file is complete after the last passage. Numbers start at 0, in order. UsageError for text that is not Unicode.
    """
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        batch: list[Passage] = []
        for number, passage in enumerate(passages):
            assert passage.number == number, "passages must be numbered in order, from 0"
            batch.append(passage)
            if len(batch) == ROWS_A_BATCH:
                writer.write_batch(_record_batch(batch))
                batch = []
            yield passage
        if batch:
            writer.write_batch(_record_batch(batch))


def join_passages(path: Path, ranges: "Iterable[tuple[PassageStore, range]]") -> None:
    """Write the passages of ranges of stores to `path`, as `write_passages` writes them, without reading one by one."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        joined = _JoinedBatch()
        for store, rows in ranges:
            begin = rows.start
            while begin < rows.stop:
                end = min(rows.stop, begin + joined.room, (begin // ROWS_A_BATCH + 1) * ROWS_A_BATCH)
                joined.add(store, begin, end)
                begin = end
                if not joined.room:
                    writer.write_batch(joined.batch())
                    joined = _JoinedBatch()
        if joined.room < ROWS_A_BATCH:
            writer.write_batch(joined.batch())


class _JoinedBatch:
    """A batch of passages of stores."""

    def __init__(self) -> None:
        self.room = ROWS_A_BATCH
        self._columns: list[list[pa.Array]] = [[] for _ in _SCHEMA]
        self._before = _NOTHING

    def add(self, store: "PassageStore", begin: int, end: int) -> None:
        """Append passages of one batch of a store."""
        for column, array in zip(self._columns, store.columns(begin, end), strict=True):
            column.append(array)
        first, last = (store.metadata_json(row) for row in (begin, end - 1))
        head = arrow_texts([_AS_BEFORE if first == self._before else first], pa.large_string())
        self._columns[-1][-1:] = [head, self._columns[-1][-1].slice(1)]
        self._before = last
        self.room -= end - begin

    def batch(self) -> pa.RecordBatch:
        """Return the batch, with an array for each column."""
        return pa.record_batch([pa.concat_arrays(parts) for parts in self._columns], schema=_SCHEMA)


class PassageStore(Sequence[Passage]):
    """The passages of a corpus by number, memory-mapped: opening reads no texts, reading a passage takes microseconds.

    Negative numbers are not supported: -1 means "no passage" elsewhere and raises IndexError here. Raises
    DamagedFolderError, on opening or on reading, if the file is truncated, altered or not a store.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._source = self._guarded(lambda: pa.memory_map(str(path)))
        self._file = self._guarded(lambda: pa.ipc.open_file(self._source))
        columns = self._guarded(lambda: ", ".join(f"{field.name} ({field.type})" for field in self._file.schema))
        if self._file.schema != _SCHEMA:
            raise DamagedFolderError(f"{path} is not a store of passages: its columns are {columns}.")
        whole = self._guarded(self._source.read_buffer)
        self._mapped = range(whole.address, whole.address + whole.size)
        self._batches: list[_Batch | None] = [None] * self._file.num_record_batches
        self._last_parsed: tuple[int, int, Metadata] = (-1, -1, {})
        self._length = self._count()

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, number: int) -> Passage: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Passage]: ...

    def __getitem__(self, number: int | slice) -> Passage | Sequence[Passage]:
        """Return the passage with this number; for a slice a list."""
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not 0 <= number < self._length:
            raise IndexError(f"there is no passage {number}: the corpus has {self._length}")
        number = int(number)
        (document_ids, titles, texts, stored), row = self._place(number)
        metadata = {} if stored is None else self._metadata(stored, number)
        try:
            return Passage(
                number, _string(document_ids, row), _string(titles, row), _string(texts, row), metadata=metadata
            )
        except UnicodeDecodeError:
            self._damaged(f"passage {number} is not UTF-8")

    def origins(self) -> Iterator[tuple[int, str, str]]:
        """Yield the number, document id and title of every passage, without reading the texts."""
        for number in range(self._length):
            (document_ids, titles, _, _), row = self._place(number)
            try:
                yield number, _string(document_ids, row), _string(titles, row)
            except UnicodeDecodeError:
                self._damaged(f"the title of passage {number} is not UTF-8")

    def documents(self) -> Iterator[tuple[str, range]]:
        """Yield the documents in order, each with its id and the numbers of its passages, without reading the texts."""
        import pyarrow.compute as pc

        first, document = 0, ""
        for batch in range(len(self._batches)):
            ids, begin = self._texts(batch, 0), batch * ROWS_A_BATCH
            changes = true_places(pc.not_equal(ids.slice(1), ids.slice(0, len(ids) - 1))) + 1
            for number in [begin, *(begin + changes).tolist()]:
                new = self._guarded(partial(bytes.decode, ids[number - begin].as_py()))
                if number and new != document:
                    yield document, range(first, number)
                    first = number
                document = new
        if self._length:
            yield document, range(first, self._length)

    def columns(self, begin: int, end: int) -> list[pa.Array]:
        """Return the columns of consecutive passages of a batch, as they are stored."""
        batch, row = divmod(begin, ROWS_A_BATCH)
        self._mapped_batch(batch)
        return [column.slice(row, end - begin) for column in self._read(batch).columns]

    def origin_texts(self, titles: bool) -> pa.ChunkedArray:
        """Return the document ids of all passages, or their titles, as bytes."""
        return pa.chunked_array([self._texts(batch, int(titles)) for batch in range(len(self._batches))], pa.binary())

    def metadata_runs(self) -> Iterator[tuple[int, Metadata]]:
        """Yield how many passages follow each other with the same metadata, and it; an origin alone is not parsed."""
        for batch in range(len(self._batches)):
            *_, stored = self._mapped_batch(batch)
            size, first = min(ROWS_A_BATCH, self._length - batch * ROWS_A_BATCH), batch * ROWS_A_BATCH
            written = [] if stored is None else np.flatnonzero(np.diff(np.asarray(stored[0]))).tolist()
            for begin, end in pairwise(sorted({0, *written, size})):
                if stored is None or _ONLY_ORIGIN.fullmatch(_bytes(stored, begin)):
                    yield end - begin, {}
                else:
                    yield end - begin, self._metadata(stored, first + begin)

    def check(self) -> None:
        """Read every passage; DamagedFolderError if one is damaged."""
        for batch in range(len(self._batches)):
            read = self._read(batch)
            self._guarded(lambda read=read: read.validate(full=True))  # type: ignore[misc]
            *_, stored = self._mapped_batch(batch)
            if stored is not None:
                for row in range(read.num_rows):
                    self._metadata(stored, batch * ROWS_A_BATCH + row)

    def _count(self) -> int:
        full = len(self._batches) - 1
        if full < 0:
            return 0
        if full and self._read(0).num_rows != ROWS_A_BATCH:
            raise DamagedFolderError(
                f"{self._path} is not a store of passages: its batches have an unexpected size. Build it again."
            )
        return full * ROWS_A_BATCH + int(self._read(full).num_rows)

    def _mapped_batch(self, batch: int) -> _Batch:
        """Return the columns of a batch, which is checked on first use."""
        if (columns := self._batches[batch]) is not None:
            return columns
        read = self._read(batch)
        if read.num_rows != min(ROWS_A_BATCH, self._length - batch * ROWS_A_BATCH):
            self._damaged(f"batch {batch} has {read.num_rows:,} passages")
        document_ids, titles, texts, metadata = (self._column(column) for column in read.columns)
        mapped = self._batches[batch] = (document_ids, titles, texts, metadata if metadata[0][-1] > 0 else None)
        return mapped

    def _texts(self, batch: int, column: int) -> pa.Array:
        """Return the document ids or titles of a batch as bytes."""
        self._mapped_batch(batch)
        return self._read(batch).column(column).cast(pa.binary())

    def _place(self, place: int) -> tuple[_Batch, int]:
        """Return the columns of the batch with this passage, and its row in them."""
        batch, row = divmod(place, ROWS_A_BATCH)
        return self._mapped_batch(batch), row

    def metadata_json(self, number: int) -> bytes:
        """Return the metadata of a passage, as JSON."""
        (*_, stored), row = self._place(number)
        written = -1 if stored is None else _metadata_row(stored, row)
        return _NOTHING if stored is None or written < 0 else bytes(_bytes(stored, written))

    def _metadata(self, stored: _Column, place: int) -> Metadata:
        """Return the metadata of a passage; the last object is kept: passages of a document follow each other."""
        batch, row = divmod(place, ROWS_A_BATCH)
        row = _metadata_row(stored, row)
        if row < 0:
            return {}
        if self._last_parsed[:2] == (batch, row):
            return self._last_parsed[2]
        try:
            metadata = metadata_from_json(_string(stored, row))
        except (ValueError, RecursionError):
            self._damaged(f"the metadata of passage {batch * ROWS_A_BATCH + row} is not a JSON object")
        self._last_parsed = (batch, row, metadata)
        return metadata

    def _column(self, column: pa.Array) -> _Column:
        """Return the buffers of a column, which must be in the file uncompressed and without nulls."""
        width = np.int64 if column.type == pa.large_string() else np.int32
        # Private: pyarrow's buffers inside a memory map; round trips.
        validity, places, content = column.buffers()
        if column.offset or validity is not None or places is None or not self._holds(places, content):
            self._damaged("a column has an unexpected layout")
        if places.size < (len(column) + 1) * np.dtype(width).itemsize:
            self._damaged("a column is truncated")
        offsets = np.frombuffer(places, width, len(column) + 1)
        if offsets[0] < 0 or (np.diff(offsets) < 0).any() or offsets[-1] > (content.size if content else 0):
            self._damaged("its string offsets are invalid")
        return offsets.data, memoryview(content or b"")

    def _holds(self, *buffers: pa.Buffer | None) -> bool:
        """Return whether the buffers lie inside the mapped file."""
        filled = [part for part in buffers if part and part.size]
        return all(part.address in self._mapped and part.address + part.size - 1 in self._mapped for part in filled)

    def _read(self, batch: int) -> pa.RecordBatch:
        return self._guarded(lambda: self._file.get_batch(batch))

    def _damaged(self, how: str) -> NoReturn:
        raise DamagedFolderError(f"{self._path} is damaged: {how}; build the index again.")

    def _guarded(self, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except FileNotFoundError:
            raise DamagedFolderError(f"{self._path} is missing; build the index again.") from None
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DamagedFolderError(
                f"{self._path} is truncated or not a store of passages ({error}); build the index again."
            ) from None


def true_places(mask: pa.Array | pa.ChunkedArray) -> IntArray:
    """Return the places (int64, rising) of an array of Arrow that are true; `to_numpy` would import pandas."""
    import pyarrow.compute as pc

    places = pc.indices_nonzero(mask)
    return np.frombuffer(places.buffers()[1], np.uint64, len(places)).astype(np.int64)


def _metadata_row(stored: _Column, row: int) -> int:
    """Return the row that holds the metadata of a row: the last one up to it with an object; -1 if there is none."""
    ends, _ = stored
    return bisect_left(ends, ends[row + 1], 0, row + 2) - 1


def _string(column: _Column, row: int) -> str:
    return str(_bytes(column, row), "utf-8")


def _bytes(column: _Column, row: int) -> memoryview:
    places, content = column
    return content[places[row] : places[row + 1]]


def _record_batch(passages: list[Passage]) -> pa.RecordBatch:
    try:
        columns = [
            [passage.document_id.encode() for passage in passages],
            [passage.title.encode() for passage in passages],
            [passage.text.encode() for passage in passages],
            _metadata_column(passages),
        ]
    except UnicodeEncodeError:
        texts = ((passage, (passage.document_id, passage.title, passage.text)) for passage in passages)
        bad = next(passage for passage, parts in texts if not all(map(is_utf8, parts)))
        raise UsageError(
            f"passage {bad.number}, of the document {bad.document_id!r}, holds a lone surrogate (half of a character), "
            "which is not valid text."
        ) from None
    arrays = [arrow_texts(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=_SCHEMA)


def arrow_texts(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Return an array of Arrow without importing pandas as `pa.array` does; CorpusError if the values are too long."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int64)
    if kind in (pa.string(), pa.binary()):
        if ends[-1] > np.iinfo(np.int32).max:
            raise CorpusError(f"the ids or titles of {len(values):,} passages have over 2 GiB; shorten them.")
        ends = ends.astype(np.int32)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def _metadata_column(passages: list[Passage]) -> list[bytes]:
    """Return the metadata of passages as JSON, with `_AS_BEFORE` for an object that equals the one before as JSON."""
    column: list[bytes] = []
    metadata, as_json, before = None, b"", _NOTHING
    for passage in passages:
        if passage.metadata is not metadata:  # the passages of a document share one object
            metadata = passage.metadata
            try:
                as_json = metadata_to_json(metadata).encode()
            except (TypeError, ValueError, RecursionError) as error:
                name = repr(passage.document_id)
                raise UsageError(f"the metadata of the document {name} is not JSON: {error}.") from None
        column.append(_AS_BEFORE if as_json == before else as_json)
        before = as_json
    return column
