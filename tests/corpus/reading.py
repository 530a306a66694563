"""Reads a source as a list, and counts what is skipped."""

from pathlib import Path

from ralm.corpus.sources import Fields, Skipped, read_documents
from ralm.records import Document


def read(
    path: Path | str, fields: Fields | None = None, skipped: Skipped | None = None, *, skip_bad: bool = False
) -> list[Document]:
    return list(read_documents(str(path), fields, skipped=skipped or Skipped(), skip_bad=skip_bad))


def only(path: Path | str, fields: Fields | None = None) -> Document:
    """The one document of a source."""
    [document] = read(path, fields)
    return document
