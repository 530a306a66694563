"""The losses, their gradients, and the identities that tie them to other people's losses."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from ralm.reading.mixture import mix, similarity_log_weights
from ralm.training.losses import divergence_loss, marginal_loss, torch_mix
from tests.reference import learning

INFINITE = float("-inf")
SCORES = st.floats(-20, 20)
LOG_PROBS = st.one_of(st.floats(-60, 0), st.just(INFINITE))
ROWS = st.lists(st.tuples(SCORES, LOG_PROBS), min_size=1, max_size=6).filter(
    lambda row: any(log_prob > INFINITE for _, log_prob in row)
)
TEMPERATURES = st.floats(0.5, 2)

SOME = [(0.5, -3.0), (-1.0, -1.0), (2.0, -7.0), (0.0, -2.5)]


def padded(rows: list[list[tuple[float, float]]], fill: float = float("nan")) -> tuple[Tensor, Tensor, Tensor]:
    """Scores that take a gradient, log-probabilities, and which are there; the rest is `fill`."""
    columns = max(map(len, rows)) + 1
    full = torch.full((2, len(rows), columns), fill)
    there = torch.zeros((len(rows), columns), dtype=torch.bool)
    for place, row in enumerate(rows):
        full[:, place, : len(row)] = torch.tensor(row).T
        there[place, : len(row)] = True
    return full[0].clone().requires_grad_(), full[1].clone(), there


@given(ROWS)
def test_the_mixture_in_torch_is_that_of_reading(row: list[tuple[float, float]]) -> None:
    scores_K, log_probs_K = np.array(row).T
    [expected] = mix(log_probs_K[:, None], similarity_log_weights(scores_K))
    found = torch_mix(torch.tensor(log_probs_K)[None], torch.tensor(scores_K)[None])
    assert found.item() == pytest.approx(expected, abs=1e-9)


def gradient(loss: Callable[..., Tensor], scores: Tensor, *rest: Tensor, **options: float) -> Tensor:
    (given,) = torch.autograd.grad(loss(scores, *rest, **options).sum(), scores)
    return given


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_eq_9_is_the_plain_loop(rows: list[list[tuple[float, float]]]) -> None:
    scores, log_probs, there = padded(rows)
    losses, given = marginal_loss(scores, log_probs, there), gradient(marginal_loss, scores, log_probs, there)
    for place, row in enumerate(rows):
        f, log_p = (list(column) for column in zip(*row, strict=True))
        assert losses[place].item() == pytest.approx(learning.marginal_loss(f, log_p), rel=1e-5, abs=2e-5)
        expected = learning.marginal_gradient(f, log_p)
        torch.testing.assert_close(given[place, : len(row)], torch.tensor(expected), rtol=1e-4, atol=2e-5)
        assert (given[place, len(row) :] == 0).all(), "what is padded gets no gradient"


@given(st.lists(ROWS, min_size=1, max_size=4), TEMPERATURES, TEMPERATURES)
def test_the_divergence_is_the_plain_loop(rows: list[list[tuple[float, float]]], gamma: float, beta: float) -> None:
    scores, lm_scores, there = padded(rows)
    options = {"gamma": gamma, "beta": beta}
    losses = divergence_loss(scores, lm_scores, there, **options)
    given = gradient(divergence_loss, scores, lm_scores, there, **options)
    for place, row in enumerate(rows):
        s, lm = (list(column) for column in zip(*row, strict=True))
        assert losses[place].item() == pytest.approx(learning.divergence_loss(s, lm, **options), rel=1e-4, abs=1e-4)
        expected = learning.divergence_gradient(s, lm, **options)
        torch.testing.assert_close(given[place, : len(row)], torch.tensor(expected), rtol=1e-4, atol=2e-5)
        assert (given[place, len(row) :] == 0).all(), "what is padded gets no gradient"


def test_by_hand() -> None:
    scores, log_probs, there = padded([[(0.0, -1.0), (0.0, -2.0)]])
    half = (torch.tensor(-1.0).exp() + torch.tensor(-2.0).exp()) / 2
    assert marginal_loss(scores, log_probs, there).item() == pytest.approx(-half.log().item())
    _, lm_scores, _ = padded([[(0.0, 0.0), (0.0, INFINITE)]])
    assert divergence_loss(scores, lm_scores, there).item() == pytest.approx(torch.tensor(2.0).log().item())
    assert divergence_loss(scores, torch.zeros_like(lm_scores), there).item() == 0


def test_the_papers_temperatures_are_the_defaults() -> None:
    scores, lm_scores, there = padded([SOME])
    expected = learning.divergence_loss([s for s, _ in SOME], [lm for _, lm in SOME], 0.1, 0.1)
    assert divergence_loss(scores, lm_scores, there).item() == pytest.approx(expected, rel=1e-5)


def test_likelihoods_that_are_far_below_the_smallest_float_still_teach() -> None:
    far = [(f, log_prob - 400) for f, log_prob in SOME]
    scores, log_probs, there = padded([far])
    near = padded([SOME])
    assert marginal_loss(scores, log_probs, there).item() == pytest.approx(marginal_loss(*near).item() + 400, rel=1e-5)
    torch.testing.assert_close(
        gradient(marginal_loss, scores, log_probs, there), gradient(marginal_loss, *near), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("loss", [marginal_loss, divergence_loss])
def test_the_language_model_gets_no_gradient(loss: Callable[..., Tensor]) -> None:
    scores, log_probs, there = padded([SOME])
    log_probs.requires_grad_()
    loss(scores, log_probs, there).sum().backward()  # type: ignore[no-untyped-call]
    assert log_probs.grad is None
    assert scores.grad is not None
    assert scores.grad[0, : len(SOME)].abs().min() > 0


@pytest.mark.parametrize("loss", [marginal_loss, divergence_loss])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_they_are_computed_in_float32(loss: Callable[..., Tensor], dtype: torch.dtype) -> None:
    scores, log_probs, there = padded([SOME])
    given = loss(scores.detach().to(dtype), log_probs.to(dtype), there)
    assert given.dtype == torch.float32
    expected = loss(scores.detach().to(dtype).float(), log_probs.to(dtype).float(), there)
    torch.testing.assert_close(given, expected)
