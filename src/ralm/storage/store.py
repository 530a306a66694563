"""Files of entries by address: SQLite databases, which several processes may read and write at once.

An address is a hash of everything that decides an entry, and an entry ends in a checksum. So an entry is never wrong or
outdated: an altered one counts as missing. Knows nothing of what entries hold.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ralm.errors import InputError, StorageError

_SECONDS_TO_WAIT: Final = 60.0
_AT_A_TIME: Final = 500
_CHECKSUM_BYTES: Final = 16
_TABLE: Final = "CREATE TABLE IF NOT EXISTS entries (address BLOB PRIMARY KEY, entry BLOB) WITHOUT ROWID"


def open_entries(file: Path, *, threads: bool = False) -> sqlite3.Connection:
    """A connection to a file of entries; `threads` lets several threads use it in turn."""
    file.parent.mkdir(parents=True, exist_ok=True)
    return sqlite3.connect(file, timeout=_SECONDS_TO_WAIT, check_same_thread=not threads)


def create_entries(database: sqlite3.Connection) -> None:
    """Make the table of entries unless it is there."""
    database.execute(_TABLE)


def read_entries(database: sqlite3.Connection, addresses: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The addresses whose entries are present and intact, each with its entry."""
    for begin in range(0, len(addresses), _AT_A_TIME):
        some = addresses[begin : begin + _AT_A_TIME]
        marks = ",".join("?" * len(some))
        statement = f"SELECT address, entry FROM entries WHERE address IN ({marks})"  # noqa: S608  (only question marks)
        for address, stored in database.execute(statement, some):
            if isinstance(stored, bytes) and len(stored) >= _CHECKSUM_BYTES:
                entry = stored[:-_CHECKSUM_BYTES]
                if stored[-_CHECKSUM_BYTES:] == _checksum(address, entry):
                    yield address, entry


def write_entries(database: sqlite3.Connection, entries: Iterable[tuple[bytes, bytes]]) -> None:
    """Put entries at their addresses, in place of what was there."""
    rows = ((address, entry + _checksum(address, entry)) for address, entry in entries)
    database.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?)", rows)


def delete_entries(database: sqlite3.Connection, addresses: Iterable[bytes]) -> None:
    """Delete the entries at some addresses, where there are any."""
    database.executemany("DELETE FROM entries WHERE address = ?", ((address,) for address in addresses))


@contextmanager
def entry_errors(file: Path, kind: str, instead: str) -> Iterator[None]:
    """Turn errors of the file system and of SQLite into one sentence.

    `kind` is what the file is, such as "retrieval cache"; `instead` is what to do if it cannot be used. Raises
    StorageError if the file cannot be opened, read or written, InputError if it is something else.
    """
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise StorageError(f"the {kind} {file} cannot be used ({error}); {instead}.") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite's message may not decode
        raise InputError(f"{file} is not a {kind} ({error}); choose another file, or remove this one.") from error


def _checksum(address: bytes, entry: bytes) -> bytes:
    return hashlib.blake2b(address + entry, digest_size=_CHECKSUM_BYTES).digest()
