"""The configurations of retrievers, which tell apart whatever decides the hits."""

import json
from pathlib import Path

from ralm.protocols import Retriever
from ralm.retrieval.bm25.arrays import open_arrays
from ralm.retrieval.bm25.formula import BM25Options
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.bm25.segments import Segment
from ralm.retrieval.build import build_index
from ralm.retrieval.hybrid import FusionOptions, Hybrid
from ralm.retrieval.index import open_index
from tests.fakes import LetterEncoder, passages_of


def test_whatever_decides_the_hits_is_in_the_config(tmp_path: Path) -> None:
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
    assert len({json.dumps(dict(one.config), sort_keys=True) for one in retrievers}) == len(retrievers)


def test_arrays_without_an_index_are_known_by_their_content(tmp_path: Path) -> None:
    for name in ("one", "other"):
        build_index(passages_of("red fox", name), tmp_path / name)
    configs = [BM25([Segment(open_arrays(tmp_path / name / "bm25"), 2)]).config for name in ("one", "other", "one")]
    assert configs[0] == configs[2] != configs[1]
