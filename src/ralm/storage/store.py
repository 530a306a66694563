"""Values under keys, in one SQLite file: answers of models behind an API, and the results that a killed run keeps.

A key is a hash of everything that decides its value, so a value is never wrong or outdated. Each value is stored with a
checksum, and an altered one counts as missing.
"""

import hashlib
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from ralm.errors import InputError, StorageError, UsageError

STORE_SUFFIX: Final = ".sqlite"
_APPLICATION: Final = 0x72616C6D
"""Marks a file as ours ("ralm"), in the place that SQLite has for such a mark."""
_VERSION: Final = 1
_SECONDS_TO_WAIT: Final = 60.0
_CHECKSUM_BYTES: Final = 16
_CREATE: Final = "CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"
_GET: Final = "SELECT key, value FROM entries WHERE key = ?"
_SHARED: Final = ("journal_mode = WAL", "synchronous = NORMAL")
_ALONE: Final = ("locking_mode = EXCLUSIVE", "synchronous = OFF")


class Store:
    """Values (bytes) by their keys (bytes), in a file that is created if it is missing; a context manager.

    Several processes and threads may use a file at once. A process that is killed after `put` returned does not lose
    what it put. With `shared=False` no other process may use the file, so that no file locks are needed, which some
    disks lack; the caller holds the folder's lock instead. Without a `file`, values are kept in memory.

    `what` names the file in messages, and `instead` says what to do if it cannot be used. Raises InputError if the file
    is something else, StorageError if it cannot be opened, read or written.
    """

    def __init__(
        self,
        file: Path | None = None,
        what: str = "store",
        instead: str = "choose another file",
        *,
        shared: bool = True,
    ) -> None:
        self.file = file
        self._what = what
        self._instead = instead
        self._shared = shared
        self._lock = threading.Lock()
        with self._errors():
            if file is None:
                self._database = sqlite3.connect(":memory:", check_same_thread=False)
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                uri = file.absolute().as_uri() + ("" if shared else "?nolock=1")
                self._database = sqlite3.connect(uri, uri=True, timeout=_SECONDS_TO_WAIT, check_same_thread=False)
            self._close_file = weakref.finalize(self, self._database.close)
            try:
                self._prepare_with_others()
            except BaseException:
                self._close_file()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values of those of these keys that have one."""
        distinct = dict.fromkeys(keys)
        with self._lock, self._errors():
            database = self._open()
            return dict(_intact(row for key in distinct for row in database.execute(_GET, (key,))))

    def count(self) -> int:
        """Return the number of values, altered ones included."""
        with self._lock, self._errors():
            count: int = self._open().execute("SELECT COUNT(*) FROM entries").fetchone()[0]
            return count

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return all keys and their values."""
        with self._lock, self._errors():
            return list(_intact(self._open().execute("SELECT key, value FROM entries")))

    def put(self, values: Iterable[tuple[bytes, bytes]]) -> None:
        """Store values under their keys, in place of what was there: all of them or, after an error, none."""
        rows = [(key, value + _checksum(key, value)) for key, value in values]
        # the lock is taken here and not in a context manager of ours, which an interrupt could leave locked
        with self._lock, self._errors(), self._open() as database:
            database.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?)", rows)

    def close(self) -> None:
        """Close the file; further calls of this do nothing. A file that is not shared is removed if it is empty."""
        with self._lock, self._errors():
            if not self._close_file.alive:
                return
            empty = not self._shared and not self._database.execute("SELECT 1 FROM entries LIMIT 1").fetchone()
            self._close_file()
            if empty and self.file is not None:
                self.file.unlink(missing_ok=True)

    def _prepare(self) -> None:
        """Check that the file is a store, or create one; nothing of another file is changed."""
        with self._database:  # one snapshot, since another process may be creating the file
            self._database.execute("BEGIN")
            marks = tuple(self._pragma(name) for name in ("application_id", "user_version"))
            tables = [name for (name,) in self._database.execute("SELECT name FROM sqlite_master")]
            is_new = not (any(marks) or tables or self._pragma("schema_version"))
        if not is_new and (marks, tables) != ((_APPLICATION, _VERSION), ["entries"]):
            raise InputError(f"{self.file} is not a {self._what}; choose another file, or remove this one.")
        # A commit is safe from a killed process without waiting for the disk. A file that is not shared may be lost
        # if the whole machine fails: what it holds is then computed again.
        for setting in _SHARED if self._shared else _ALONE:
            self._database.execute(f"PRAGMA {setting}")
        if is_new:
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.execute(f"PRAGMA application_id = {_APPLICATION}")
                self._database.execute(f"PRAGMA user_version = {_VERSION}")
                self._database.execute(_CREATE)

    def _prepare_with_others(self) -> None:
        """Try again while another process creates the same file: SQLite does not wait for that by itself."""
        end = time.monotonic() + _SECONDS_TO_WAIT
        while True:
            try:
                return self._prepare()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
            time.sleep(0.01)

    def _pragma(self, name: str) -> int:
        value: int = self._database.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    def _open(self) -> sqlite3.Connection:
        if not self._close_file.alive:
            raise UsageError(f"the {self._what} {self.file} is closed; open it again.")
        return self._database

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the file system and of SQLite into one sentence."""
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise StorageError(f"the {self._what} {self.file} cannot be used ({error}); {self._instead}.") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite's message may not decode
            raise InputError(
                f"{self.file} is not a {self._what} ({error}); choose another file, or remove this one."
            ) from error


def _intact(rows: Iterable[tuple[object, object]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of rows whose checksum fits."""
    for key, stored in rows:
        if isinstance(key, bytes) and isinstance(stored, bytes):
            value = stored[:-_CHECKSUM_BYTES]
            if stored[-_CHECKSUM_BYTES:] == _checksum(key, value):
                yield key, value


def _checksum(key: bytes, value: bytes) -> bytes:
    return hashlib.blake2b(key + value, digest_size=_CHECKSUM_BYTES).digest()
