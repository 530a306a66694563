"""Files behind URLs, such as those of object stores (`s3://`, `gs://`) and web servers, through fsspec.

fsspec and the packages behind it raise errors of their own; every one becomes an error of ralm, in one sentence.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias

from ralm.errors import CorpusError, MissingExtraError, RalmError, StorageError, short_message

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file behind a URL, with the members of `Path` that readers of a corpus use.

    `size` is in bytes. `path` is its path in the file system of `url`, since a file name can look like a part of a URL.
    """

    url: str
    size: int
    path: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return PurePosixPath(self.url).name

    @property
    def suffix(self) -> str:
        """The last suffix of the name."""
        return PurePosixPath(self.url).suffix

    def absolute(self) -> "RemoteFile":
        """The file itself: a URL does not depend on the current folder."""
        return self

    def open(self, error: type[RalmError] = CorpusError) -> io.BufferedReader:
        """Open the file for reading bytes; raises `error` if it cannot be opened. Reads raise OSError if they fail."""
        _lost.pop(self.url, None)
        try:
            with _fsspec_errors(self.url, error):
                opened = _locate(self.url)[0].open(self.path, "rb")
        except error as refused:
            if not isinstance(refused.__context__, FileNotFoundError):
                _lost[self.url] = _first_line(refused)
            raise
        return io.BufferedReader(_Stream(opened, self.url), _BLOCK)


FilePath: TypeAlias = Path | RemoteFile
"""Where a file is: on a disk of this machine, or behind a URL."""
_lost: Final[dict[str, str]] = {}
"""The last error of reading a file, by URL, since readers of a format may take it for a damaged file."""


def check_read_to_end(path: FilePath) -> None:
    """Raise StorageError if the server failed while a file behind a URL was read: a part is not the whole."""
    if isinstance(path, RemoteFile) and path.url in _lost:
        raise StorageError(f"{path.url} was not read completely: {_lost[path.url]}. Run this again.")


def is_url(source: str) -> bool:
    """Whether a source is a URL, and not a path on this machine."""
    return _URL.match(source) is not None


def remote_file(url: str) -> RemoteFile | None:
    """The file behind a URL; None if the URL is a folder. Raises CorpusError if there is neither, or if the server does
    not report the size of the file: such a file can only be read from its beginning."""
    with _fsspec_errors(url):
        system, path = _locate(url)
        found = system.info(path)
    if found["type"] == "directory":
        return None
    if found.get("size") is None:
        raise CorpusError(f"the server does not report the size of {url}; download the file first.")
    return RemoteFile(url, int(found["size"]), path)


def remote_files_below(url: str) -> Iterator[tuple[str, RemoteFile]]:
    """The files below a folder behind a URL, each with its path in the folder, sorted by the parts of these paths.
    Raises CorpusError if the folder cannot be listed."""
    with _fsspec_errors(url):
        system, root = _locate(url)
        found = system.find(root, detail=True)
    below = {path.removeprefix(root).lstrip("/"): (path, one.get("size")) for path, one in found.items()}
    for name in sorted(below, key=lambda name: name.split("/")):
        path, size = below[name]
        if name and not name.endswith("/"):  # object stores may hold such a name for a folder
            file = f"{url.rstrip('/')}/{name}"
            if size is None:
                raise CorpusError(f"the server does not report the size of {file}; download the folder first.")
            yield name, RemoteFile(file, int(size), path)


class _Stream(io.RawIOBase):
    """A file of fsspec whose errors are all OSErrors, like those of local files."""

    def __init__(self, opened: Any, url: str) -> None:
        self._opened = opened
        self._url = url

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._opened.seekable())

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        with self._as_os_errors():
            content = self._opened.read(len(view))
        view[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._as_os_errors():
            return int(self._opened.seek(offset, whence))

    def tell(self) -> int:
        return int(self._opened.tell())

    def close(self) -> None:
        if not self.closed:
            self._opened.close()
        super().close()

    @contextmanager
    def _as_os_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            _lost[self._url] = _first_line(error)
            raise OSError(0, _first_line(error), self._url) from error


@contextmanager
def _fsspec_errors(url: str, error: type[RalmError] = CorpusError) -> Iterator[None]:
    """Turn what fsspec and the packages behind it raise into `error`, and a missing package into MissingExtraError."""
    try:
        yield
    except FileNotFoundError:
        raise error(f"{url} does not exist.") from None
    except ImportError as missing:
        raise MissingExtraError(f"{url} cannot be read without another package: {_first_line(missing)}.") from None
    except Exception as refused:
        raise error(f"{url} cannot be read: {_first_line(refused)}.") from refused


def _first_line(error: Exception) -> str:
    if "block_size=0" in str(error):
        return "the server does not support requests for parts of a file; download it first"
    return short_message(error)


def _locate(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it, without a `/` at its end."""
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    return system, str(path).rstrip("/")
