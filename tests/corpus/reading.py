"""Reads a source as a list, and counts what is skipped. Where records are is left out: `test_places.py` tests it."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ralm.corpus.sources import Fields, Skipped, read_documents
from ralm.records import ORIGIN, Document


def read(
    path: Path | str, fields: Fields | None = None, skipped: Skipped | None = None, *, skip_bad: bool = False
) -> list[Document]:
    return without_origins(read_documents(str(path), fields, skipped=skipped or Skipped(), skip_bad=skip_bad))


def without_origins(documents: Iterable[Document]) -> list[Document]:
    return [
        replace(one, metadata={name: value for name, value in one.metadata.items() if name != ORIGIN})
        for one in documents
    ]


def only(path: Path | str, fields: Fields | None = None) -> Document:
    """The one document of a source."""
    [document] = read(path, fields)
    return document
