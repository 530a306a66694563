"""Documents from wherever they lie, one at a time: folders of text, JSONL, Parquet, DPR's TSV, Hugging Face datasets.

Knows formats; knows nothing of passages. Nothing is held in memory but the document at hand.
"""

import csv
import gzip
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ralm.corpus.text import decode
from ralm.errors import CorpusError, MissingExtraError
from ralm.records import Document

TEXT_SUFFIXES: Final = (".txt", ".text", ".md", ".markdown", ".rst")
JSONL_SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
TSV_SUFFIXES: Final = (".tsv", ".tsv.gz")
HUB_PREFIX: Final = "hf:"
_DATASET_FILES: Final = ("dataset_info.json", "dataset_dict.json", "state.json")
_EXAMPLES_KEPT: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Which fields of a record hold a document's id, title and text. Only the text must be there: without an id a
    document is called by its place in the file, without a title it has none."""

    id: str = "id"
    title: str = "title"
    text: str = "text"


@dataclass(slots=True)
class SkippedLines:
    """The broken lines that were passed over: how many, and what was wrong with the first few."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, error: CorpusError) -> None:
        """Count one more."""
        self.count += 1
        if len(self.examples) < _EXAMPLES_KEPT:
            self.examples.append(str(error))


def read_documents(
    source: str, fields: Fields | None = None, *, skipped: SkippedLines | None = None
) -> Iterator[Document]:
    """The documents of a source in its order, those without text left out.

    `source` is a folder of .txt, .md or .rst files (below it, sorted by path) or one such file; a .jsonl, .parquet or
    .tsv file (`id`, `text`, `title`, as DPR's; the first and last kind also gzipped) or a folder of .parquet files; a
    folder that `datasets` saved; or `hf:NAME`, `hf:NAME:SPLIT` or `hf:NAME:CONFIG:SPLIT` on the Hugging Face hub.

    With `skipped`, a broken line of JSONL or TSV is counted there and passed over. Raises CorpusError where a source is
    missing, of no known kind, not UTF-8, or broken, naming the line; MissingExtraError where `datasets` is needed.
    """
    for document in _open(source, fields or Fields(), skipped):
        if document.text.strip():
            yield document


def _open(source: str, fields: Fields, skipped: SkippedLines | None) -> Iterator[Document]:
    path = Path(source)
    if source.startswith(HUB_PREFIX):
        return _hub_documents(source, fields)
    if not path.exists():
        raise CorpusError(f"{source} does not exist.")
    if path.is_dir():
        return _folder_documents(path, fields)
    if path.name.endswith(JSONL_SUFFIXES):
        return _jsonl_documents(path, fields, skipped)
    if path.name.endswith(TSV_SUFFIXES):
        return _tsv_documents(path, skipped)
    if path.suffix == ".parquet":
        return _parquet_documents([path], fields)
    if path.suffix in TEXT_SUFFIXES:
        return iter([_text_document(path, path.parent)])
    raise CorpusError(f"{source} is of no known kind; give a folder of text files, {_kinds()}, or hf:NAME.")


def _kinds() -> str:
    return ", ".join((*TEXT_SUFFIXES, *JSONL_SUFFIXES, ".parquet", *TSV_SUFFIXES))


def _folder_documents(folder: Path, fields: Fields) -> Iterator[Document]:
    if any((folder / name).is_file() for name in _DATASET_FILES):
        return _hub_documents(str(folder), fields)
    if tables := sorted(folder.rglob("*.parquet")):
        return _parquet_documents(tables, fields)
    if texts := sorted(file for file in folder.rglob("*") if file.suffix in TEXT_SUFFIXES and file.is_file()):
        return (_text_document(file, folder) for file in texts)
    raise CorpusError(
        f"{folder} holds no documents: no {', '.join(TEXT_SUFFIXES)} or .parquet file, and no saved dataset. "
        "Give JSONL and TSV files by name."
    )


def _text_document(file: Path, root: Path) -> Document:
    """A text file, its path as id and its name as title."""
    return Document(id=file.relative_to(root).as_posix(), title=file.stem, text=decode(file.read_bytes(), str(file)))


