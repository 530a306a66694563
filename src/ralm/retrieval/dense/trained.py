"""What the folders of trained encoders say beside what sentence-transformers saves and loads.

`ralm.json` says how texts are put together for the encoder. The manifest of a query encoder that was trained alone
names the weights that encoded the passages, so it is accepted for every index whose passages they encoded.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from ralm.errors import FolderError
from ralm.retrieval.dense.options import EncoderOptions
from ralm.storage.manifest import kind_of, read_manifest

KIND: Final = "encoder"
FORMAT_VERSION: Final = 1
TRAINED_FOR: Final = "trained_for"
"""The key, in the results of a training, of the fingerprint of the weights that encoded the passages."""

READING: Final = "ralm.json"
SEPARATOR: Final = "title_separator"
"""The key, in `READING`, of what stands between the title and the text of a passage."""

PASSAGE_ENCODER: Final = "passages"
"""The encoder of passages within the folder of a trained pair, which is that of the encoder of queries."""


def is_trained(folder: Path) -> bool:
    """Whether a training wrote this folder."""
    try:
        return kind_of(folder) == KIND
    except FolderError:
        return False


def options_of(folder: Path, like: EncoderOptions) -> EncoderOptions:
    """The encoder, or the pair, in the folder of a training; everything else as in `like`."""
    passages = folder / PASSAGE_ENCODER
    if not passages.is_dir():
        return replace(like, encoder=str(folder), query_encoder=None)
    return replace(like, encoder=str(passages), query_encoder=str(folder))


def write_reading(folder: Path, reading: dict[str, str]) -> None:
    """Write how texts are put together for the encoder in a folder."""
    (folder / READING).write_text(json.dumps(reading) + "\n", encoding="utf-8")


def reading_of(name: str) -> dict[str, str]:
    """What `write_reading` wrote into a folder; empty for any other encoder."""
    try:
        reading = json.loads((Path(name) / READING).read_bytes())
    except (OSError, ValueError):
        return {}
    return reading if isinstance(reading, dict) else {}


def trained_for(name: str) -> str | None:
    """The fingerprint of the passage encoder that the query encoder in a folder was trained for; None if it was not
    trained for one, or is not a folder of ralm.

    Raises DamagedFolderError if the folder was altered since it was trained, NewerFormatError.
    """
    folder = Path(name)
    if not is_trained(folder):
        return None
    results = read_manifest(folder, kind=KIND, format_version=FORMAT_VERSION).settings.get("results")
    recorded = results.get(TRAINED_FOR) if isinstance(results, dict) else None
    return recorded if isinstance(recorded, str) else None
