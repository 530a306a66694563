"""The vectors of passages by number, from every kind of index that keeps them, also one that was updated."""

from pathlib import Path

import numpy as np
import pytest

from ralm.errors import UsageError
from ralm.records import NO_PASSAGE, Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.options import VectorOptions
from ralm.retrieval.encode import add_vectors
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.update import update_index
from tests.fakes import LetterEncoder
from tests.retrieval.test_encoding import some_passages

NUMBERS = np.array([[3, 29, 3], [NO_PASSAGE, 0, 17]])


def encoded(index: Index) -> np.ndarray:
    vectors_PD = LetterEncoder().encode_passages(list(index.passages))
    return np.stack([vectors_PD[n] if n >= 0 else np.zeros(8) for n in NUMBERS.ravel()]).reshape(2, 3, 8)


@pytest.mark.parametrize("kind", ["Flat", "SQfp16", "IVF2,Flat", "HNSW8"])
def test_vectors_are_those_that_were_encoded(tmp_path: Path, kind: str) -> None:
    build_index(some_passages(), tmp_path / "index")
    add_vectors(tmp_path / "index", LetterEncoder(), VectorOptions(faiss=kind), name="letters")
    index = open_index(tmp_path / "index")
    vectors = index.passage_vectors("letters")
    assert (len(vectors), vectors.dimension) == (30, 8)
    np.testing.assert_array_equal(vectors.of(NUMBERS), encoded(index))
    assert vectors.of(np.array([], dtype=np.int64)).shape == (0, 8)
    assert vectors.of(np.array([[NO_PASSAGE]])).tolist() == [[[0.0] * 8]]


def test_vectors_of_an_index_that_was_updated(tmp_path: Path) -> None:
    """Passages are removed from the first segment, and a second one follows."""
    build_index(some_passages(), tmp_path / "index", encoder=LetterEncoder())
    more = [Passage(n, f"new {n}", "", f"zebra {'z' * n}") for n in range(5)]
    update_index(tmp_path / "index", more, remove=["d4", "d28"], encoders={"main": LetterEncoder()})
    index = open_index(tmp_path / "index")
    assert len(index.passage_vectors()) == 33
    np.testing.assert_array_equal(index.passage_vectors().of(NUMBERS), encoded(index))


@pytest.mark.parametrize("kind", ["SQ8", "PQ4x2", "IVF2,PQ4x2"])
def test_approximate_vectors_are_refused(tmp_path: Path, kind: str) -> None:
    build_index(some_passages(), tmp_path / "index")
    add_vectors(tmp_path / "index", LetterEncoder(), VectorOptions(faiss=kind), name="small")
    with pytest.raises(UsageError, match="the vectors 'small' of .*/index are in a FAISS Index.* only approximations"):
        open_index(tmp_path / "index").passage_vectors()
