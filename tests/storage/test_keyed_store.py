"""A store: what was put stays, an altered value is missing, and another kind of file is rejected."""

import os
import signal
import sqlite3
import threading
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import pytest

from ralm.errors import InputError, StorageError, UsageError
from ralm.storage.store import Store


@pytest.mark.parametrize("shared", [True, False])
def test_what_was_put_is_there_for_the_next(tmp_path: Path, shared: bool) -> None:
    file = tmp_path / "some #1 %20" / "store.sqlite"
    with Store(file, shared=shared) as store:
        store.put([(b"a", b"1"), (b"\0\xff", b""), (b"a", b"2")])
        assert store.get([b"a", b"\0\xff", b"b", b"a"]) == {b"a": b"2", b"\0\xff": b""}
    with Store(file, shared=shared) as store:
        assert dict(store.items()) == {b"a": b"2", b"\0\xff": b""}
        assert (store.count(), store.get([b"b"])) == (2, {})
        many = {b"%d" % number: b"%d" % number for number in range(1300)}
        store.put(many.items())
        assert store.get(many) == many
    assert [path.name for path in file.parent.iterdir()] == ["store.sqlite"]


def test_in_memory() -> None:
    with Store() as one, Store() as two:
        one.put([(b"a", b"1")])
        assert (one.get([b"a"]), two.get([b"a"])) == ({b"a": b"1"}, {})


def test_altered_values_are_missing_until_they_are_put_again(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.put([(b"a", b"1"), (b"b", b"2")])
    with sqlite3.connect(tmp_path / "store") as database:
        stored = dict(database.execute("SELECT key, value FROM entries").fetchall())
        for wrong in (stored[b"b"], b"\xff" + stored[b"a"][1:], stored[b"a"][:-1], b"", "text", None):
            database.execute("UPDATE entries SET value = ? WHERE key = ?", (wrong, b"a"))
            database.commit()
            with Store(tmp_path / "store") as store:
                assert store.get([b"a", b"b"]) == {b"b": b"2"}
                assert store.items() == [(b"b", b"2")]
    database.close()
    with Store(tmp_path / "store") as store:
        store.put([(b"a", b"1")])
        assert store.get([b"a"]) == {b"a": b"1"}


OTHERS = {
    "tables": ["CREATE TABLE entries (key, value)"],
    "newer": ["PRAGMA application_id = 0x72616C6D", "PRAGMA user_version = 2", "CREATE TABLE entries (key, value)"],
    "no tables yet": ["PRAGMA application_id = 252006673"],
    "a version alone": ["PRAGMA user_version = 7"],
    "tables, and no count of their changes": ["CREATE TABLE notes (a)", "PRAGMA schema_version = 0"],
    "our marks": ["PRAGMA application_id = 0x72616C6D", "PRAGMA user_version = 1", "CREATE TABLE notes (a)"],
    "emptied": ["CREATE TABLE notes (a)", "DROP TABLE notes"],
    "a text": [],
}
"""What makes files of other programs."""


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("other", OTHERS)
def test_another_kind_of_file_is_rejected(tmp_path: Path, other: str, shared: bool) -> None:
    file = tmp_path / "file"
    if other == "a text":
        file.write_text("notes, and no database " * 50)
    database = sqlite3.connect(file)
    for statement in OTHERS[other]:
        database.execute(statement)
    database.commit()
    database.close()
    content = file.read_bytes()
    with pytest.raises(InputError, match="is not a file of answers.*; choose another file, or remove this one"):
        Store(file, "file of answers", shared=shared)
    assert file.read_bytes() == content


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "store"):
        with pytest.raises(StorageError, match=r"the file of answers .* cannot be used \(.*\); go without one\."):
            Store(place, "file of answers", "go without one")


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.put([(b"a", b"1")])
        pages = store._database.execute("PRAGMA page_count").fetchone()[0]
        store._database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageError, match="full"):
            store.put([(b"b", b"2"), (b"c", bytes(100_000))])
        assert store.get([b"a", b"b"]) == {b"a": b"1"}


@pytest.mark.parametrize("shared", [True, False])
def test_a_killed_process_loses_nothing_that_it_put(tmp_path: Path, shared: bool) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store = Store(tmp_path / "store", shared=shared)
            for number in count():
                store.put([(b"%d" % number, b"one"), (b"%d too" % number, b"two")])
                os.write(writer, b".")
        finally:
            os._exit(1)
    os.close(writer)
    done = len(os.read(reader, 50))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reader, 1 << 16):
        done += len(more)
    os.close(reader)
    with Store(tmp_path / "store", shared=shared) as store:
        assert len(store.get(b"%d" % number for number in range(done))) == done
        assert store.count() in (2 * done, 2 * done + 2), "all values of a `put`, or none"


def test_a_closed_store_is_not_used(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", shared=False)
    store.close()
    store.close()
    with pytest.raises(UsageError, match="is closed; open it again"):
        store.get([b"a"])
    assert list(tmp_path.iterdir()) == [], "an empty file that nobody else uses is removed"


def test_several_threads_at_once(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:

        def work(first: int) -> None:
            for number in range(first, 200, 4):
                store.put([(b"%d" % number, b"v")])
                assert store.get([b"%d" % number]) == {b"%d" % number: b"v"}

        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.count() == 200


def put_and_get(file: Path, first: int) -> int:
    """Put 40 values, each of which another process puts too, and count those that are there."""
    numbers = [b"%d" % number for number in range(first, first + 40)]
    for number in numbers:
        with Store(file) as store:
            store.put([(number, number * 10)])
    with Store(file) as store:
        return len(store.get(numbers))


def test_several_processes_at_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(put_and_get, [tmp_path / "store"] * 4, [0, 10, 20, 30])) == [40] * 4
    with Store(tmp_path / "store") as store:
        assert dict(store.items()) == {b"%d" % number: (b"%d" % number) * 10 for number in range(70)}
