"""The cache of retrievals: what it saves, what it keeps apart, several processes at once, and files that are none."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ralm.errors import UsageError
from ralm.protocols import Retriever
from ralm.records import Hits
from ralm.retrieval.bm25.arrays import open_arrays
from ralm.retrieval.bm25.formula import BM25Options
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.bm25.segments import Segment
from ralm.retrieval.build import build_index
from ralm.retrieval.cache import CachedRetriever
from ralm.retrieval.hybrid import FusionOptions, Hybrid
from ralm.retrieval.index import open_index
from ralm.retrieval.random import RandomRetriever
from tests.fakes import LetterEncoder, SharedWordsRetriever, passages_of

PASSAGES = passages_of("red fox", "red barn", "blue sea", "red sea", "fox")


def test_what_was_found_is_not_sought_again(tmp_path: Path) -> None:
    retriever = SharedWordsRetriever(PASSAGES)
    cached = CachedRetriever(retriever, tmp_path / "cache", {"index": "a"})
    first = cached.retrieve(["red", "sea", "red", "nothing"], 2)
    assert retriever.queries == ["red", "sea", "nothing"]
    assert (cached.asked, cached.found) == (4, 0)
    again = CachedRetriever(retriever, tmp_path / "cache", {"index": "a"})
    second = again.retrieve(["nothing", "red", "fox"], 2)
    assert retriever.queries == ["red", "sea", "nothing", "fox"]
    assert (again.asked, again.found) == (3, 2)
    plain = SharedWordsRetriever(PASSAGES).retrieve(["red", "sea", "nothing", "fox"], 2)
    assert [first.of(row) for row in range(4)] == [plain.of(row) for row in (0, 1, 0, 2)]
    assert [second.of(row) for row in range(3)] == [plain.of(row) for row in (2, 0, 3)]


def test_whatever_decides_the_hits_is_another_entry(tmp_path: Path) -> None:
    """Indexes, the constants of BM25, forbidden passages, how two rankings become one, how queries are encoded."""
    texts = ["red fox", "red barn", "blue sea", "red sea", "fox"]
    for name, passages in (("one", passages_of(*texts)), ("other", passages_of(*texts[::-1]))):
        build_index(passages, tmp_path / name, encoder=LetterEncoder())
    one, other = open_index(tmp_path / "one"), open_index(tmp_path / "other")
    dense, longer = one.dense(encoder=LetterEncoder()), LetterEncoder()
    longer.query_config = {**longer.query_config, "query_length": 9}
    retrievers: list[Retriever] = [
        one.bm25,
        other.bm25,
        open_index(tmp_path / "one", BM25Options(k1=2)).bm25,
        one.bm25.without([0]),
        one.bm25.without([1]),
        dense,
        dense.without([0]),
        one.dense(encoder=longer),
        other.dense(encoder=LetterEncoder()),
        Hybrid(one.bm25, dense),
        Hybrid(one.bm25, dense.without([0])),
        Hybrid(one.bm25, dense, FusionOptions(depth=3)),
    ]
    for _ in range(2):
        for retriever in retrievers:
            for k in (1, 2, 1 << 30):
                cached = CachedRetriever(retriever, tmp_path / "cache")
                hits, plain = cached.retrieve(["red fox", "", "red fox"], k), retriever.retrieve(["red fox"], k)
                assert hits.of(0) == hits.of(2) == plain.of(0)
                assert hits.of(1) == []
    assert cached.found == 3, "the second time everything is there"


def test_arrays_without_an_index_are_known_by_their_content(tmp_path: Path) -> None:
    for name in ("one", "other"):
        build_index(passages_of("red fox", name), tmp_path / name)
    configs = [BM25([Segment(open_arrays(tmp_path / name / "bm25"), 2)]).config for name in ("one", "other", "one")]
    assert configs[0] == configs[2] != configs[1]


def test_retrievers_that_no_cache_is_for(tmp_path: Path) -> None:
    class Undeclared:
        def retrieve(self, queries: Sequence[str], k: int) -> Hits:
            return Hits.none(len(queries), k)

    with pytest.raises(UsageError, match="Undeclared does not say what decides its results; give it a `config`"):
        CachedRetriever(Undeclared(), tmp_path / "cache")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="leave out the cache"):
        CachedRetriever(RandomRetriever(5), tmp_path / "cache")


def test_k_of_0_and_odd_queries(tmp_path: Path) -> None:
    cached = CachedRetriever(SharedWordsRetriever(PASSAGES), tmp_path / "cache", {})
    with pytest.raises(UsageError, match="`k` must be at least 1, not 0"):
        cached.retrieve(["red"], 0)
    assert [cached.retrieve([query], 2).of(0) for query in ("\ud800", "\0", "red " * 250_000)] == [
        [],
        [],
        [(0, 1), (1, 1)],
    ]


def test_no_queries_and_many(tmp_path: Path) -> None:
    cached = CachedRetriever(SharedWordsRetriever(PASSAGES), tmp_path / "below" / "cache", {})
    assert len(cached.retrieve([], 2)) == 0
    many = [f"red {number}" for number in range(1300)]
    assert cached.retrieve(many, 1).numbers_QK.tolist() == cached.retrieve(many, 1).numbers_QK.tolist()
    assert cached.found == 1300
