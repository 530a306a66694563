"""Records of Hugging Face datasets: by hub name, streamed, or from a folder that `save_to_disk` wrote.

Needs the extra `datasets`; imported only where such a source is named.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from datasets import DatasetDict, load_dataset, load_from_disk

from ralm.errors import CorpusError


def dataset_records(name: str) -> Iterator[Mapping[str, object]]:
    """The records of a dataset: a saved folder, NAME, NAME:SPLIT or NAME:CONFIG:SPLIT on the hub (split train if none
    is given).

    Raises CorpusError where there is no such dataset, or it has several splits and none was named.
    """
    try:
        yield from _saved(name) if Path(name).is_dir() else _streamed(name)
    except CorpusError:
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise CorpusError(f"cannot read the dataset {name}: {first}") from error


def _saved(folder: str) -> Iterator[Mapping[str, object]]:
    dataset = load_from_disk(folder)
    if isinstance(dataset, DatasetDict):
        if len(dataset) > 1:
            raise CorpusError(f"{folder} holds the splits {', '.join(dataset)}; name the folder of one of them.")
        dataset = next(iter(dataset.values()))
    return iter(dataset)


def _streamed(name: str) -> Iterator[Mapping[str, object]]:
    hub_name, _, rest = name.partition(":")
    config, _, split = rest.rpartition(":")
    return iter(load_dataset(hub_name, config or None, split=split or "train", streaming=True))
