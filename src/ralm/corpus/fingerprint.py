"""A fingerprint of sources: tells whether they changed since they were read.

Knows files and folders; reads no document.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ralm.corpus.folder import HUB_PREFIX, found_behind, found_below
from ralm.corpus.left_out import LeftOut
from ralm.errors import CorpusError
from ralm.storage.manifest import whole_checksum
from ralm.storage.remote import FilePath, RemoteFile, is_url, remote_file


def fingerprint_of(sources: Sequence[str]) -> str:
    """SHA-256 of the names and contents of all files that the sources are read from; about a second a gigabyte.

    Of a dataset of the hub only the name counts. Raises CorpusError if a source is missing.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source}\n".encode("utf-8", "surrogateescape"))
        for file in _files(source):
            digest.update(f"{file} {_content(file)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _content(file: FilePath) -> str:
    if isinstance(file, RemoteFile):
        with file.open() as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    return whole_checksum(file) if file.is_file() else ""


def _files(source: str) -> Iterator[FilePath]:
    if is_url(source):
        file = remote_file(source)
        yield from [one for _, one in found_behind(source, LeftOut())] if file is None else [file]
        return
    path = Path(source)
    if source.startswith(HUB_PREFIX):
        return
    if not path.exists():
        raise CorpusError(f"{source} does not exist; a dataset of the Hugging Face hub is named hf:NAME.")
    if not path.is_dir():
        yield path
        return
    for found in found_below(str(path), LeftOut()):
        if found.is_dataset:
            yield from sorted(Path(found.path).rglob("*"))
        else:
            yield Path(found.path)
