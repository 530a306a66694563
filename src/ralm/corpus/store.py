"""The passages of a corpus on disk: one Arrow file, written as a stream, read memory-mapped, any passage by number.

Every record batch but the last has the same number of rows, so a number says where its passage is. Strings are read
from Arrow's buffers, offsets and UTF-8 bytes, without the scalars it would make on the way.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias, overload

import pyarrow as pa

from ralm.errors import DamagedFolderError
from ralm.records import Passage

PASSAGES: Final = "passages.arrow"
ROWS_A_BATCH: Final = 8192
# a batch of texts may pass the 2 GiB that the offsets of `string` reach: they may be whole books
_SCHEMA: Final = pa.schema([("document_id", pa.string()), ("title", pa.string()), ("text", pa.large_string())])

_Column: TypeAlias = tuple[memoryview, memoryview]
"""The offsets of the strings of a column, and their bytes."""
_Batch: TypeAlias = tuple[_Column, _Column, _Column]


def write_passages(path: Path, passages: Iterable[Passage]) -> Iterator[Passage]:
    """Write passages to `path` and hand each one on, so that they can be indexed in the same pass.

    Holds one batch in memory. The file is complete when the iterator is exhausted. Numbers must run from 0.
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


class PassageStore(Sequence[Passage]):
    """The passages of a corpus by number, memory-mapped: opening reads nothing, and a passage takes microseconds.

    No number but 0 to the length is a passage's: -1 stands for "no passage" elsewhere and raises IndexError here.
    Pickled it is its path, so that other processes map the same file. Raises DamagedFolderError where the file is no
    such store, or truncated.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._guarded(lambda: pa.ipc.open_file(pa.memory_map(str(path))))
        if not _is_store(self._file.schema):
            columns = ", ".join(f"{field.name} ({field.type})" for field in self._file.schema)
            raise DamagedFolderError(f"{path} is not a store of passages: its columns are {columns}.")
        self._batches: list[_Batch | None] = [None] * self._file.num_record_batches
        self._length = self._count()

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, number: int) -> Passage: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Passage]: ...

    def __getitem__(self, number: int | slice) -> Passage | Sequence[Passage]:
        """The passage with this number; a slice gives a list."""
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not 0 <= number < self._length:
            raise IndexError(f"there is no passage {number}: the corpus has {self._length}")
        number = int(number)
        batch, row = divmod(number, ROWS_A_BATCH)
        document_ids, titles, texts = self._batches[batch] or self._map(batch)
        return Passage(number, _string(document_ids, row), _string(titles, row), _string(texts, row))

    def origins(self) -> Iterator[tuple[int, str, str]]:
        """The number, document id and title of every passage; their texts are not read."""
        for batch in range(len(self._batches)):
            document_ids, titles, _ = self._batches[batch] or self._map(batch)
            for row in range(min(ROWS_A_BATCH, self._length - batch * ROWS_A_BATCH)):
                yield batch * ROWS_A_BATCH + row, _string(document_ids, row), _string(titles, row)

    def __reduce__(self) -> tuple[type["PassageStore"], tuple[Path]]:
        return PassageStore, (self._path,)

    def _count(self) -> int:
        full = len(self._batches) - 1
        if full < 0:
            return 0
        if full and self._read(0).num_rows != ROWS_A_BATCH:
            raise DamagedFolderError(f"{self._path} is not a store of passages: it has other batches. Build it again.")
        return full * ROWS_A_BATCH + int(self._read(full).num_rows)

    def _map(self, batch: int) -> _Batch:
        document_ids, titles, texts = map(_column, self._read(batch).columns)
        self._batches[batch] = (document_ids, titles, texts)
        return document_ids, titles, texts

    def _read(self, batch: int) -> pa.RecordBatch:
        return self._guarded(lambda: self._file.get_batch(batch))

    def _guarded(self, read: Callable[[], pa.RecordBatchFileReader]) -> pa.RecordBatchFileReader:
        try:
            return read()
        except FileNotFoundError:
            raise DamagedFolderError(f"{self._path} is missing; build the index again.") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise DamagedFolderError(
                f"{self._path} is truncated or not a store of passages ({error}); build the index again."
            ) from None


def _is_store(schema: pa.Schema) -> bool:
    """Whether these are our columns; either width of string will do."""
    strings = (pa.string(), pa.large_string())
    return schema.names == _SCHEMA.names and all(field.type in strings for field in schema)


def _column(column: pa.Array) -> _Column:
    assert column.offset == 0, "a batch as it stands in the file"
    _validity, places, content = column.buffers()
    offsets = memoryview(places)
    return offsets.cast("q") if column.type == pa.large_string() else offsets.cast("i"), memoryview(content or b"")


def _string(column: _Column, row: int) -> str:
    places, content = column
    return str(content[places[row] : places[row + 1]], "utf-8")


def _record_batch(passages: list[Passage]) -> pa.RecordBatch:
    columns = [
        [passage.document_id for passage in passages],
        [passage.title for passage in passages],
        [passage.text for passage in passages],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=_SCHEMA)
