"""What the predictive reranker knows before training: how the rank and the likelihood of the prefix's end are weighted,
their part in the loss and in the choice, and their folder."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ralm.errors import ModelError
from ralm.records import FloatArray, Hits
from ralm.reranking.cross_encoder import load_pair_model
from ralm.reranking.oracle import rank_prior
from ralm.reranking.predictive import Predictive, load_cross_encoder
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index
from ralm.training.cross_encoder import CrossEncoderLoss, fitted_priors
from ralm.training.options import RerankerOptions, TrainingOptions
from ralm.training.reranker import train_reranker
from ralm.training.signals import Signals
from tests.fakes import passages_of
from tests.reference import learning
from tests.reranking.test_predictive import Rows
from tests.tiny_encoders import save_tiny_bert
from tests.tiny_models import save_tiny_model
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
    weight, likelihood = fitted_priors(signals, EXAMPLES)
    assert likelihood is None
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
    assert with_prior.held_out["chosen"]["gain"] == with_prior.held_out["before"]["gain"] == 0
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


def signals_where_likelihood_helps(folder: Path, index: Index, ends_EKJ: FloatArray) -> Signals:
    """Three candidates an example; log-probabilities follow the likelihood of the last tokens, not the rank."""
    draws = np.random.default_rng(2)
    counted_EK = ends_EKJ[..., :6].sum(axis=2)
    means = (
        -4 + 0.4 * (counted_EK - counted_EK.mean(axis=1, keepdims=True)) + draws.normal(0, 0.05, counted_EK.shape)
    ) / 4
    return save_signals(folder, index.fingerprint, PREFIXES, THREE, means.tolist())


PREFIXES = [f"text {chr(97 + n % 26)} and so {chr(97 + n % 7)} on" for n in EXAMPLES]
THREE = [np.random.default_rng(n).choice(8, 3, replace=False).tolist() for n in EXAMPLES]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model("gpt2", tmp_path_factory.mktemp("lm") / "lm"))


@pytest.fixture(scope="module")
def ends_EKJ(lm: str, index: Index) -> FloatArray:
    model = load_pair_model(lm, 12, max_length=32, new=True)
    pairs = [
        (model.end(prefix), index.passages[number].contents)
        for prefix, row in zip(PREFIXES, THREE, strict=True)
        for number in row
    ]
    return model.end_log_probs(pairs, 12).reshape(len(EXAMPLES), 3, 12)


def test_the_likelihood_is_the_best_one(tmp_path: Path, index: Index, ends_EKJ: FloatArray) -> None:
    signals = signals_where_likelihood_helps(tmp_path / "signals", index, ends_EKJ)

    def loss(weight: float, much: float, decay: float) -> float:
        total = 0.0
        for example in EXAMPLES.tolist():
            scores = [
                -weight * math.log(rank) + sum(much * math.exp(-j / decay) * one for j, one in enumerate(ends_J))
                for rank, ends_J in enumerate(ends_EKJ[example].tolist(), start=1)
            ]
            total += learning.marginal_loss(scores, signals.log_probs_EK[example].tolist())
        return total / len(EXAMPLES)

    weight, likelihood = fitted_priors(signals, EXAMPLES, ends_EKJ)
    assert likelihood is not None
    much, decay = likelihood.weight, likelihood.decay
    others = [
        (weight + 0.05, much, decay),
        (max(0.0, weight - 0.05), much, decay),
        (weight, much, 2 * decay if decay < 32 else 16),
        (weight, much, decay / 2 if decay > 1 else 2),
        (weight, 0.0, 1.0),
        *((weight, other, decay) for other in (0.05, 0.2, 0.4, 0.8, 1.5)),
    ]
    assert loss(weight, much, decay) <= min(loss(*one) for one in others) + 1e-6
    assert loss(weight, much, decay) < loss(0.0, 0.0, 1.0) - 0.001
    assert fitted_priors(signals, EXAMPLES, np.zeros_like(ends_EKJ))[1] is None
    ranked = signals_where_rank_helps(tmp_path / "ranked", index, 0.3)
    of_four = np.zeros((len(EXAMPLES), ranked.width, 12), dtype=np.float32)
    assert fitted_priors(ranked, EXAMPLES, of_four) == fitted_priors(ranked, EXAMPLES)
    assert fitted_priors(ranked, EXAMPLES, of_four, rank=False) == (0.0, None)


@pytest.mark.filterwarnings("ignore:training did not lower")
def test_training_begins_from_zero_shot_reranking(
    tmp_path: Path, index: Index, lm: str, ends_EKJ: FloatArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = signals_where_likelihood_helps(tmp_path / "signals", index, ends_EKJ)
    one_step = TrainingOptions(steps=1, batch=1, learning_rate=1e-9, warmup=0, held_out=0.3)
    trained: Any = train_reranker(signals, tmp_path / "with", lm, one_step, READING, index=index)
    assert trained.held_out["chosen"]["gain"] > 0.01
    said = json.loads((tmp_path / "with" / "config.json").read_text())["ralm"]
    assert said["likelihood"]["weight"] > 0
    assert load_cross_encoder(str(tmp_path / "with")).config["likelihood"] == said["likelihood"]
    without = replace(READING, likelihood=False)
    train_reranker(signals, tmp_path / "without", lm, one_step, without, index=index)
    assert json.loads((tmp_path / "without" / "config.json").read_text())["ralm"]["likelihood"] is None

    model = load_pair_model(lm, 12, max_length=32, new=True)
    first = CrossEncoderLoss(model, signals, index.passages, READING, fitted_to=EXAMPLES)
    first.model.train()
    first.losses(EXAMPLES[:4])
    assert first.model.training, "fitting leaves dropout as it is"
    first.model.eval()
    with torch.no_grad():
        losses = first.losses(EXAMPLES[:4])
    resumed = CrossEncoderLoss(
        load_pair_model(lm, 12, max_length=32, new=True), signals, index.passages, READING, fitted_to=EXAMPLES
    )
    resumed.restore(first.state())
    resumed.model.eval()
    monkeypatch.setattr(resumed, "_ends", lambda _: pytest.fail("it was fitted"))
    with torch.no_grad():
        assert torch.equal(resumed.losses(EXAMPLES[:4]), losses)
