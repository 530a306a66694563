"""Tokens that are drawn where the logits are, against the functions in NumPy for the same log-probabilities."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from ralm.errors import ModelError
from ralm.lm.local import draw as draw_module, engine
from ralm.lm.local.decoder import UncachedDecoder
from ralm.lm.local.draw import draw_from_logits
from ralm.lm.local.model import LocalLanguageModel
from ralm.reading.mixture import Contrast, similarity_log_weights
from ralm.reading.parts import Parts
from ralm.reading.sampling import draw_token
from ralm.records import Draw, Drawn, NextTokens, PromptPrefix, Readings
from tests.campaign import examples
from tests.every_family import tiny_family_model
from tests.fake_cuda import CUDA, fake_cuda


class Logits:
    """Stands for a model whose logits are known."""

    def check_numbers(self, numbers: torch.Tensor) -> None:
        assert not numbers.isnan().any()


SETTINGS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0, 50.0]),
        "top_k": st.none() | st.integers(1, 40),
        "top_p": st.just(1.0) | st.floats(0.01, 0.99),
        "top_logprobs": st.integers(0, 6),
        "alpha": st.none() | st.sampled_from([0.0, 0.5, 2.0]),
    }
)


def a_draw(rows: range, generator: np.random.Generator, alpha: float | None, **how: Any) -> Draw:
    """Weights, some of which are 0; with `alpha` the last reading is the one without passages."""
    scores_K = 3 * generator.normal(size=len(rows))
    if len(rows) > 1:
        scores_K[-1] = -np.inf if alpha is not None or generator.random() < 0.2 else scores_K[-1]
    log_weights_K = similarity_log_weights(scores_K)
    draw = Draw(rows, log_weights_K, number=generator.random(), **how)
    if alpha is None or len(rows) == 1:
        return draw
    readings = Readings([PromptPrefix(np.zeros(0, np.int64))] * len(rows), log_weights_K)
    return replace(draw, alpha=alpha, distribution=partial(Parts(mixer=Contrast(alpha=alpha)).next_token, readings))


def drawn_by_numpy(logits_BV: torch.Tensor, draw: Draw) -> Drawn:
    log_probs_BV = logits_BV.float().log_softmax(-1).numpy()
    return draw_token(NextTokens(log_probs_BV[list(draw.rows)]), draw)


def assert_same(one: Drawn, other: Drawn) -> None:
    assert one.token == other.token
    assert one.log_prob == pytest.approx(other.log_prob, rel=1e-6, abs=1e-5)
    np.testing.assert_allclose(one.log_probs_K, other.log_probs_K, rtol=1e-5, atol=1e-5)
    assert [token for token, _ in one.top_logprobs] == [token for token, _ in other.top_logprobs]
    for (_, log_prob), (_, expected) in zip(one.top_logprobs, other.top_logprobs, strict=True):
        assert log_prob == pytest.approx(expected, rel=1e-6, abs=1e-5)


@settings(max_examples=examples(120))
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.integers(1, 4), SETTINGS, st.integers(1, 3)), min_size=1, max_size=3),
    st.integers(1, 40),
    st.sampled_from([0.1, 1.0, 8.0]),
    st.booleans(),
    st.booleans(),
)
def test_drawn_tokens_equal_those_of_numpy(
    seed: int, groups: list[tuple[int, dict[str, Any], int]], vocabulary: int, scale: float, ties: bool, low: bool
) -> None:
    """Several draws of each setting; logits that are equal, or impossible, or too unlikely for a float."""
    generator, draws = np.random.default_rng(seed), list[Draw]()
    rows = 0
    for texts, how, count in groups:
        for _ in range(count):
            draws.append(a_draw(range(rows, rows := rows + texts), generator, **how))
    logits = scale * generator.normal(size=(rows, vocabulary))
    if ties:  # columns that are equal in all readings, so that no rounding decides
        logits = logits[:, generator.integers(0, vocabulary, vocabulary)]
    elif vocabulary > 2 and low:
        logits[:, generator.integers(vocabulary)] = -np.inf
        logits[generator.integers(rows), generator.integers(vocabulary)] -= 200
    logits_BV = torch.from_numpy(logits).float()
    for one, draw in zip(draw_from_logits(Logits(), logits_BV, draws), draws, strict=True):  # type: ignore[arg-type]
        assert_same(one, drawn_by_numpy(logits_BV, draw))


def test_large_sets_of_likely_tokens_equal_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are sorted at first, and more draws than are made at once."""
    monkeypatch.setitem(draw_module._AT_ONCE, "cpu", 10_000)
    logits_BV = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 5000))).float()
    draws = [
        Draw(range(row, row + 3), np.log([0.5, 0.3, 0.2]), temperature=1.5, top_p=top_p, number=number)
        for row, top_p, number in zip(range(0, 12, 3), (0.001, 0.9, 0.99, 0.99), (0.2, 0.5, 0.7, 0.9), strict=True)
    ]
    for one, draw in zip(draw_from_logits(Logits(), logits_BV, draws), draws, strict=True):  # type: ignore[arg-type]
        assert_same(one, drawn_by_numpy(logits_BV, draw))


