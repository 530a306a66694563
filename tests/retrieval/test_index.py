"""The index folder: what it records, what damage does to it, and what an interrupted build leaves behind: nothing."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ralm.errors import CorpusError, DamagedFolderError, FolderError, StorageError, UsageError
from ralm.records import Passage
from ralm.retrieval.bm25.formula import BM25Options, BuildOptions
from ralm.retrieval.build import build_index
from ralm.retrieval.index import open_index
from ralm.storage.manifest import manifest_checksum
from ralm.storage.outputs import MANIFEST

TEXTS = ("a red fox", "the red barn", "blue sky \u00e9t\u00e9", "")


def some_passages(count: int = len(TEXTS)) -> Iterator[Passage]:
    return (
        Passage(number=i, document_id=f"d{i // 2}", title="Colours" if i % 2 else "", text=TEXTS[i % len(TEXTS)])
        for i in range(count)
    )


@pytest.fixture
def index(tmp_path: Path) -> Path:
    build_index(some_passages(), tmp_path / "index")
    return tmp_path / "index"


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_what_goes_in_comes_out(index: Path) -> None:
    opened = open_index(index)
    assert list(opened.passages) == list(some_passages())
    assert [number for number, _ in opened.bm25.retrieve(["red"], 5).of(0)] == [0, 1]
    assert [number for number, _ in opened.bm25.retrieve(["colour"], 5).of(0)] == [3, 1]
    assert opened.manifest.counts == {"documents": 2, "passages": 4, "terms": 7, "postings": 9, "tokens": 9}
    assert opened.manifest.settings["bm25"] == {"analysis": "plain-english", "stemmer": None, "k1": 0.9, "b": 0.4}
    assert opened.manifest.format_version == 3
    assert opened.bm25.config["analysis"] == "plain-english"


def test_queries_are_analysed_as_the_passages_were(index: Path, tmp_path: Path) -> None:
    """The standard analyser has no stemmer and no stop words."""
    build_index(some_passages(), tmp_path / "english", analyser="english")
    build_index(some_passages(), tmp_path / "standard", analyser="standard")
    english, standard = open_index(tmp_path / "english"), open_index(tmp_path / "standard")
    found = [
        [[number for number, _ in hits.of(row)] for row in range(2)]
        for hits in (one.bm25.retrieve(["foxes", "the"], 4) for one in (english, standard))
    ]
    assert found == [[[0], []], [[], [1]]]
    assert standard.bm25.config["analysis"] == "plain-standard"
    assert english.fingerprint == open_index(index).fingerprint


def test_what_cannot_be_built_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"`analyser` must be one of english, standard.*, not 'klingon'"):
        build_index(some_passages(), tmp_path / "index", analyser="klingon")
    with pytest.raises(CorpusError, match="no passages"):
        build_index([], tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_constants_are_applied_when_it_is_opened(index: Path, tmp_path: Path) -> None:
    options = BM25Options(k1=2.0, b=1.0)
    build_index(some_passages(), tmp_path / "other", options)
    queries = ["red fox sky"]
    built, opened = open_index(tmp_path / "other"), open_index(index, options)
    assert built.bm25.retrieve(queries, 4).of(0) == opened.bm25.retrieve(queries, 4).of(0)
    assert built.bm25.retrieve(queries, 4).of(0) != open_index(index).bm25.retrieve(queries, 4).of(0)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(errno.ENOSPC, "No space left on device"), StorageError),
        (CorpusError("line 3 is no JSON"), CorpusError),
    ],
)
@pytest.mark.parametrize("older", [False, True])
def test_an_interrupted_build_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, expected: type[BaseException], older: bool
) -> None:
    def passages() -> Iterator[Passage]:
        yield from some_passages(2_000)
        raise raised

    out = tmp_path / "index"
    if older:
        build_index(some_passages(), out)
    before = snapshot(tmp_path)
    monkeypatch.setattr(BuildOptions, "buffered_terms", 1000)
    with pytest.raises(expected):
        build_index(passages(), out, force=older)
    assert snapshot(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == (["index"] if older else [])


def test_a_disk_that_fills_while_postings_are_merged(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = snapshot(index)
    monkeypatch.setattr("ralm.retrieval.bm25.writing.write_postings", full)
    with pytest.raises(StorageError, match="no space left"):
        build_index(some_passages(), index, force=True)
    assert snapshot(index) == before
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"format_version": 1}, FolderError, "reads format 3: build the index again"),
        ({"kind": "run"}, FolderError, "is a ralm run"),
        ({"settings": {}}, DamagedFolderError, "does not describe its fingerprint"),
        ({"bm25": None}, DamagedFolderError, "does not describe its bm25|neither BM25"),
        ({"bm25": {"k1": 0.9, "b": 0.4}}, DamagedFolderError, "does not describe its bm25|neither BM25"),
        ({"bm25": {"analysis": "x-y", "k1": 0.9, "b": 0.4}}, FolderError, "the analyser 'x-y'"),
    ],
)
def test_a_manifest_of_something_else(
    index: Path, changed: dict[str, object], error: type[Exception], message: str
) -> None:
    manifest = json.loads((index / MANIFEST).read_text())
    if "bm25" in changed:
        manifest["settings"] |= changed
    else:
        manifest |= changed
    (index / MANIFEST).write_text(json.dumps(manifest | {"checksum": manifest_checksum(manifest)}))
    with pytest.raises(error, match=message):
        open_index(index)
