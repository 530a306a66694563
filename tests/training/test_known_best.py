"""LSR finds an encoder that is known to be the best: the language model prefers passages exactly by its scores."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

from ralm.records import DoubleArray, FloatArray, Hits, IntArray, Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import EncoderOptions
from ralm.retrieval.index import open_index
from ralm.training.options import QueryEncoderOptions, RetrieverTrainingOptions, TrainingOptions
from ralm.training.retriever import train_query_encoder, train_retriever
from tests.training.made_signals import save_signals
from tests.training.taught import Taught

WORDS = [f"word{number}" for number in range(24)]
GAMMA, BETA = 4.0, 0.5
"""Q is P of an encoder whose scores times beta / gamma are the mean log-probabilities of tokens."""
TRAINING = TrainingOptions(steps=600, batch=32, learning_rate=0.1, warmup=0.05, held_out=0.2, evaluate_every=100)
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


def test_the_best_query_encoder_is_found(index: Path, tmp_path: Path) -> None:
    """The vector of a word should be that of the passage of another word; 95% of unseen queries find what it finds."""
    opened = open_index(index)
    vectors_PD = opened.passage_vectors().of(np.arange(len(WORDS)))
    best_WD = vectors_PD[np.random.default_rng(1).permutation(len(WORDS))].astype(np.float64)

    def best_scores(queries: list[list[int]]) -> DoubleArray:
        scores: DoubleArray = best_WD[np.array(queries)].mean(axis=1) @ vectors_PD.T
        return scores

    queries = drawn_queries(EXAMPLES, 2)
    draws = np.random.default_rng(3)
    candidates = [draws.choice(len(WORDS), CANDIDATES, replace=False) for _ in queries]
    scores_EK = np.take_along_axis(best_scores(queries), np.array(candidates), axis=1)
    numbers, means = [one.tolist() for one in candidates], (scores_EK * BETA / GAMMA - 10).tolist()
    save_signals(tmp_path / "signals", opened.fingerprint, texts_of(queries), numbers, means)
    options = QueryEncoderOptions(gamma=GAMMA, beta=BETA)
    trained = train_query_encoder(tmp_path / "signals", tmp_path / "out", options, TRAINING, index=opened)
    unseen = drawn_queries(500, 4)
    found = SentenceEncoder(EncoderOptions(encoder=str(tmp_path / "bare"), query_encoder=str(tmp_path / "out")))
    best_E = best_scores(unseen).argmax(axis=1)
    before, after = (
        (one.retrieve(texts_of(unseen), 1).numbers_QK[:, 0] == best_E).mean()
        for one in (opened.dense(), opened.dense(encoder=found))
    )
    assert before < 0.3
    assert after >= 0.95
    assert trained.held_out is not None
    assert trained.held_out["ensemble_change"]["low"] > 0


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
    training = replace(TRAINING, steps=150, batch=16, evaluate_every=50, seed=1)
    trained = train_retriever(Known(best_WD), index, tmp_path / "out", options, training)
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
