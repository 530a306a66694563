"""Records of Hugging Face datasets: streamed from the hub, or read from a folder on disk.

Needs the extra `datasets`; imported only if such a source is used.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from datasets import Dataset, DatasetDict, IterableDataset, get_dataset_config_names, load_dataset, load_from_disk

from ralm.errors import CorpusError

Record: TypeAlias = Mapping[str, object]

_SAVED_FILES = ("dataset_info.json", "dataset_dict.json", "state.json")
_DEFAULT_SPLIT = "train"


def dataset_records(source: str, needed: Callable[[pa.Schema], list[str]]) -> Iterator[Record]:
    """The records of a dataset, in order: `NAME[:CONFIG][:SPLIT]` on the hub or in a folder, or `FOLDER[:SPLIT]` for a
    folder that `save_to_disk` wrote.

    A single word after the name is a configuration if the dataset has one of that name, otherwise a split. The default
    split is `train`. `needed` says which columns to read; a streamed dataset without a schema gives all of them. Raises
    CorpusError if there is no such dataset, configuration or split, or if a saved folder has several splits and none is
    named.
    """
    name, parts = _parse(source)
    try:
        dataset = _saved(name, parts) if _is_saved(name) else _streamed(name, parts)
        if dataset.features is not None:  # unknown for some that are streamed
            dataset = dataset.select_columns(needed(dataset.features.arrow_schema))
        yield from dataset
    except CorpusError:
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise CorpusError(f"cannot read the dataset {source}: {first}") from error


def _parse(source: str) -> tuple[str, list[str]]:
    if source and Path(source).is_dir():
        return source, []
    name, *parts = source.split(":")
    if not name or len(parts) > 2:
        raise CorpusError(f"hf:{source} names no dataset; write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT.")
    return name, parts


def _is_saved(name: str) -> bool:
    return any((Path(name) / file).is_file() for file in _SAVED_FILES)


def _saved(folder: str, parts: list[str]) -> Dataset | IterableDataset:
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


def _streamed(name: str, parts: list[str]) -> Dataset | IterableDataset:
    config, split = _config_and_split(name, parts)
    return load_dataset(name, config or None, split=split or _DEFAULT_SPLIT, streaming=True)


def _config_and_split(name: str, parts: list[str]) -> tuple[str, str]:
    if len(parts) == 1:
        return (parts[0], "") if parts[0] in get_dataset_config_names(name) else ("", parts[0])
    return (parts[0], parts[1]) if parts else ("", "")
