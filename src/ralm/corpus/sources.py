"""Reads documents one at a time from folders of text, JSONL, Parquet, DPR's TSV and Hugging Face datasets.

Knows where to look and which format to use; knows nothing of passages.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from ralm.corpus.fields import Fields
from ralm.corpus.formats import (
    jsonl_documents,
    needed_columns,
    parquet_documents,
    text_documents,
    tsv_documents,
)
from ralm.corpus.headings import MARKDOWN_SUFFIXES, RST_SUFFIXES
from ralm.corpus.left_out import BROKEN_LINES, NO_TEXT, LeftOut
from ralm.corpus.maker import DocumentMaker
from ralm.errors import CorpusError, MissingExtraError
from ralm.records import Document

__all__ = ["Fields", "LeftOut", "read_documents"]

TEXT_SUFFIXES: Final = (".txt", ".text", *MARKDOWN_SUFFIXES, *RST_SUFFIXES)
JSONL_SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
TSV_SUFFIXES: Final = (".tsv", ".tsv.gz")
HUB_PREFIX: Final = "hf:"
_PARQUET: Final = ".parquet"
_SAVED_DATASET_FILES: Final = ("dataset_info.json", "dataset_dict.json", "state.json")


def read_documents(
    source: str, fields: Fields | None = None, *, left_out: LeftOut | None = None, skip_bad: bool = False
) -> Iterator[Document]:
    """The documents of a source in order, except those without text.

    `source` is one of:

    - a folder of .txt, .text, .md, .markdown or .rst files (searched recursively, sorted by path, without hidden
      files), or one such file; the id is the path below the folder, the title the first heading of a .md, .markdown or
      .rst file, otherwise the file name;
    - a .jsonl, .ndjson or .tsv file (id, text, title, as DPR's), optionally gzipped, a .parquet file, or a folder with
      .parquet files (its other files are ignored);
    - a folder that `datasets` saved, or `hf:NAME[:CONFIG][:SPLIT]`, a dataset of the Hugging Face hub or a folder
      that `datasets` can load; a single word after the name is a configuration if there is one of that name.

    `left_out` counts what is left out. With `skip_bad`, so are broken lines of JSONL or TSV, and text files in a folder
    that are not UTF-8. Raises CorpusError if a source is missing, of an unknown type, broken (naming the line), not
    UTF-8 (naming the byte), or has no documents; MissingExtraError if `datasets` is needed and not installed.
    """
    left_out = LeftOut() if left_out is None else left_out
    maker = DocumentMaker(fields or Fields(), left_out, skip_bad=skip_bad)
    found = False
    for document in _open(source, maker):
        if document.text and not document.text.isspace():
            found = True
            yield document
        else:
            left_out.add(NO_TEXT, document.id)
    if not found:
        raise CorpusError(_nothing_in(source, left_out))
    maker.check_metadata()


def _nothing_in(source: str, left_out: LeftOut) -> str:
    if count := left_out.counts[BROKEN_LINES]:
        return (
            f"{source} holds no document; {count:,} broken lines were skipped, such as: "
            f"{left_out.examples[BROKEN_LINES][0]}"
        )
    return f"{source} holds no document: all of it is empty."


def _open(source: str, maker: DocumentMaker) -> Iterator[Document]:
    if source.startswith(HUB_PREFIX):
        return _dataset_documents(source.removeprefix(HUB_PREFIX), maker)
    path = Path(source)
    if not path.exists() and not path.is_symlink():
        raise CorpusError(f"{source} does not exist; a dataset of the Hugging Face hub is named hf:NAME.")
    return _folder_documents(path, maker) if path.is_dir() else _file_documents(path, maker)


def _file_documents(path: Path, maker: DocumentMaker) -> Iterator[Document]:
    name = path.name.lower()
    if name.endswith(JSONL_SUFFIXES):
        return jsonl_documents(path, maker)
    if name.endswith(TSV_SUFFIXES):
        return tsv_documents(path, maker)
    if name.endswith(_PARQUET):
        return parquet_documents([path], maker)
    if name.endswith(TEXT_SUFFIXES):
        return text_documents([path], path.parent, maker)
    kinds = ", ".join((*TEXT_SUFFIXES, *JSONL_SUFFIXES, _PARQUET, *TSV_SUFFIXES))
    raise CorpusError(f"{path} is of an unknown type; give a folder, a file that ends in {kinds}, or hf:NAME.")


def _folder_documents(folder: Path, maker: DocumentMaker) -> Iterator[Document]:
    if any((folder / name).is_file() for name in _SAVED_DATASET_FILES):
        return _dataset_documents(str(folder), maker)
    if tables := _files(folder, (_PARQUET,)):
        return parquet_documents(tables, maker)
    if texts := _files(folder, TEXT_SUFFIXES):
        return text_documents(texts, folder, maker)
    raise CorpusError(
        f"{folder} holds no documents: no {', '.join(TEXT_SUFFIXES)} or {_PARQUET} file, and no saved dataset. "
        "Give JSONL and TSV files by name."
    )


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """All files below a folder with one of these suffixes, sorted by path, without hidden files and folders.

    Broken links are included: reading them raises an error, so that no file is silently left out.
    """
    found: list[Path] = []
    for parent, folders, names in os.walk(folder, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(file for file in found if file.suffix.lower() in suffixes)


def _unreadable(error: OSError) -> NoReturn:
    raise CorpusError(f"{error.filename} cannot be read: {error.strerror}.")


def _dataset_documents(name: str, maker: DocumentMaker) -> Iterator[Document]:
    try:
        from ralm.corpus.hub import dataset_records
    except ModuleNotFoundError as error:
        if error.name != "datasets":
            raise
        raise MissingExtraError(f"reading {name} needs the package datasets: pip install 'ralm[datasets]'.") from None
    records = dataset_records(name, lambda schema: needed_columns(schema, maker, name))
    for row, record in enumerate(records):
        yield maker.document(record, f"{name}, row {row}", str(row))
