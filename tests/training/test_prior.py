"""What the predictive reranker knows before training: the weight of the rank, in the loss and in the choice."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ralm.errors import ModelError
from ralm.records import Hits
from ralm.reranking.cross_encoder import load_pair_model
from ralm.reranking.oracle import rank_prior
from ralm.reranking.predictive import Predictive, load_cross_encoder
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index
from ralm.training.cross_encoder import CrossEncoderLoss, fitted_rank_weight
from ralm.training.options import RerankerOptions, TrainingOptions
from ralm.training.reranker import train_reranker
from ralm.training.signals import Signals
from tests.fakes import passages_of
from tests.reference import learning
from tests.reranking.test_predictive import Rows
from tests.tiny_encoders import save_tiny_bert
from tests.training.made_signals import save_signals

EXAMPLES = np.arange(40)
READING = RerankerOptions(tokens=12, max_length=32)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("index") / "index"
    build_index(passages_of(*(f"{letter} passage" for letter in "abcdefgh")), folder)
    return open_index(folder)


def signals_where_rank_helps(folder: Path, index: Index, slope: float) -> Signals:
    """Three or four candidates an example, whose log-probability falls with the logarithm of their rank, and noise."""
    draws = np.random.default_rng(0)
    passages = [draws.choice(8, 3 + n % 2, replace=False).tolist() for n in EXAMPLES]
    means = [
        [-2 - slope * math.log(rank) + draws.normal(0, 0.2) for rank in range(1, len(row) + 1)] for row in passages
    ]
    return save_signals(folder, index.fingerprint, ["text"] * len(EXAMPLES), passages, means)


def plain_weight(signals: Signals) -> float:
    """The weight with the lowest mean of Eq. 9, by plain loops."""

    def loss(weight: float) -> float:
        total = 0.0
        for example in EXAMPLES.tolist():
            log_probs = [one for one in signals.log_probs_EK[example].tolist() if one > -math.inf]
            scores = [-weight * math.log(rank) for rank in range(1, len(log_probs) + 1)]
            total += learning.marginal_loss(scores, log_probs)
        return total

    return min((step / 20 for step in range(81)), key=loss)


@pytest.mark.parametrize("slope", [-0.4, 0.0, 0.05, 0.3])
def test_the_weight_is_the_best_one(tmp_path: Path, index: Index, slope: float) -> None:
    signals = signals_where_rank_helps(tmp_path / "signals", index, slope)
    weight = fitted_rank_weight(signals, EXAMPLES)
    assert weight == pytest.approx(plain_weight(signals))
    assert (weight > 0) == (slope > 0.01) or slope == 0


def test_it_is_part_of_the_loss(tmp_path: Path, index: Index) -> None:
    signals = signals_where_rank_helps(tmp_path / "signals", index, 0.1)
    model = load_pair_model(str(save_tiny_bert(tmp_path / "init")), 12, new=True)
    model.rank_weight = 0.7
    student = CrossEncoderLoss(model, signals, index.passages, RerankerOptions())
    student.model.eval()
    with torch.no_grad():
        losses = student.losses(EXAMPLES[:5]).tolist()
    for example in range(5):
        numbers = [one for one in signals.passages_EK[example].tolist() if one >= 0]
        scores = model.scores([("text", index.passages[number].contents) for number in numbers]).tolist()
        with_rank = [score - 0.7 * math.log(rank) for rank, score in enumerate(scores, start=1)]
        log_probs = signals.log_probs_EK[example, : len(numbers)].tolist()
        assert losses[example] == pytest.approx(learning.marginal_loss(with_rank, log_probs), rel=1e-4)


@pytest.mark.filterwarnings("ignore:training did not lower")
def test_training_begins_from_the_retrievers_order(tmp_path: Path, index: Index) -> None:
    signals = signals_where_rank_helps(tmp_path / "signals", index, 0.3)
    init = str(save_tiny_bert(tmp_path / "init"))
    one_step = TrainingOptions(steps=1, batch=1, learning_rate=1e-9, warmup=0, held_out=0.2)
    with_prior = train_reranker(signals, tmp_path / "with", init, one_step, READING, index=index)
    assert with_prior.held_out is not None
    assert with_prior.held_out["chosen"]["value"] == with_prior.held_out["before"]["value"] == 0
    weight = json.loads((tmp_path / "with" / "config.json").read_text())["ralm"]["rank_weight"]
    assert weight > 0.5

    paper = RerankerOptions(tokens=12, max_length=32, rank_prior=False)
    train_reranker(signals, tmp_path / "without", init, one_step, paper, index=index)
    assert json.loads((tmp_path / "without" / "config.json").read_text())["ralm"]["rank_weight"] == 0

    loaded = load_cross_encoder(str(tmp_path / "with"))
    assert loaded.config["rank_weight"] == weight
    assert load_pair_model(str(tmp_path / "with"), new=True).rank_weight == 0, "a new training fits its own"
    hits = Hits.from_pairs([[(5, 3), (2, 2), (7, 1)]])
    best = Predictive(cross_encoder=loaded).choose(Rows("text"), hits, index.passages, 3)
    scores = loaded.scores([("text", index.passages[number].contents) for number in (5, 2, 7)])
    expected = dict(zip((5, 2, 7), scores + rank_prior(weight, 3), strict=True))
    assert dict(best.of(0)) == pytest.approx(expected)


@pytest.mark.parametrize("weight", ["much", -1, float("inf"), None])
def test_a_weight_that_is_none(tmp_path: Path, weight: object) -> None:
    load_pair_model(str(save_tiny_bert(tmp_path / "init")), 12, new=True).save(tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    config["ralm"]["rank_weight"] = weight
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="ralm.rank_weight"):
        load_pair_model(str(tmp_path / "out"))
