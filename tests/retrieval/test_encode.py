"""Sets of vectors of an index: added, replaced and removed in one step, whoever reads it or is killed meanwhile."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ralm.errors import DamagedFolderError, FolderError, FolderExistsError, UsageError
from ralm.records import Passage
from ralm.retrieval.allowed import title_mask
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.options import VectorOptions
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.update import add_vectors
from ralm.storage import manifest as manifests
from ralm.storage.outputs import MANIFEST
from ralm.storage.work import unfinished, work_folder
from tests.fakes import LetterEncoder
from tests.fuzz.targets import HashEncoder

QUERIES = ["the fox and the sea", "abc", "a red barn"]


def some_passages(count: int = 30) -> list[Passage]:
    return [Passage(n, f"d{n}", f"Title {n}", f"{'abcdefgh'[n % 8] * (n + 1)} fox {n}") for n in range(count)]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """One for BM25 alone."""
    build_index(some_passages(), tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """One that was built with vectors."""
    build_index(some_passages(), tmp_path / "both", encoder=HashEncoder())
    return tmp_path / "both"


class OtherLetters(LetterEncoder):
    """Another version of the same encoder."""

    query_fingerprint = "other letters"

    def __init__(self) -> None:
        super().__init__(4)
        self.config = {"name": "letters", "version": 2}


def found(index: Index, vectors: str | None, encoder: Any) -> list[Any]:
    hits = index.dense(vectors=vectors, encoder=encoder).retrieve(QUERIES, 5)
    return [hits.of(row) for row in range(len(QUERIES))]


def neighbours(index: Path) -> list[str]:
    return sorted(path.name for path in index.parent.iterdir())


def strange_files(index: Path) -> set[str]:
    named = {MANIFEST, *open_index(index).manifest.files}
    return {path.relative_to(index).as_posix() for path in index.rglob("*") if path.is_file()} ^ named


def test_added_vectors_find_what_those_of_a_build_find(index: Path, both: Path) -> None:
    add_vectors(index, HashEncoder())
    opened = open_index(index)
    assert list(opened.vectors) == ["main"]
    assert found(opened, None, HashEncoder()) == found(open_index(both), None, HashEncoder())
    assert found(opened, "main", HashEncoder()) == found(opened, None, HashEncoder())
    assert neighbours(index) == ["both", "index"]
    assert strange_files(index) == set()


def test_several_sets_and_which_is_the_default(both: Path) -> None:
    add_vectors(both, LetterEncoder(), name="letters-v1.2")
    add_vectors(both, OtherLetters(), name="other", default=False)
    opened = open_index(both)
    assert list(opened.vectors) == ["letters-v1.2", "main", "other"]
    assert opened.vectors["other"] == OtherLetters().config
    assert found(opened, None, LetterEncoder()) == found(opened, "letters-v1.2", LetterEncoder())
    with pytest.raises(FolderError, match="was built with another encoder"):
        opened.dense(vectors="main", encoder=LetterEncoder())
    with pytest.raises(UsageError, match="has no vectors 'third', but 'main', 'letters-v1.2', 'other'"):
        opened.dense(vectors="third", encoder=LetterEncoder())
    assert strange_files(both) == set()


def test_identities_outlive_changes(index: Path, both: Path) -> None:
    """What decides cache keys and runs: of BM25, of the vectors of a build, and of a set that stays."""
    before, alone = open_index(both), open_index(index)
    bm25, main = before.bm25.config, before.dense(encoder=HashEncoder()).config
    assert before.fingerprint == alone.fingerprint, "vectors do not change it"
    add_vectors(both, LetterEncoder(), name="letters")
    letters = open_index(both).dense(encoder=LetterEncoder()).config
    add_vectors(both, OtherLetters(), name="other")
    after = open_index(both)
    assert (after.fingerprint, after.bm25.config) == (before.fingerprint, bm25)
    assert after.dense(vectors="main", encoder=HashEncoder()).config == main
    assert after.dense(vectors="letters", encoder=LetterEncoder()).config == letters
    add_vectors(index, LetterEncoder())
    assert open_index(index).bm25.config == alone.bm25.config
    first = open_index(index).dense(encoder=LetterEncoder()).config
    assert first["fingerprint"] == letters["fingerprint"], "the same vectors of the same passages"
    add_vectors(index, OtherLetters(), force=True)
    assert open_index(index).dense(encoder=OtherLetters()).config["fingerprint"] != first["fingerprint"]


def test_an_open_index_keeps_answering(both: Path) -> None:
    """While its vectors are replaced; one that was asked before and one that was not."""
    asked, fresh = open_index(both), open_index(both)
    expected = found(asked, None, HashEncoder())
    words = asked.bm25.retrieve(QUERIES, 5).numbers_QK.tolist()
    add_vectors(both, LetterEncoder(), name="main", force=True)
    assert [path.name for path in (both / "vectors").iterdir()] == ["main"]
    for opened in (asked, fresh):
        assert found(opened, None, HashEncoder()) == expected
        assert opened.bm25.retrieve(QUERIES, 5).numbers_QK.tolist() == words
        assert len(list(opened.passages)) == 30
        assert title_mask(opened.passages, ["title 3"]).sum() == 29
    assert found(open_index(both), None, LetterEncoder()) != expected


def test_odd_names_are_refused(index: Path) -> None:
    for name in ("", "a/b", "..", "a..b", ".hidden", "é", "a b", "a\0", "x" * 65, "-v"):
        with pytest.raises(UsageError, match="vectors cannot be called"):
            add_vectors(index, LetterEncoder(), name=name)
    assert neighbours(index) == ["index"]


def test_two_writers_at_once(both: Path) -> None:
    new = both.with_name(".both.new")
    for folder in (new, unfinished(both)):
        with work_folder(folder, both), pytest.raises(FolderExistsError, match="another process is writing"):
            add_vectors(both, LetterEncoder(), name="letters")
    with pytest.raises(FolderExistsError, match="already has vectors 'main', which are kept"):
        add_vectors(both, LetterEncoder())
    assert list(open_index(both).vectors) == ["main"]
    assert neighbours(both) == ["both"]


def test_a_manifest_that_says_too_little_of_its_sets(both: Path) -> None:
    manifest = json.loads((both / MANIFEST).read_text())
    settings, files = manifest["settings"], manifest["files"]
    for changed in (
        {"settings": {**settings, "vectors": {**settings["vectors"], "default": "none"}}},
        {"files": {name: entry for name, entry in files.items() if name != "vectors/main/hashes.npy"}},
    ):
        content = manifest | changed
        content["checksum"] = manifests.manifest_checksum(content)
        (both / MANIFEST).write_text(json.dumps(content))
        with pytest.raises(DamagedFolderError, match="build the index again"):
            open_index(both)


def test_encoding_again_takes_the_vectors_of_the_same_encoder(index: Path) -> None:
    """Of texts that occur twice, one is encoded; vectors in 16 bits are no source of whole ones."""
    twice = [Passage(n, f"d{n}", "", f"text {n % 20}") for n in range(30)]
    build_index(twice, index, force=True)
    encoder = LetterEncoder()

    def encoded(kind: str, other: LetterEncoder = encoder) -> int:
        encoder.encoded.clear()
        add_vectors(index, other, VectorOptions(faiss=kind), force=True)
        vectors = open_index(index).passage_vectors().of(np.arange(30))
        np.testing.assert_allclose(vectors, encoder.encode_queries([one.text for one in twice]), rtol=1e-3)
        return len(other.encoded)

    assert [encoded(kind) for kind in ("SQ8", "Flat", "HNSW4", "SQfp16", "SQfp16", "Flat")] == [20, 0, 0, 0, 0, 20]
    other = LetterEncoder()
    other.config = {**other.config, "a_key_of_another_version": 1}
    assert encoded("Flat", other) == 20
