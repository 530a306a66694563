"""Sources behind URLs: the same documents as from a disk, and one sentence where that fails."""

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations

from ralm.corpus.documents import Skipped
from ralm.corpus.sources import fingerprint_of, read_documents
from ralm.errors import CorpusError, MissingExtraError, StorageError
from ralm.records import Document
from tests.cli.program import done, failed, ralm

ROWS = [{"id": f"d{number}", "text": f"text {number} \u00e4"} for number in range(50)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of files of many kinds, and of what is left out."""
    made = tmp_path / "corpus"
    (made / "b").mkdir(parents=True)
    (made / ".hidden").mkdir()
    files = {
        "a.jsonl": LINES,
        "b/packed.jsonl.gz": gzip.compress(LINES.replace(b'"d', b'"e')),
        "b.csv": b"id,text\nc,of a table\n",
        "b/plain.txt": b"plain text",
        "page.html": b"<title>Page</title><p>of the web",
        "empty.txt": b"",
        "unknown.xyz": b"?",
        "broken.json": b"{",
        ".hidden/x.txt": b"hidden",
    }
    for name, content in files.items():
        (made / name).write_bytes(content)
    pq.write_table(pa.table({"text": ["of a column"]}), made / "z.parquet")
    return made


class Flaky(MemoryFileSystem):  # type: ignore[misc]
    """Fails as the packages of object stores do, with errors that are no OSErrors."""

    protocol = "flaky"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("flaky://").strip("/")

    def info(self, path: str, **kwargs: Any) -> Any:
        if "denied" in path:
            raise KeyError("no credentials.\nmore")
        return super().info(path, **kwargs)

    def _open(self, path: str, *_: Any, **__: Any) -> Any:
        opened = super()._open(path)
        opened.read = partial(self._lost, opened)
        return opened

    def _lost(self, opened: Any, count: int = -1) -> bytes:
        raise KeyError("the connection was lost")


@pytest.fixture(scope="module", autouse=True)
def flaky() -> None:
    fsspec.register_implementation("flaky", Flaky, clobber=True)


def remote(folder: Path, root: str) -> str:
    """The same files in memory, behind a URL."""
    system = fsspec.filesystem("memory")
    for file in folder.rglob("*"):
        if file.is_file():
            system.pipe(f"/{root}/{file.relative_to(folder)}", file.read_bytes())
    return f"memory://{root}"


def read(*sources: str) -> tuple[list[Document], Skipped]:
    skipped = Skipped()
    return list(read_documents(sources, skipped=skipped)), skipped


def test_a_folder_gives_the_documents_of_the_same_on_a_disk(folder: Path) -> None:
    url = remote(folder, "whole")
    documents, skipped = read(str(folder))
    for same in (url, f"{url}/", f"file://{folder}"):
        assert read(same)[0] == documents
        assert read(same)[1].counts == skipped.counts
    assert any("memory://whole/broken.json" in one for some in read(url)[1].examples.values() for one in some)
    named = [one.id for one in read_documents(url, skipped=Skipped(), source_in_ids=True)]
    assert "memory://whole/b/plain.txt" in named


def test_a_file_is_read_alone(folder: Path) -> None:
    url = remote(folder, "alone")
    for name in ("a.jsonl", "b/packed.jsonl.gz", "b.csv", "b/plain.txt", "z.parquet", "page.html"):
        assert read(f"{url}/{name}")[0] == read(str(folder / name))[0]
    with pytest.raises(CorpusError, match=r"memory://alone/broken\.json"):
        read(f"{url}/broken.json")
    with pytest.raises(CorpusError, match=r"memory://alone/empty\.txt is empty"):
        read(f"{url}/empty.txt")
    with pytest.raises(CorpusError, match=r"memory://alone/unknown\.xyz is of an unknown type"):
        read(f"{url}/unknown.xyz")


def test_the_fingerprint_is_of_names_and_content(folder: Path) -> None:
    url = remote(folder, "printed")
    first = fingerprint_of([url])
    assert first == fingerprint_of([url])
    assert fingerprint_of([f"{url}/a.jsonl"]) != first
    fsspec.filesystem("memory").pipe("/printed/a.jsonl", LINES + LINES)
    assert fingerprint_of([url]) != first


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://nowhere/x.jsonl", "memory://nowhere/x.jsonl does not exist."),
        ("flaky://denied/x.jsonl", "flaky://denied/x.jsonl cannot be read: 'no credentials"),
        ("nothing://x/x.jsonl", "nothing://x/x.jsonl cannot be read: Protocol not known"),
    ],
)
def test_what_is_refused(url: str, said: str) -> None:
    with pytest.raises(CorpusError) as refused:
        read(url)
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["x.jsonl", "x.txt", "x.pdf", "x.parquet", "x.docx"])
def test_a_connection_that_is_lost_is_no_damaged_file(name: str, tmp_path: Path) -> None:
    """In a folder, damaged files are left out: what cannot be read now must not be."""
    system = fsspec.filesystem("memory")
    system.pipe(f"/{name}-lost/a.txt", b"one that is read")
    system.pipe(f"/{name}-lost/{name}", LINES)
    for url in (f"flaky://{name}-lost", f"flaky://{name}-lost/{name}"):
        with pytest.raises(StorageError, match=r"flaky://\S+ was not read completely: 'the connection was lost'"):
            read(url)


def test_a_server_need_not_report_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe("/sizeless/a.txt", b"text")
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *_, **__: {"type": "file"})
    assert [one.text for one in read("memory://sizeless/a.txt")[0]] == ["text"]


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known_implementations, "far", {"class": "far_fs.F", "err": "Install far_fs"})
    with pytest.raises(
        MissingExtraError, match=r"far://x/a\.txt cannot be read without another package: Install far_fs"
    ):
        read("far://x/a.txt")


def test_the_command_indexes_what_is_behind_a_url(folder: Path, tmp_path: Path) -> None:
    url = remote(folder, "command")
    assert "50 passages" in done("index", f"{url}/a.jsonl", "--out", tmp_path / "index").out
    assert "text 7 \u00e4" in done("search", tmp_path / "index", "text 7", "-k", 1).out
    said = f"{url}/none.jsonl does not exist."
    failed(ralm("index", f"{url}/none.jsonl", "--out", tmp_path / "none"), 1, said)
