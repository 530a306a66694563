"""Damage that no checksum tells: in a large file, between samples, or with checksums that were made to fit."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from ralm.errors import DamagedFolderError
from ralm.records import Hits, Passage
from ralm.retrieval.bm25 import arrays
from ralm.retrieval.bm25.stream import Stream
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.options import VectorOptions
from ralm.retrieval.index import Index, check_index, open_index
from ralm.retrieval.update import update_index
from ralm.storage import manifest as manifests
from ralm.storage.outputs import MANIFEST
from tests.fuzz.mutations import mend
from tests.fuzz.targets import PASSAGE_LIST, HashEncoder
from tests.retrieval.searching import found_by

QUERY = "w1 w2 w3 rep0 rep1 rep2"


@pytest.mark.parametrize("content", [b"", b"nothing", np.zeros(3)])
@pytest.mark.parametrize("name", ["hashes.npy", "raw.npy"])
def test_hashes_and_vectors_that_do_not_fit_the_passages(
    tmp_path: Path, name: str, content: bytes | np.ndarray
) -> None:
    build_index(PASSAGE_LIST, tmp_path / "index", encoder=HashEncoder(), vectors=VectorOptions(faiss="SQ8"))
    file = tmp_path / "index" / "vectors" / "main" / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.save(file, content)
    mend(tmp_path / "index")
    [fault] = check_index(tmp_path / "index")
    assert "is damaged" in fault
    with pytest.raises(DamagedFolderError, match="is damaged"):
        update_index(tmp_path / "index", remove=["d3"], encoders={"main": HashEncoder()})


@pytest.fixture
def index(tmp_path: Path) -> Path:
    build_index(PASSAGE_LIST, tmp_path / "index", encoder=HashEncoder())
    return tmp_path / "index"


def change(folder: Path, name: str, how: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change an array of BM25, and make the manifest fit."""
    file = folder / "bm25" / f"{name}.npy"
    array = np.array(np.load(file))
    np.save(file, how(array))
    mend(folder)


def put(place: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    def changed(array: np.ndarray) -> np.ndarray:
        array.reshape(-1)[place] = value
        return array

    return changed


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("passages", lambda a: a[::-1].copy(), "passages.npy has invalid numbers"),
        ("passages", lambda a: a + 1_000_000, "passages.npy has invalid numbers"),
        ("passages", lambda a: a - 5, "passages.npy has invalid numbers"),
        ("passages", lambda a: a.astype(np.int64), "passages.npy has an invalid head"),
        ("codes", lambda a: np.full_like(a, 255), "codes.npy has invalid codes"),
        ("codes", lambda a: a[:-1].copy(), "codes.npy has .* codes for .* postings"),
        ("code_table", lambda a: a[:3].copy(), "escaped_rows.npy has rows that are not in the table of codes"),
        ("code_table", put(0, -1), "code_table.npy is not a table"),
        ("escaped", put(-1, 1 << 40), "escaped.npy has positions that do not rise or are out of range"),
        ("escaped", lambda a: a[::-1].copy(), "escaped.npy has positions that do not rise"),
        ("escaped", lambda a: a + 1, "codes.npy has invalid codes|escaped.npy has positions"),
        ("escaped_rows", put(0, -7), "escaped_rows.npy has rows"),
        ("offsets", put(3, 60_000), "offsets.npy does not divide"),
        ("offsets", put(-1, 3), "offsets.npy does not divide"),
        ("totals", put(1, 10_000_000), "totals.npy says"),
        ("totals", put(0, -1), "totals.npy says"),
        ("term_ids", put(0, 1 << 30), "term_ids.npy has numbers that no term has"),
        ("term_sizes", put(0, 255), "term_sizes.npy does not divide"),
        ("vocabulary", lambda a: a[:-2].copy(), "term_sizes.npy does not divide"),
    ],
)
def test_kernels_never_get_what_would_lead_them_out_of_their_arrays(
    index: Path, name: str, how: Callable[[np.ndarray], np.ndarray], message: str, streams: bool
) -> None:
    change(index, name, how)
    with pytest.raises(DamagedFolderError, match=message):
        bm25 = open_index(index).bm25
        if streams:
            found_by(Stream(bm25.collection, 5, 1024), bm25._batch([bm25.terms(QUERY.split())], 5))
        else:
            bm25.retrieve([QUERY], 5)


