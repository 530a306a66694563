"""Reads Parquet, and says which columns of any table with an Arrow schema are needed."""

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ralm.corpus.formats.file import File
from ralm.corpus.maker import DocumentMaker
from ralm.corpus.text import open_file
from ralm.errors import CorpusError
from ralm.records import Document

_ROWS_A_BATCH: Final = 1024
_BYTES_A_BATCH: Final = 1 << 25
_BYTES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def parquet_documents(file: File, maker: DocumentMaker) -> Iterator[Document]:
    """One document per row, a batch of rows in memory; rows are numbered from 0."""
    for row, record in enumerate(_records(file, maker)):
        yield maker.document(record, f"{file.path}, row {row}", f"{file.prefix}{row}")


def needed_columns(schema: pa.Schema, maker: DocumentMaker, where: str) -> list[str]:
    """The columns of a table that documents are made of; metadata of bytes, such as pictures, is not even read.

    Raises CorpusError, naming `where`, if there is no column with text.
    """
    if maker.fields.text not in schema.names:
        raise maker.no_text(where, schema.names)
    needed = []
    for name in maker.fields.needed(schema.names):
        if _has_bytes(schema.field(name).type) and name in maker.fields.metadata_of([name]):
            maker.no_json(name, "bytes")
        else:
            needed.append(name)
    return needed


def _has_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_bytes(kind.field(place).type) for place in range(kind.num_fields))
    value = getattr(kind, "value_type", None) or getattr(kind, "item_type", None)
    return _has_bytes(value) if value is not None else any(is_bytes(kind) for is_bytes in _BYTES)


def _records(file: File, maker: DocumentMaker) -> Iterator[Mapping[str, object]]:
    path = file.path
    with open_file(path) as stream:
        try:
            with pq.ParquetFile(stream) as table:
                columns = needed_columns(table.schema_arrow, maker, str(path))
                for batch in table.iter_batches(batch_size=_rows_a_batch(table.metadata), columns=columns):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{path} is not a Parquet file, or damaged: {_first_line(error)}") from None
        except (ValueError, OverflowError) as error:  # text that is not UTF-8, or a date that Python cannot represent
            raise CorpusError(f"{path} holds a value that cannot be read: {error}.") from None


def _rows_a_batch(found: pq.FileMetaData) -> int:
    """Fewer rows if they are large, such as whole pages beside the text."""
    total = sum(found.row_group(group).total_byte_size for group in range(found.num_row_groups))
    return max(1, min(_ROWS_A_BATCH, _BYTES_A_BATCH * found.num_rows // max(1, total)))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
