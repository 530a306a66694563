"""Files behind URLs, such as those of object stores (`s3://`, `gs://`) and web servers, through fsspec.

fsspec and the packages behind it raise errors of their own; every one becomes an error of ralm, in one sentence.
"""

import io
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias

from ralm.errors import CorpusError, MissingExtraError, RalmError, StorageError

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_BLOCK: Final = 1 << 20
_SAID: Final = 200


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file behind a URL: what those who read a corpus use of a path. `size` is in bytes; `path` is where the file
    system of `url` has it, since a name of a file can look like a part of a URL."""

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
        """The same: a URL is that from anywhere."""
        return self

    def open(self, error: type[RalmError] = CorpusError) -> io.BufferedReader:
        """Open it for reading bytes from any place; raises `error` if that is refused, OSError where reading fails."""
        _lost.pop(self.url, None)
        try:
            with _refusals(self.url, error):
                opened = _located(self.url)[0].open(self.path, "rb")
        except error as refused:
            if not isinstance(refused.__context__, FileNotFoundError):
                _lost[self.url] = _said(refused)
            raise
        return io.BufferedReader(_Stream(opened, self.url), _BLOCK)


FilePath: TypeAlias = Path | RemoteFile
"""Where a file is: on a disk of this machine, or behind a URL."""
_lost: Final[dict[str, str]] = {}
"""What went wrong when a file was last read, by URL. Whoever reads a format may take it for a damaged file."""


def check_read_to_end(path: FilePath) -> None:
    """Raise StorageError if a file behind a URL could not be read to its end, or not at all, since the other side
    failed or refused: what was read of it must not pass for all that there is."""
    if isinstance(path, RemoteFile) and path.url in _lost:
        raise StorageError(f"{path.url} was not read completely: {_lost[path.url]}. Run this again.")


def is_url(source: str) -> bool:
    """Whether a source is behind a URL, and not on a disk of this machine."""
    return _URL.match(source) is not None


def remote_file(url: str) -> RemoteFile | None:
    """The file behind a URL; None if that is a folder. Raises CorpusError if there is neither, or if the size of the
    file is not told, as by some web servers: such a file can only be read from its beginning."""
    with _refusals(url):
        system, path = _located(url)
        found = system.info(path)
    if found["type"] == "directory":
        return None
    if found.get("size") is None:
        raise CorpusError(f"{url} does not tell its size; download the file first.")
    return RemoteFile(url, int(found["size"]), path)


def remote_files_below(url: str) -> Iterator[tuple[str, RemoteFile]]:
    """The files below a folder behind a URL, each with its path in the folder, in the order of these paths, part by
    part. Raises CorpusError if the folder cannot be listed."""
    with _refusals(url):
        system, root = _located(url)
        found = system.find(root, detail=True)
    below = {_name_in(root, path): (path, one.get("size")) for path, one in found.items()}
    for name in sorted(below, key=lambda name: name.split("/")):
        path, size = below[name]
        if name and not name.endswith("/"):  # object stores may hold such a name for a folder
            file = f"{url.rstrip('/')}/{name}"
            if size is None:
                raise CorpusError(f"{file} does not tell its size; download the folder first.")
            yield name, RemoteFile(file, int(size), path)


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A folder behind a URL that is written to, without its `/` at the end. Object stores know no folders and cannot
    rename: a file is there as a whole or not at all, and that is all one can rely on.

    All methods raise StorageError where the other side refuses or fails.
    """

    url: str

    def below(self, name: str) -> "RemoteFolder":
        """A folder in it."""
        return RemoteFolder(f"{self.url}/{name}")

    def has(self, name: str) -> bool:
        """Whether there is a file of this name, as others see it now."""
        with self._refusals():
            system, root = _located(self.url)
            system.invalidate_cache()
            return bool(system.exists(f"{root}/{name}"))

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with self._refusals():
            system, root = _located(self.url)
            content: bytes = system.cat_file(f"{root}/{name}")
            return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file, in place of one that is there."""
        with self._refusals():
            system, root = _located(self.url)
            system.pipe_file(f"{root}/{name}", content)

    def upload(self, folder: Path) -> None:
        """Write all files below a folder of this machine."""
        with self._refusals():
            system, root = _located(self.url)
            for file in sorted(folder.rglob("*")):
                if file.is_file():
                    system.put_file(str(file), f"{root}/{file.relative_to(folder).as_posix()}")

    def download(self, folder: Path) -> None:
        """Copy all files into a folder of this machine."""
        with self._refusals():
            system, root = _located(self.url)
            system.invalidate_cache()
            for path in system.find(root):
                to = folder / _name_in(root, path)
                to.parent.mkdir(parents=True, exist_ok=True)
                system.get_file(path, str(to))

    def remove(self) -> None:
        """Remove it with all that is in it, if it is there."""
        with self._refusals():
            system, root = _located(self.url)
            system.invalidate_cache()
            if system.exists(root):
                system.rm(root, recursive=True)

    def _refusals(self) -> AbstractContextManager[None]:
        return _refusals(self.url, StorageError, "used")


class _Stream(io.RawIOBase):
    """A file of fsspec whose errors are all OSErrors, as those of files are."""

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
            _lost[self._url] = _said(error)
            raise OSError(0, _said(error), self._url) from error


@contextmanager
def _refusals(url: str, error: type[RalmError] = CorpusError, what: str = "read") -> Iterator[None]:
    """Turn what fsspec and the packages behind it raise into `error`, and a missing package into MissingExtraError."""
    try:
        yield
    except FileNotFoundError:
        raise error(f"{url} does not exist.") from None
    except ImportError as missing:
        raise MissingExtraError(f"{url} cannot be {what} without another package: {_said(missing)}.") from None
    except Exception as refused:
        raise error(f"{url} cannot be {what}: {_said(refused)}.") from refused


def _said(error: Exception) -> str:
    """The first line of what an error says, without the full stop at its end."""
    if "block_size=0" in str(error):
        return "the server gives no parts of a file; download it first"
    return (next(iter(str(error).splitlines()), "") or type(error).__name__)[:_SAID].rstrip(". ")


def _located(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path that it has there, without a `/` at its end."""
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    system, path = url_to_fs(url)
    if isinstance(system, LocalFileSystem):
        system.auto_mkdir = True  # object stores need no folders
    return system, str(path).rstrip("/")


def _name_in(root: str, path: str) -> str:
    """The path of a file below a folder."""
    return path.removeprefix(root).lstrip("/")
