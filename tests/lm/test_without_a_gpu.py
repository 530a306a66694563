"""What a GPU would reject: a tensor of the processor among those of the GPU, in every path through local models."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from ralm import EncoderOptions, load_encoder
from ralm.lm.local import engine
from ralm.lm.local.blocks import Blocks
from ralm.lm.local.decoder import CachedDecoder, StateDecoder, UncachedDecoder
from ralm.lm.local.engine import Engine, Replica, TargetLogits
from ralm.records import IntArray, ScoringSequence
from ralm.reranking.cross_encoder import load_pair_model
from ralm.training import encoders, losses
from ralm.training.options import LSROptions
from tests.campaign import sampled
from tests.every_family import tiny_family_model
from tests.fake_cuda import CUDA, fake_cuda
from tests.tiny_encoders import save_tiny_bert, save_tiny_cross_encoder
from tests.tiny_models import save_tiny_model

FAMILIES = sampled(["gpt2", "llama", "gemma3_text", "bloom"], "llama", "bloom")
"""Mamba and mixtures of experts ask the build of torch for CUDA itself, so they need a GPU."""
LENGTH = 60


def texts(*sizes: int) -> list[IntArray]:
    draw = np.random.default_rng(0)
    return [draw.integers(3, 30, size=size) for size in sizes]


def sequences(*sizes: int) -> list[ScoringSequence]:
    return [ScoringSequence(text, np.arange(len(text) - 5, len(text))) for text in texts(*sizes)]


@pytest.fixture(params=FAMILIES)
def family_model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny_family_model(request.param).requires_grad_(False)


@pytest.mark.parametrize("read", [engine.target_log_probs, engine.distributions])
def test_scoring(family_model: PreTrainedModel, read: engine.ReadLogits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several sequences in one pass, and more targets than one pass computes."""
    monkeypatch.setitem(engine.LOGITS_PER_CHUNK, "cuda", 64)
    some = sequences(20, 15, 9)
    with fake_cuda(family_model) as model, torch.inference_mode():
        logits = TargetLogits(model, "fake")
        for most in (1 << 20, 4 * logits.vocabulary):
            monkeypatch.setitem(engine.LOGITS_PER_BATCH, "cuda", most)
            replica = Replica(logits)
            started = replica.start(some, read)
            assert {part.device for part in started.parts} == {torch.device("cpu")}
            assert [len(one) for one in replica.fetch(some, started)] == [5, 5, 5]
            assert isinstance(started.copied, Mock)
            started.copied.synchronize.assert_called()


def test_a_batch_is_started_before_the_previous_one_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list[str]()
    start, fetch = Replica.start, Replica.fetch
    monkeypatch.setattr(Replica, "start", lambda *batch: steps.append("start") or start(*batch))  # type: ignore[func-returns-value]
    monkeypatch.setattr(Replica, "fetch", lambda *batch: steps.append("fetch") or fetch(*batch))  # type: ignore[func-returns-value]
    monkeypatch.setitem(engine.TOKENS_PER_BATCH, "cuda", 20)
    with fake_cuda(tiny_family_model("gpt2")) as model:
        assert len([*Engine([Replica(TargetLogits(model, "fake"))]).score(sequences(20, 15, 9))]) == 3
    assert steps == ["start", "start", "fetch", "start", "fetch", "fetch"]


@pytest.mark.parametrize("kind", [CachedDecoder, UncachedDecoder, StateDecoder])
def test_writing(family_model: PreTrainedModel, kind: type[Any]) -> None:
    """New texts, alone and in a padded batch, that grow, change, and are scored."""
    some = texts(20, 15, 9)
    with fake_cuda(family_model) as model:
        extra = [Blocks(1 << 30)] if kind is CachedDecoder else []
        decoder = kind(TargetLogits(model, "fake"), LENGTH, *extra)
        for _ in range(2):
            assert decoder.next_tokens(some).log_probs_BC.shape[0] == 3
            some = [np.append(text, 4) for text in some]
        if kind is not StateDecoder:
            decoder.next_tokens([np.append(some[0][:-3], [5, 6, 7]), some[1]])
        if kind is CachedDecoder:
            assert [len(one) for one in decoder.score(sequences(22, 17))] == [5, 5]


def test_kept_blocks(family_model: PreTrainedModel) -> None:
    [passage] = texts(20)
    blocks = Blocks(1 << 30)
    with fake_cuda(family_model) as model:
        for end in (4, 5):
            CachedDecoder(TargetLogits(model, "fake"), LENGTH, blocks).next_tokens([np.append(passage, end)])
    assert (blocks.reused, blocks.read) == (16, 24)


def test_losses_of_trainings() -> None:
    """Scores on the GPU, likelihoods and candidates of files on the processor."""
    passages_BK = np.arange(6).reshape(2, 3)
    with fake_cuda(torch.nn.Identity()), torch.no_grad():
        scores_BK = encoders.inner_products(torch.zeros(2, 4, device=CUDA), torch.zeros(2, 3, 4, device=CUDA))
        loss_B = encoders.losses_of(scores_BK, np.zeros((2, 3), np.float32), passages_BK, LSROptions())
        there_BK = torch.ones((2, 3), dtype=torch.bool, device=CUDA)
        assert loss_B.device == losses.marginal_loss(scores_BK, torch.zeros(2, 3, device=CUDA), there_BK).device == CUDA


def test_cross_encoders(tmp_path: Path) -> None:
    """One with a head, and a language model."""
    pairs = [("the end of a prefix", "a passage"), ("another", "another passage that is longer")]
    encoder = load_pair_model(str(save_tiny_cross_encoder(tmp_path / "encoder")))
    decoder = load_pair_model(str(save_tiny_model("gpt2", tmp_path / "lm")), 12, max_length=64, new=True)
    for pair_model in (encoder, decoder):
        with fake_cuda(pair_model.model) as model:
            pair_model.model = model
            assert pair_model.scores(pairs).shape == (2,)


def test_encoders(tmp_path: Path) -> None:
    encoder: Any = load_encoder(EncoderOptions(encoder=str(save_tiny_bert(tmp_path / "encoder"))))
    with fake_cuda(encoder.query_model) as model, torch.no_grad():
        encoder.query_model = encoder.passage_model = model
        assert encoder.query_tensor(["a query", "another one"]).device == CUDA
        assert encoder.encode_queries(["a query", "another one"]).shape[0] == 2
