"""The configurations of retrievers, which tell apart whatever decides the hits."""

import json
from pathlib import Path

from ralm.protocols import Retriever
from ralm.retrieval.allowed import mask_without
from ralm.retrieval.bm25.formula import BM25Options
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
        one.bm25.only(mask_without(5, [0])),
        one.bm25.only(mask_without(5, [1])),
        dense,
        dense.only(mask_without(5, [0])),
        one.dense(encoder=longer),
        other.dense(encoder=LetterEncoder()),
        Hybrid(one.bm25, dense),
        Hybrid(one.bm25, dense.only(mask_without(5, [0]))),
        Hybrid(one.bm25, dense, FusionOptions(depth=3)),
    ]
    assert len({json.dumps(dict(one.config), sort_keys=True) for one in retrievers}) == len(retrievers)
