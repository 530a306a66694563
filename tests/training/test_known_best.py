"""LSR finds encoders that are known to be the best: the language model prefers passages exactly by its scores."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

from ralm.records import FloatArray, Hits, IntArray, Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import EncoderOptions
from ralm.retrieval.index import open_index
from ralm.training.options import RetrieverTrainingOptions, TrainingOptions
from ralm.training.retriever import train_retriever
from tests.training.taught import Taught

WORDS = [f"word{number}" for number in range(24)]
GAMMA, BETA = 4.0, 0.5
"""Q is P of an encoder whose scores times beta / gamma are the mean log-probabilities of tokens."""
TRAINING = TrainingOptions(steps=150, batch=16, learning_rate=0.1, warmup=0.05, held_out=0.2, evaluate_every=50, seed=1)
EXAMPLES, CANDIDATES = 400, 8


def save_encoder(folder: Path) -> SentenceEncoder:
    """The vector of a text is the mean of those of its words."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(["[UNK]", *WORDS])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    module = StaticEmbedding(tokenizer, embedding_dim=32)
    SentenceTransformer(modules=[module]).save_pretrained(str(folder))
    return SentenceEncoder(EncoderOptions(encoder=str(folder)))


def drawn_queries(count: int, seed: int) -> list[list[int]]:
    """The words of queries of three different ones."""
    draws = np.random.default_rng(seed)
    return [draws.choice(len(WORDS), 3, replace=False).tolist() for _ in range(count)]


def texts_of(queries: list[list[int]]) -> list[str]:
    return [" ".join(WORDS[word] for word in query) for query in queries]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    passages = [Passage(number, f"d{number}", "", word) for number, word in enumerate(WORDS)]
    build_index(passages, tmp_path / "index", encoder=save_encoder(tmp_path / "bare"))
    return tmp_path / "index"


class Known(Taught):
    """Continuations that passages make likely by the inner products of vectors of words."""

    def __init__(self, best_WD: FloatArray) -> None:
        super().__init__(EXAMPLES)
        self._words = drawn_queries(EXAMPLES, 5)
        self._queries = texts_of(self._words)
        self._best_WD = best_WD

    def log_probs(self, examples_B: IntArray, hits: Hits, *, alone: bool = False) -> list[list[FloatArray]]:
        read = []
        for row, example in enumerate(examples_B.tolist()):
            after_K = self._best_WD[hits.numbers_QK[row]] @ self._best_WD[self._words[example]].mean(axis=0)
            means = [-20.0] * alone + (after_K * BETA / GAMMA - 10).tolist()
            read.append([np.full(4, mean, dtype=np.float32) for mean in means])
        return read


def test_both_encoders_find_the_best_ones(index: Path, tmp_path: Path) -> None:
    best_WD = np.random.default_rng(6).normal(0, 1, (len(WORDS), 32)).astype(np.float32)
    options = RetrieverTrainingOptions(candidates=CANDIDATES, refresh_every=50, gamma=GAMMA, beta=BETA)
    trained = train_retriever(Known(best_WD), index, tmp_path / "out", options, TRAINING)
    unseen = drawn_queries(500, 7)
    best_E = (best_WD[np.array(unseen)].mean(axis=1) @ best_WD.T).argmax(axis=1)
    before, after = (
        (open_index(index).dense(vectors=name).retrieve(texts_of(unseen), 1).numbers_QK[:, 0] == best_E).mean()
        for name in ("main", "out")
    )
    assert before < 0.7
    assert after >= 0.95
    assert trained.held_out is not None
    assert trained.held_out["ensemble_change"]["low"] > 0
