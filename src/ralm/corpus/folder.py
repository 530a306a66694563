"""Finds the files and saved datasets of a source: below a folder or behind a URL, in the order of their paths.

Also computes a fingerprint of sources, which tells whether they changed since they were read.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ralm.corpus.documents import BROKEN_FILES, EMPTY_FILES, HIDDEN, LINKS, Skipped
from ralm.corpus.files import suffix_of
from ralm.corpus.formats import is_known
from ralm.errors import CorpusError
from ralm.storage.manifest import whole_checksum
from ralm.storage.remote import FilePath, RemoteFile, is_url, remote_file, remote_files_below
from ralm.terminal import path_text

HUB_PREFIX: Final = "hf:"
"""Prefix of a source that is a dataset of the Hugging Face hub."""
SAVED_DATASET: Final = "state.json"
"""A file of every dataset that `datasets` saved."""
SAVED_SPLITS: Final = "dataset_dict.json"
"""A file of every folder of saved datasets."""
_BROKEN_LINKS: Final = {errno.ENOENT: "a link to nothing", errno.ELOOP: "a link to itself"}


class Found(NamedTuple):
    """The path of a file of a known kind, or of a saved dataset."""

    path: str
    is_dataset: bool


def files_below(folder: str, skipped: Skipped) -> Iterator[Found]:
    """The files of known kinds and the saved datasets below a folder, in the order of their paths, part by part.

    Links are followed, except links to folders that contain the link or that are read anyway. Counts in `skipped` the
    links that lead to nothing new, hidden files and folders, empty files, files of unknown kinds, and unreadable ones.
    Raises CorpusError if the folder itself cannot be read.
    """
    walk = _Walk(folder, skipped)
    try:
        below = [walk.entries(folder)]
    except OSError as error:
        raise CorpusError(f"{folder} cannot be read: {error.strerror}.") from None
    while below:
        entry = next(below[-1], None)
        if entry is None:
            below.pop()
        elif (status := walk.status(entry)) is None:
            continue
        elif not stat.S_ISDIR(status.st_mode):
            if walk.reads(entry, status):
                yield Found(entry.path, is_dataset=False)
        elif walk.enters(entry, status):
            if os.path.isfile(os.path.join(entry.path, SAVED_DATASET)):  # noqa: PTH113, PTH118  (of a million names)
                yield Found(entry.path, is_dataset=True)
            else:
                below.append(walk.entries_of(entry))


def files_behind_url(url: str, skipped: Skipped) -> Iterator[tuple[str, RemoteFile]]:
    """The files of known kinds below a folder behind a URL, in the order of their paths, each with its path in it.

    Counts in `skipped` the same as `files_below`; there are no links. Raises CorpusError if the folder cannot be
    listed, or holds a dataset that `datasets` saved.
    """
    for path, file in remote_files_below(url):
        if any(part.startswith(".") for part in path.split("/")):
            skipped.add(HIDDEN, path_text(str(file)))
        elif file.name in (SAVED_DATASET, SAVED_SPLITS):
            raise CorpusError(
                f"{file}: a dataset that `datasets` saved is read from a disk only; copy its folder there."
            )
        elif not is_known(file.name):
            skipped.add_unknown(path_text(str(file)), suffix_of(file.name))
        elif file.size == 0:
            skipped.add(EMPTY_FILES, path_text(str(file)))
        else:
            yield path, file


class _Walk:
    """Decides which entries of folders are read, and counts those that are skipped."""

    def __init__(self, folder: str, skipped: Skipped) -> None:
        self._root = os.path.realpath(folder)
        self._skipped = skipped
        self._seen = {_identity(Path(folder).stat())}

    @staticmethod
    def entries(folder: str) -> "Iterator[os.DirEntry[str]]":
        with os.scandir(folder) as entries:
            return iter(sorted(entries, key=lambda entry: entry.name))

    def entries_of(self, folder: "os.DirEntry[str]") -> "Iterator[os.DirEntry[str]]":
        try:
            return self.entries(folder.path)
        except OSError as error:
            self._skipped.add(BROKEN_FILES, f"{path_text(folder.path)} cannot be read: {error.strerror}")
            return iter(())

    def status(self, entry: "os.DirEntry[str]") -> os.stat_result | None:
        """The status of an entry, or of the target of a link; None if it is hidden or cannot be read."""
        name = path_text(entry.path)
        if entry.name.startswith("."):
            self._skipped.add(HIDDEN, name)
            return None
        try:
            return entry.stat()
        except OSError as error:
            if what := _BROKEN_LINKS.get(error.errno or 0):
                self._skipped.add(LINKS, f"{name} ({what})")
            else:
                self._skipped.add(BROKEN_FILES, f"{name} cannot be read: {error.strerror}")
            return None

    def enters(self, entry: "os.DirEntry[str]", status: os.stat_result) -> bool:
        """Whether to read a folder."""
        if entry.is_symlink() and (why := self._why_not_followed(entry.path)):
            return self._skip_link(entry, why)
        if _identity(status) in self._seen:
            return self._skip_link(entry, "was read already")
        self._seen.add(_identity(status))
        return True

    def reads(self, entry: "os.DirEntry[str]", status: os.stat_result) -> bool:
        """Whether to read a file."""
        if not is_known(entry.name):
            self._skipped.add_unknown(path_text(entry.path), suffix_of(entry.name))
            return False
        if stat.S_ISREG(status.st_mode) and status.st_size == 0:
            self._skipped.add(EMPTY_FILES, path_text(entry.path))
            return False
        return entry.name != SAVED_SPLITS  # the walk finds the datasets of this folder

    def _why_not_followed(self, link: str) -> str:
        target = os.path.realpath(link)
        if _is_within(os.path.realpath(os.path.dirname(link)), target):  # noqa: PTH120
            return "leads to a folder that contains it"
        if not _is_within(target, self._root):
            return ""
        hidden = any(part.startswith(".") for part in Path(target).relative_to(self._root).parts)
        return "" if hidden else "leads to a folder that is read anyway"

    def _skip_link(self, entry: "os.DirEntry[str]", why: str) -> bool:
        self._skipped.add(LINKS, f"{path_text(entry.path)} ({why})")
        return False


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


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
        yield from [one for _, one in files_behind_url(source, Skipped())] if file is None else [file]
        return
    path = Path(source)
    if source.startswith(HUB_PREFIX):
        return
    if not path.exists():
        raise CorpusError(f"{source} does not exist; a dataset of the Hugging Face hub is named hf:NAME.")
    if not path.is_dir():
        yield path
        return
    for found in files_below(str(path), Skipped()):
        if found.is_dataset:
            yield from sorted(Path(found.path).rglob("*"))
        else:
            yield Path(found.path)
