"""Files behind URLs, such as those of object stores (`s3://`, `gs://`) and web servers, through fsspec.

A file is read from a copy on this machine, so a reader of a format meets the errors of local files alone. What fsspec
and the packages behind it raise becomes an error of ralm.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakKeyDictionary

from ralm.errors import CorpusError, MissingExtraError, StorageError, short_message
from ralm.storage.work import HeldFile, scratch_folder

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class RemoteFile:
    """A file behind a URL, with the members of `Path` by which files of a corpus are read.

    `size` is in bytes; None if the server does not report it. `path` is its path in the file system of `url`, since a
    file name can look like a part of a URL.
    """

    url: str
    size: int | None
    path: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """Return the last part of the URL."""
        return PurePosixPath(self.url).name

    def open(self, _mode: Literal["rb"]) -> io.BufferedReader:
        """Open a copy, downloaded unless it was opened last; raises FileNotFoundError, or StorageError for a part."""
        if self not in _copies:
            _copies.clear()
            _copies[self] = self._download()
        return _copies[self].path.open("rb")

    def _download(self) -> HeldFile:
        with scratch_folder() as folder:
            copy = folder / "copy"
            try:
                _locate(self.url)[0].get_file(self.path, str(copy))
            except FileNotFoundError:
                raise
            except Exception as error:
                raise StorageError(
                    f"{self.url} was not read completely: {short_message(error)}. Run this again."
                ) from error
            return HeldFile(copy)


_copies: Final[WeakKeyDictionary[RemoteFile, HeldFile]] = WeakKeyDictionary()
"""The copy of the file that was opened last: a file is hashed and then read."""

FilePath: TypeAlias = Path | RemoteFile
"""Where a file is: on a disk of this machine, or behind a URL."""


def is_url(source: str) -> bool:
    """Return whether a source is a URL, and not a path on this machine."""
    return _URL.match(source) is not None


def remote_file(url: str) -> RemoteFile | None:
    """Return the file behind a URL; None if the URL is a folder. Raises CorpusError if there is neither."""
    with _fsspec_errors(url):
        system, path = _locate(url)
        facts = system.info(path)
    return None if facts["type"] == "directory" else RemoteFile(url, facts.get("size"), path)


def remote_files_below(url: str) -> Iterator[tuple[str, RemoteFile]]:
    """Yield the files below a folder behind a URL, after their paths in it, sorted by the parts of these."""
    with _fsspec_errors(url):
        system, root = _locate(url)
        paths = system.find(root, detail=True)
    below = {path.removeprefix(root).lstrip("/"): path for path in paths}
    for name in sorted(below, key=lambda name: name.split("/")):
        if name and not name.endswith("/"):  # object stores may hold such a name for a folder
            yield name, RemoteFile(f"{url.rstrip('/')}/{name}", paths[below[name]].get("size"), below[name])


@contextmanager
def _fsspec_errors(url: str) -> Iterator[None]:
    """Turn what fsspec and the packages behind it raise into CorpusError or MissingExtraError."""
    try:
        yield
    except FileNotFoundError:
        raise CorpusError(f"{url} does not exist.") from None
    except ImportError as missing:
        raise MissingExtraError(f"{url} cannot be read without another package: {short_message(missing)}.") from None
    except Exception as error:
        raise CorpusError(f"{url} cannot be read: {short_message(error)}.") from error


def _locate(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it, without a `/` at its end."""
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    return system, str(path).rstrip("/")
