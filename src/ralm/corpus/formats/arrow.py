"""Reads Parquet files, and Hugging Face datasets from the hub or a folder: tables with an Arrow schema.

Datasets need the extra `datasets`, which is imported on first use.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ralm.corpus import documents, files
from ralm.errors import CorpusError, extra, short_message
from ralm.records import Document
from ralm.storage.remote import FilePath

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

_Record: TypeAlias = Mapping[str, object]
_ROWS_A_BATCH: Final = 1024
_BYTES_A_BATCH: Final = 1 << 25
_BYTES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_SAVED_FILES: Final = ("dataset_info.json", "dataset_dict.json", "state.json")
_DEFAULT_SPLIT: Final = "train"


def parquet_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield one document per row, a batch of rows in memory; rows are numbered from 0."""
    for row, record in enumerate(_parquet_records(file.path, builder)):
        yield builder.document(record, f"{file.path}, row {row}", file, row)


def dataset_documents(file: files.File, name: str, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield one document per record of the dataset with this name."""
    for row, record in enumerate(dataset_records(name, lambda schema: _needed_columns(schema, builder, name))):
        yield builder.document(record, f"{name}, row {row}", file, row)


def dataset_records(source: str, needed: Callable[[pa.Schema], list[str]]) -> Iterator[_Record]:
    """Yield the records of a dataset: `NAME[:CONFIG][:SPLIT]` on the hub, or `FOLDER[:SPLIT]` that `datasets` saved.

    A single word after the name is a configuration if the dataset has one of that name, otherwise a split, by default
    `train`. `needed` chooses columns. Raises CorpusError if there is no such dataset, configuration or split.
    """
    with extra("datasets", f"reading {source} needs", ("datasets",)):
        import datasets  # noqa: F401
    name, parts = _parse(source)
    try:
        is_saved = any((Path(name) / file).is_file() for file in _SAVED_FILES)
        dataset = _saved(name, parts) if is_saved else _streamed(name, parts)
        if dataset.features is not None:  # unknown for some that are streamed
            dataset = dataset.select_columns(needed(dataset.features.arrow_schema))
        yield from dataset
    except CorpusError:
        raise
    except Exception as error:
        raise CorpusError(f"cannot read the dataset {source}: {short_message(error)}.") from error


def _needed_columns(schema: pa.Schema, builder: documents.DocumentBuilder, where: str) -> list[str]:
    """Return the columns that documents are made of, without metadata of bytes; CorpusError without text."""
    if builder.fields.text not in schema.names:
        raise builder.no_text(where, schema.names)
    columns = builder.fields.needed(schema.names)
    documents.check_columns(columns, where)
    needed = []
    for name in columns:
        if _has_bytes(schema.field(name).type) and name in builder.fields.metadata_of([name]):
            builder.no_json(name, "bytes")
        else:
            needed.append(name)
    return needed


def _has_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_bytes(kind.field(place).type) for place in range(kind.num_fields))
    value = getattr(kind, "value_type", None) or getattr(kind, "item_type", None)
    return _has_bytes(value) if value is not None else any(is_bytes(kind) for is_bytes in _BYTES)


def _parquet_records(path: FilePath, builder: documents.DocumentBuilder) -> Iterator[_Record]:
    with files.open_file(path) as stream:
        try:
            with pq.ParquetFile(stream) as table:
                layout = table.metadata
                size = sum(layout.row_group(group).total_byte_size for group in range(layout.num_row_groups))
                rows = max(1, min(_ROWS_A_BATCH, _BYTES_A_BATCH * layout.num_rows // max(1, size)))
                columns = _needed_columns(table.schema_arrow, builder, str(path))
                for batch in table.iter_batches(batch_size=rows, columns=columns):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{path} is not a Parquet file, or damaged: {short_message(error)}.") from None
        except (ValueError, OverflowError, LookupError, RecursionError) as error:
            # text that is not UTF-8, a date that Python cannot represent, an unknown time zone, or too many levels
            raise CorpusError(f"{path} holds a value that cannot be read: {error}.") from None


def _parse(source: str) -> tuple[str, list[str]]:
    if source and Path(source).is_dir():
        return source, []
    name, *parts = source.split(":")
    if not name or len(parts) > 2:
        raise CorpusError(f"hf:{source} names no dataset; write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT.")
    return name, parts


def _saved(folder: str, parts: list[str]) -> "Dataset | IterableDataset":
    from datasets import DatasetDict, load_from_disk

    dataset = load_from_disk(folder)
    split = parts[-1] if parts else ""
    if not isinstance(dataset, DatasetDict):
        if split:
            raise CorpusError(f"{folder} holds one dataset without splits, so it has no split {split!r}; leave it out.")
        return dataset
    if split in dataset:
        return dataset[split]
    if split or len(dataset) != 1:
        raise CorpusError(f"{folder} holds the splits {', '.join(dataset)}; choose one with hf:{folder}:SPLIT.")
    return next(iter(dataset.values()))


def _streamed(name: str, parts: list[str]) -> "Dataset | IterableDataset":
    from datasets import get_dataset_config_names, load_dataset

    if len(parts) == 1 and parts[0] not in get_dataset_config_names(name):
        parts = ["", *parts]
    config, split = [*parts, "", ""][:2]
    return load_dataset(name, config or None, split=split or _DEFAULT_SPLIT, streaming=True)
