"""Training the predictive reranker: it learns from the right examples and the weight of the rank; what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder

from ralm.errors import UsageError
from ralm.records import Hits
from ralm.reranking.cross_encoder import load_pair_model
from ralm.reranking.oracle import rank_prior
from ralm.reranking.predictive import Predictive, load_cross_encoder
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index
from ralm.storage.manifest import read_manifest
from ralm.training.losses import CrossEncoderLoss, fitted_rank_weight
from ralm.training.options import RerankerOptions, TrainingOptions
from ralm.training.reranker import RERANKER_KIND, TrainedReranker, train_reranker
from ralm.training.signals import Signals
from tests.fakes import passages_of
from tests.reference import learning
from tests.reranking.test_predictive import Rows
from tests.tiny_encoders import save_tiny_bert, save_tiny_cross_encoder
from tests.tiny_models import save_tiny_model
from tests.training.made_signals import save_signals

EXAMPLES = 60
READING = RerankerOptions(tokens=12, max_length=32, pairs=16)
OPTIONS = TrainingOptions(
    steps=24, batch=8, learning_rate=6e-3, evaluate_every=8, patience=100, held_out=0.2, dropout=False
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("index") / "index"
    build_index(passages_of(*(f"{'xy'[n % 2]} {'abcdefgh'[n // 2]} passage" for n in range(16))), folder)
    return open_index(folder)


@pytest.fixture(scope="module")
def signals(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Signals:
    """Passages with an x help, those with a y do not."""
    draws = np.random.default_rng(0)
    prefixes = [f"some text before {'abc'[n % 3]}" for n in range(EXAMPLES)]
    passages = [draws.choice(16, 4, replace=False).tolist() for _ in range(EXAMPLES)]
    gains = [[-3.0 if number % 2 else -1.0 for number in row] for row in passages]
    return save_signals(tmp_path_factory.mktemp("signals") / "signals", index.fingerprint, prefixes, passages, gains)


@pytest.fixture(scope="module")
def init(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_bert(tmp_path_factory.mktemp("init")))


@pytest.fixture(scope="module", params=["encoder", "language model"])
def trained(
    request: pytest.FixtureRequest, signals: Signals, index: Index, init: str, tmp_path_factory: pytest.TempPathFactory
) -> TrainedReranker:
    folder = tmp_path_factory.mktemp("trained")
    begin = init if request.param == "encoder" else str(save_tiny_model("llama", folder / "lm"))
    return train_reranker(signals, folder / "reranker", begin, OPTIONS, READING, index=index)


def student(signals: Signals, index: Index, init: str, **changed: Any) -> CrossEncoderLoss:
    torch.manual_seed(0)
    made = CrossEncoderLoss(load_pair_model(init, 12, new=True), signals, index.passages, RerankerOptions(**changed))
    made.model.eval()
    return made


def test_it_learns_which_passages_help(trained: TrainedReranker, signals: Signals) -> None:
    held_out: Any = trained.held_out
    assert held_out["chosen"]["value"] > 0.3
    assert held_out["change"]["value"] > 0.3
    assert -2 < held_out["before"]["value"] < held_out["best"]["value"]
    losses = [row["held_out_loss"] for row in trained.losses]
    assert losses[0] > min(losses) + 0.3
    model = load_pair_model(str(trained.out))
    assert (model.tokens, model.model.max_seq_length) == (12, 32)
    scores = model.scores([("some text before a", f"{which} a passage") for which in "xy"])
    assert scores[0] > scores[1]
    manifest = read_manifest(trained.out, kind=RERANKER_KIND)
    config: Any = manifest.settings["config"]
    assert model.passage_first == (config["init"]["name"].endswith("lm"))
    assert config["signals"]["fingerprint"] == signals.fingerprint
    assert config["training"]["steps"] == 24
    assert {"config.json", "model.safetensors", "losses.csv"} <= manifest.files.keys()
    if not model.passage_first:
        assert held_out["chosen"] == held_out["best"]
        pairs = [("text before x", "x passage"), ("text before x", "y passage")]
        theirs = TheirCrossEncoder(str(trained.out), device="cpu").predict(pairs, show_progress_bar=False)
        np.testing.assert_allclose(theirs, model.scores(pairs), rtol=1e-5, atol=1e-6)


def test_the_loss_is_that_of_the_plain_loop(signals: Signals, index: Index, init: str) -> None:
    made = student(signals, index, init)
    examples = np.array([5, 0, 17])
    losses = made.losses(examples)
    for place, example in enumerate(examples.tolist()):
        numbers = signals.passages_EK[example].tolist()
        end = signals.texts("prefix")[example].as_py().removeprefix("som")  # a letter is a token: these are 12
        scores = made._pair_model.scores([(end, index.passages[number].contents) for number in numbers]).tolist()
        expected = learning.marginal_loss(scores, signals.log_probs_EK[example].tolist())
        assert losses[place].item() == pytest.approx(expected, rel=1e-4)


def test_a_cross_encoder_can_be_trained_further(signals: Signals, index: Index, tmp_path: Path) -> None:
    init = save_tiny_cross_encoder(tmp_path / "init")
    one = TrainingOptions(steps=1, batch=2, held_out=0, learning_rate=1e-6, warmup=0)
    train_reranker(signals, tmp_path / "out", str(init), one, index=index)
    pairs = [("a b", "c d"), ("a", "e")]
    before, after = load_pair_model(str(init)).scores(pairs), load_pair_model(str(tmp_path / "out")).scores(pairs)
    np.testing.assert_allclose(after, before, atol=1e-2)
    assert (after != before).any()


def test_signals_of_another_index_and_one_that_is_gone(signals: Signals, init: str, tmp_path: Path) -> None:
    build_index(passages_of("other"), tmp_path / "other")
    with pytest.raises(UsageError, match="are of another index .* give the index they were measured with"):
        train_reranker(signals, tmp_path / "out", init, index=tmp_path / "other")
    with pytest.raises(UsageError, match="were measured with is not recorded: give it as `index`"):
        train_reranker(signals, tmp_path / "out", init)
    assert not (tmp_path / "out.unfinished").exists()


RANKED = np.arange(40)
SHORT = RerankerOptions(tokens=12, max_length=32)


@pytest.fixture(scope="module")
def letters_index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("index") / "index"
    build_index(passages_of(*(f"{letter} passage" for letter in "abcdefgh")), folder)
    return open_index(folder)


def signals_where_rank_helps(folder: Path, letters_index: Index, slope: float) -> Signals:
    """Three or four candidates an example, whose log-probability falls with the logarithm of their rank, and noise."""
    draws = np.random.default_rng(0)
    passages = [draws.choice(8, 3 + n % 2, replace=False).tolist() for n in RANKED]
    means = [
        [-2 - slope * math.log(rank) + draws.normal(0, 0.2) for rank in range(1, len(row) + 1)] for row in passages
    ]
    return save_signals(folder, letters_index.fingerprint, ["text"] * len(RANKED), passages, means)


def plain_weight(signals: Signals) -> float:
    """The weight with the lowest mean of Eq. 9, by plain loops."""

    def loss(weight: float) -> float:
        total = 0.0
        for example in RANKED.tolist():
            log_probs = [one for one in signals.log_probs_EK[example].tolist() if one > -math.inf]
            scores = [-weight * math.log(rank) for rank in range(1, len(log_probs) + 1)]
            total += learning.marginal_loss(scores, log_probs)
        return total

    return min((step / 20 for step in range(81)), key=loss)


@pytest.mark.parametrize("slope", [-0.4, 0.0, 0.05, 0.3])
def test_the_weight_is_the_best_one(tmp_path: Path, letters_index: Index, slope: float) -> None:
    signals = signals_where_rank_helps(tmp_path / "signals", letters_index, slope)
    weight = fitted_rank_weight(signals, RANKED)
    assert weight == pytest.approx(plain_weight(signals))
    assert (weight > 0) == (slope > 0.01) or slope == 0


@pytest.mark.filterwarnings("ignore:training did not lower")
def test_training_begins_from_the_retrievers_order(tmp_path: Path, letters_index: Index) -> None:
    signals = signals_where_rank_helps(tmp_path / "signals", letters_index, 0.3)
    init = str(save_tiny_bert(tmp_path / "init"))
    one_step = TrainingOptions(steps=1, batch=1, learning_rate=1e-9, warmup=0, held_out=0.2)
    with_prior = train_reranker(signals, tmp_path / "with", init, one_step, SHORT, index=letters_index)
    assert with_prior.held_out is not None
    assert with_prior.held_out["chosen"]["value"] == with_prior.held_out["before"]["value"] == 0
    weight = json.loads((tmp_path / "with" / "config.json").read_text())["ralm"]["rank_weight"]
    assert weight > 0.5

    paper = RerankerOptions(tokens=12, max_length=32, rank_prior=False)
    train_reranker(signals, tmp_path / "without", init, one_step, paper, index=letters_index)
    assert json.loads((tmp_path / "without" / "config.json").read_text())["ralm"]["rank_weight"] == 0

    loaded = load_cross_encoder(str(tmp_path / "with"))
    assert loaded.config["rank_weight"] == weight
    assert load_pair_model(str(tmp_path / "with"), new=True).rank_weight == 0, "a new training fits its own"
    hits = Hits.from_pairs([[(5, 3), (2, 2), (7, 1)]])
    best = Predictive(cross_encoder=loaded).choose(Rows("text"), hits, letters_index.passages, 3)
    scores = loaded.scores([("text", letters_index.passages[number].contents) for number in (5, 2, 7)])
    expected = dict(zip((5, 2, 7), scores + rank_prior(weight, 3), strict=True))
    assert dict(best.of(0)) == pytest.approx(expected)