def _jsonl_documents(path: Path, fields: Fields, skipped: SkippedLines | None) -> Iterator[Document]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            yield _document(_json_record(line, path, number), fields, f"{path}, line {number}", str(number))
        except CorpusError as error:
            if skipped is None:
                raise
            skipped.add(error)


def _json_record(line: bytes, path: Path, number: int) -> Mapping[str, object]:
    text = decode(line, f"{path}, line {number},")
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise CorpusError(
            f"{path}, line {number} is not JSON: {error.msg} at column {error.colno}. Mend it, or pass over such lines "
            "with --skip-bad."
        ) from None
    if not isinstance(record, dict):
        raise CorpusError(f"{path}, line {number} is JSON but not an object with fields.")
    return record


def _tsv_documents(path: Path, skipped: SkippedLines | None) -> Iterator[Document]:
    """DPR's passages: id, text, title between tabs, quoted as CSV; a first line of those names is passed over."""
    csv.field_size_limit(sys.maxsize)
    lines = (decode(line, f"{path}, line {number},") for number, line in _lines(path))
    rows = csv.reader(lines, delimiter="\t")
    for row in rows:
        if row[:2] == ["id", "text"] or not row:
            continue
        if len(row) in (2, 3):
            yield Document(id=row[0], title=row[2] if len(row) == 3 else "", text=row[1])
            continue
        error = CorpusError(
            f"{path}, line {rows.line_num} has {len(row)} fields between tabs where id, text and title are expected. "
            "Mend it, or pass over such lines with --skip-bad."
        )
        if skipped is None:
            raise error
        skipped.add(error)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1, unpacked where it is gzipped."""
    with _opened(path) as stream:
        try:
            yield from enumerate(stream, 1)
        except (EOFError, gzip.BadGzipFile) as error:
            raise CorpusError(f"{path} is damaged: {error}") from None


def _opened(path: Path) -> BinaryIO | gzip.GzipFile:
    if path.stat().st_size == 0:
        raise CorpusError(f"{path} is empty.")
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _parquet_documents(files: list[Path], fields: Fields) -> Iterator[Document]:
    for file in files:
        try:
            table = pq.ParquetFile(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise CorpusError(f"{file} is not a Parquet file, or damaged: {error}") from None
        with table:
            names = [name for name in (fields.id, fields.title, fields.text) if name in table.schema_arrow.names]
            if fields.text not in names:
                raise CorpusError(_no_text(str(file), fields, table.schema_arrow.names))
            batches = table.iter_batches(batch_size=1024, columns=names)
            records = (record for batch in batches for record in batch.to_pylist())
            yield from _numbered(records, fields, str(file))


def _hub_documents(source: str, fields: Fields) -> Iterator[Document]:
    try:
        from ralm.corpus.hub import dataset_records
    except ImportError:
        raise MissingExtraError(f"reading {source} needs the package datasets: pip install 'ralm[datasets]'.") from None
    return _numbered(dataset_records(source.removeprefix(HUB_PREFIX)), fields, source)


def _numbered(records: Iterable[Mapping[str, object]], fields: Fields, where: str) -> Iterator[Document]:
    for number, record in enumerate(records):
        yield _document(record, fields, f"{where}, row {number}", str(number))


def _document(record: Mapping[str, object], fields: Fields, where: str, place: str) -> Document:
    if fields.text not in record:
        raise CorpusError(_no_text(where, fields, list(record)))
    text, title = record[fields.text], record.get(fields.title)
    if not isinstance(text, str):
        raise CorpusError(f"{where}: the field {fields.text!r} is not text but {type(text).__name__}.")
    identifier = record.get(fields.id)
    return Document(
        id=place if identifier is None else str(identifier), title="" if title is None else str(title), text=text
    )


def _no_text(where: str, fields: Fields, names: list[str]) -> str:
    there = ", ".join(names) or "none"
    return f"{where} has no field {fields.text!r}; its fields are {there}. Name the right one with --text-field."
