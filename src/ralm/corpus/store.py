"""The passages of a corpus on disk: one Arrow file, written as a stream, read memory-mapped, any passage by number."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, overload

import pyarrow as pa

from ralm.errors import DamagedFolderError
from ralm.records import Passage

PASSAGES: Final = "passages.arrow"
ROWS_A_BATCH: Final = 8192
_SCHEMA: Final = pa.schema([("document_id", pa.string()), ("title", pa.string()), ("text", pa.string())])


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

    Raises DamagedFolderError where the file is no such store or truncated.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = pa.ipc.open_file(pa.memory_map(str(path)))
        except (pa.ArrowInvalid, OSError) as error:
            raise DamagedFolderError(f"{path} is not a store of passages, or truncated: {error}") from None
        if self._file.schema != _SCHEMA:
            raise DamagedFolderError(f"{path} is not a store of passages: its columns are {self._file.schema.names}.")
        self._batches: list[list[pa.Array] | None] = [None] * self._file.num_record_batches
        last = len(self._batches) - 1
        self._length = last * ROWS_A_BATCH + len(self._columns(last)[0]) if self._batches else 0

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
        batch, row = divmod(int(number), ROWS_A_BATCH)
        document_id, title, text = (column[row].as_py() for column in self._columns(batch))
        return Passage(number=int(number), document_id=document_id, title=title, text=text)

    def __reduce__(self) -> tuple[type["PassageStore"], tuple[Path]]:
        return PassageStore, (self._path,)

    def _columns(self, batch: int) -> list[pa.Array]:
        columns = self._batches[batch]
        if columns is None:
            columns = self._batches[batch] = self._file.get_batch(batch).columns
        return columns


def _record_batch(passages: list[Passage]) -> pa.RecordBatch:
    columns = [
        [passage.document_id for passage in passages],
        [passage.title for passage in passages],
        [passage.text for passage in passages],
    ]
    return pa.record_batch([pa.array(column, pa.string()) for column in columns], schema=_SCHEMA)
