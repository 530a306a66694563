"""Reads and writes the file of retrieved passages of the official In-Context RALM code.

The file is a JSON list with one object per stride: `begin_location`, `end_location` (tokens), `future` (the text of the
stride), `query`, and `retrieved_docs`, best first, each `{"text": ..., "score": ...}`. `text` is put before the input,
title included; an object's own `title` is put before the text. This package adds `id`, the document of the passage, and
its `metadata` if it has any; the official code ignores both.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from ralm.corpus import documents, files
from ralm.errors import InputError
from ralm.records import Hits, Passage
from ralm.storage.outputs import replaced_file

_HIGHEST: Final = float(np.finfo(np.float32).max)
Score: TypeAlias = Annotated[float, Field(ge=-_HIGHEST, le=_HIGHEST, allow_inf_nan=False)]
JsonMetadata: TypeAlias = Annotated[
    dict[str, JsonValue], AfterValidator(lambda value: documents.metadata_from_json(documents.metadata_to_json(value)))
]
"""JSON without the infinity and NaN that Python's JSON may have."""
_Place: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 63)]


class RetrievedPassage(BaseModel):
    """A retrieved passage of a stride."""

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)

    text: str
    title: str = ""
    score: Score = 0.0
    id: str = ""
    metadata: JsonMetadata = {}


class RetrievedStride(BaseModel):
    """A stride of the file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    begin_location: _Place
    end_location: _Place
    future: str
    query: str = ""
    retrieved_docs: tuple[RetrievedPassage, ...]


_FILE = TypeAdapter(list[RetrievedStride])


def write_retrieval_file(path: Path | str, strides: Iterable[RetrievedStride]) -> None:
    """Write the file atomically; empty titles are omitted, as the official code expects."""
    with replaced_file(Path(path)) as stream:
        stream.write("[")
        for i, stride in enumerate(strides):
            row = stride.model_dump()
            row["retrieved_docs"] = [_without_empty(passage) for passage in row["retrieved_docs"]]
            stream.write((",\n" if i else "\n") + json.dumps(row, ensure_ascii=False))
        stream.write("\n]\n")


def read_retrieval_file(path: Path | str) -> list[RetrievedStride]:
    """Return the strides of a retrieval file, written by this package or by the official code.

    Raises:
        InputError: If the file is missing or has another format.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist; `ralm retrieve` writes such a file.")
    try:
        with files.open_file(path, InputError) as stream:
            strides = _FILE.validate_json(stream.read())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top"
        raise InputError(
            f"{path} is not a retrieval file in the official format: at {where}, {first['msg']}."
        ) from None
    if not strides:
        raise InputError(f"{path} has no strides.")
    return strides


def numbered_passages(rows: Sequence[Sequence[RetrievedPassage]]) -> tuple[Hits, list[Passage]]:
    """Return rows of passages as hits (Q rows) over the distinct passages, numbered as they first appear."""
    numbers: dict[tuple[str, str], int] = {}
    passages: list[Passage] = []
    for passage in (passage for row in rows for passage in row):
        if (passage.title, passage.text) not in numbers:
            numbers[passage.title, passage.text] = len(passages)
            passages.append(Passage(len(passages), passage.id, passage.title, passage.text, metadata=passage.metadata))
    hits = [
        ([numbers[passage.title, passage.text] for passage in row], [passage.score for passage in row]) for row in rows
    ]
    return Hits.of_rows(hits), passages


def _without_empty(passage: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in passage.items() if value not in ("", {})}