@pytest.mark.parametrize("whole", [False, True])
def test_decoders_draw_what_their_distributions_give(model: LocalLanguageModel, whole: bool) -> None:
    """Texts that grow and change, which are read in another order than they come; some of several prompts."""
    decoders = [UncachedDecoder(model.logits, 64, 40) if whole else model.continuations() for _ in range(2)]
    generator = np.random.default_rng(0)
    texts = [generator.integers(3, 200, size=size) for size in (9, 5, 12, 7)]
    draws = [
        Draw([2, 0], np.log([0.6, 0.4]), top_logprobs=3),
        Draw([1], np.zeros(1), temperature=0.8, top_p=0.9, number=0.4),
        Draw([3, 1], np.log([0.1, 0.9]), temperature=1.0, top_k=20, number=0.9),
    ]
    for _ in range(3):
        given, found = decoders[0].next_tokens(texts), decoders[1].draw(texts, draws)  # type: ignore[attr-defined]
        for one, draw in zip(found, draws, strict=True):
            assert_same(one, draw_token(given.of(draw.rows), draw))
        texts = [np.append(text, found[0].token) for text in texts[::-1]]


def test_predictions_that_are_not_numbers() -> None:
    model = tiny_family_model("gpt2").requires_grad_(False)
    model.get_output_embeddings().weight[29] = float("nan")
    broken = UncachedDecoder(engine.TargetLogits(model, "broken"), 60)
    draws = [Draw([0, 1], np.log([0.5, 0.5]), temperature=1.0, top_p=0.9, top_logprobs=2), Draw([0], np.zeros(1))]
    for draw in draws:
        with pytest.raises(ModelError, match="not numbers in float32: its weights are damaged"):
            broken.draw([np.arange(5), np.arange(3)], [draw])
    with pytest.raises(ModelError, match="cannot continue an empty text"):
        broken.draw([np.arange(0)], [draws[1]])


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [3, 0, 1, 2]])
def test_nothing_but_what_is_drawn_leaves_a_gpu(rows: list[int]) -> None:
    with fake_cuda(torch.nn.Identity()), torch.inference_mode():
        logits_BV = torch.zeros(4, 12, device=CUDA, dtype=torch.bfloat16)
        for alpha in (None, 0.5):
            how: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_logprobs": 3, "alpha": alpha}
            draws = [
                Draw(rows[:2], np.zeros(2), **how),
                Draw(rows[2:], np.zeros(2), **how),
                Draw(rows[:1], np.zeros(1)),
            ]
            found = draw_from_logits(engine.TargetLogits.__new__(engine.TargetLogits), logits_BV, draws)
            assert [len(one.top_logprobs) for one in found] == [3, 3, 0]
