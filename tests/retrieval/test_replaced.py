"""An index that is built again while it is open: what was opened stays what it was, and other processes are told."""

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ralm.errors import DamagedFolderError
from ralm.records import Hits, Passage
from ralm.retrieval.bm25 import arrays
from ralm.retrieval.bm25.stream import Stream
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index
from tests.fuzz.targets import HashEncoder

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
    streamed = Stream(index.bm25.collection, 5, 1024).search(terms)
    found: list[Hits] = [
        index.bm25.retrieve(QUERIES, 5),
        Hits(numbers_QK=streamed[0], scores_QK=streamed[1]),
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


def test_another_index_in_its_place_is_noticed_by_other_processes(tmp_path: Path) -> None:
    build(tmp_path / "index", seed=0, count=50)
    opened = open_index(tmp_path / "index")
    index, passages = pickle.dumps(opened), pickle.dumps(opened.passages)
    assert list(pickle.loads(passages)) == list(opened.passages)
    assert answers(pickle.loads(index)) == answers(opened)
    build(tmp_path / "index", seed=0, count=50, force=True)
    assert list(pickle.loads(passages)) == list(opened.passages), "an equal one will do"
    assert answers(pickle.loads(index)) == answers(opened)
    build(tmp_path / "index", seed=1, count=50, force=True)
    with pytest.raises(DamagedFolderError, match="the index was replaced"):
        pickle.loads(passages)
    with pytest.raises(DamagedFolderError, match="it was built again"):
        pickle.loads(index)


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

    monkeypatch.setattr("ralm.retrieval.layout.map_arrays", replaced_first)
    assert answers(open_index(tmp_path / "index")) == expected
    assert len(opened) == 2