def test_a_check_finds_a_byte_that_differs_in_a_large_file(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "_READ_BYTES", 0)
    mend(index)
    for name in ("bm25/passages.npy", "passages.arrow", "vectors/main/vectors.faiss"):
        file = index / name
        whole = file.read_bytes()
        content = bytearray(whole)
        content[len(content) // 2] ^= 0x80
        file.write_bytes(content)
        open_index(index)
        assert check_index(index) == [f"{name} was altered since it was written"]
        file.write_bytes(whole)
    assert check_index(index) == []


def test_a_manifest_names_nothing_outside_its_folder(index: Path) -> None:
    manifest = json.loads((index / MANIFEST).read_text())
    for name in ("../outside", "/etc/passwd", "a\0b", "bm25/../../x"):
        files = {**manifest["files"], name: manifest["files"]["passages.arrow"]}
        (index / MANIFEST).write_text(json.dumps({**manifest, "files": files}))
        with pytest.raises(DamagedFolderError, match="is damaged or not a ralm manifest"):
            open_index(index)


def test_vectors_that_say_they_are_more_than_they_are(index: Path) -> None:
    file = index / "vectors" / "main" / "vectors.faiss"
    content = bytearray(file.read_bytes())
    content[8:16] = (1 << 40).to_bytes(8, "little")
    file.write_bytes(content)
    mend(index)
    with pytest.raises(DamagedFolderError, match=r"vectors.faiss is damaged: 1,099,511,627,776 vectors"):
        open_index(index).dense(encoder=HashEncoder())
    build_index(PASSAGE_LIST[:7], index.with_name("few"), bm25=False, encoder=HashEncoder())
    (index.with_name("few") / "vectors" / "main" / "vectors.faiss").replace(file)
    mend(index)
    with pytest.raises(DamagedFolderError, match=r"7 vectors of 8 dimensions .* for 1,200 passages"):
        open_index(index).dense(encoder=HashEncoder())


QUERIES = ["w1 w2 w7", "w2 w7 w9", "w9 w30 w1 w1", "title"]


def some_passages(seed: int, count: int) -> list[Passage]:
    words = np.random.default_rng(seed).zipf(1.3, 20 * count) % 200
    texts = [" ".join(f"w{word}" for word in words[20 * n : 20 * n + 20]) for n in range(count)]
    return [Passage(n, f"d{n}-{seed}", f"Title {seed}", text) for n, text in enumerate(texts)]


def build(out: Path, seed: int, count: int, *, force: bool = False) -> None:
    build_index(some_passages(seed, count), out, encoder=HashEncoder(), force=force)


def answers(index: Index) -> Sequence[object]:
    """Every way of searching, and what the hits say."""
    terms = [index.bm25.terms(query.split()) for query in QUERIES]
    found: list[Hits] = [
        index.bm25.retrieve(QUERIES, 5),
        found_by(Stream(index.bm25.collection, 5, 1024), index.bm25._batch(terms, 5)),
        index.dense(encoder=HashEncoder()).retrieve(QUERIES, 5),
    ]
    hits = [hits.of(row) for hits in found for row in range(len(QUERIES))]
    return [index.fingerprint, hits, [index.passages[number] for row in hits for number, _ in row], len(index.passages)]


@pytest.mark.parametrize("asked_before", [False, True])
def test_what_was_opened_stays_what_it_was(tmp_path: Path, asked_before: bool) -> None:
    build(tmp_path / "index", seed=0, count=1500)
    expected = answers(open_index(tmp_path / "index"))
    opened = open_index(tmp_path / "index")
    if asked_before:
        assert answers(opened) == expected
    build(tmp_path / "index", seed=1, count=900, force=True)
    assert answers(opened) == expected
    assert answers(open_index(tmp_path / "index")) != expected


def test_an_index_that_is_replaced_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some files of the one and some of the other would be opened."""
    build(tmp_path / "index", seed=0, count=50)
    build(tmp_path / "other", seed=1, count=50)
    expected = answers(open_index(tmp_path / "other"))
    opened: list[Path] = []
    mapped = arrays.map_arrays

    def replaced_first(folder: Path) -> object:
        if not opened:
            (tmp_path / "index").rename(tmp_path / "old")
            (tmp_path / "other").rename(tmp_path / "index")
        opened.append(folder)
        return mapped(folder)

    monkeypatch.setattr("ralm.retrieval.index.map_arrays", replaced_first)
    assert answers(open_index(tmp_path / "index")) == expected
    assert len(opened) == 2
