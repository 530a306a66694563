"""Drawing a token, by the shares of many draws; bounds of an average from the likeliest tokens of each document."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.errors import UsageError
from ralm.reading.mixture import mix
from ralm.reading.pieces import GeneratedToken
from ralm.reading.sampling import Sampling, bounds_of, draw_token, sample
from ralm.records import NO_PASSAGE, NOT_LISTED, DoubleArray, FloatArray, IntArray, NextTokens


def distribution(*probabilities: float) -> FloatArray:
    return np.log(np.array(probabilities, dtype=np.float32))


def drawn(log_probs_V: FloatArray, generator: np.random.Generator, sampling: Sampling) -> int:
    return sample(log_probs_V, sampling.draw(range(1), np.zeros(1), generator))


def shares(log_probs_V: FloatArray, **options: float) -> np.ndarray:
    generator, sampling = np.random.default_rng(0), replace(Sampling(temperature=1.0), **options)  # type: ignore[arg-type]
    tokens = [drawn(log_probs_V, generator, sampling) for _ in range(4000)]
    return np.bincount(tokens, minlength=len(log_probs_V)) / 4000


def test_greedy_takes_the_likeliest_and_the_first_of_equals() -> None:
    assert drawn(distribution(0.2, 0.4, 0.4), np.random.default_rng(0), Sampling()) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.15, 0.5, 0.05, 0.3]),
        ({"top_p": 0.75}, [0, 0.625, 0, 0.375]),
        ({"top_k": 3}, [0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95]),
        ({"top_k": 9}, [0.15, 0.5, 0.05, 0.3]),
        ({"top_k": 3, "top_p": 0.8}, [0, 0.625, 0, 0.375]),
        ({"top_p": 0.01}, [0, 1, 0, 0]),
        ({"top_k": 2, "temperature": 0.5}, [0, 0.25 / 0.34, 0, 0.09 / 0.34]),
    ],
)
def test_draws_have_the_shares_that_were_asked_for(options: dict[str, float], expected: list[float]) -> None:
    found = shares(distribution(0.15, 0.5, 0.05, 0.3), **options)
    np.testing.assert_allclose(found, expected, atol=0.03)
    assert (found[np.array(expected) == 0] == 0).all()


@given(
    weights=st.lists(st.integers(0, 1000), min_size=1, max_size=30).filter(any),
    top_k=st.none() | st.integers(1, 30),
    top_p=st.floats(0.01, 1),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    seed=st.integers(0, 1000),
)
def test_only_tokens_of_the_nucleus_are_drawn(
    weights: list[int], top_k: int | None, top_p: float, temperature: float, seed: int
) -> None:
    """Among the top k, those that are likelier than it have together less than top p."""
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array(weights, dtype=np.float32) / sum(weights))
    token = drawn(log_probs, np.random.default_rng(seed), Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    powers = sorted((weight ** (1 / temperature) for weight in weights), reverse=True)[:top_k]
    power_of_token = weights[token] ** (1 / temperature)
    assert power_of_token >= powers[-1] * (1 - 1e-5)
    assert power_of_token > 0
    assert sum(power for power in powers if power > power_of_token * (1 + 1e-5)) < top_p * sum(powers) * (1 + 1e-5)


def test_the_first_of_equally_likely_tokens_are_the_top_k() -> None:
    assert shares(distribution(0.2, 0.2, 0.2, 0.4), top_k=2)[1:3].tolist() == [0, 0]


def drawn_token(listed: NextTokens, log_weights_K: DoubleArray, chosen: Any = None, **how: Any) -> GeneratedToken:
    draw = Sampling(**how).draw(range(len(log_weights_K)), log_weights_K, np.random.default_rng(0))
    return GeneratedToken.of(draw_token(listed, draw, chosen), draw, np.full(len(log_weights_K), NO_PASSAGE))


@st.composite
def averages(draw: st.DrawFn) -> tuple[FloatArray, DoubleArray]:
    """Log-probabilities (float32, K x V) and the logarithms of the weights of K documents; some are far apart, some
    equal, some impossible."""
    documents, vocabulary = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sharpness = draw(st.sampled_from([0.0, 0.5, 3.0, 20.0]))
    logits_KV = sharpness * generator.normal(size=(documents, vocabulary))
    if draw(st.booleans()) and vocabulary > 1:
        logits_KV[:, generator.integers(vocabulary)] = -np.inf
    weights_K = generator.dirichlet(np.full(documents, draw(st.sampled_from([0.2, 1.0, 50.0]))))
    log_probs_KV = logits_KV - np.log(np.exp(logits_KV).sum(axis=1, keepdims=True))
    with np.errstate(divide="ignore"):
        return log_probs_KV.astype(np.float32), np.log(weights_K)


def likeliest(log_probs_KV: FloatArray, count: int, extra: IntArray | None = None) -> NextTokens:
    """What a server lists: the `count` likeliest of each document, and one more in no order if `extra` names it."""
    tokens, log_probs, rest = [], [], []
    for row, log_probs_V in enumerate(log_probs_KV):
        order = np.argsort(-log_probs_V, kind="stable")[:count]
        rest.append(log_probs_V[order[-1]])
        if extra is not None and extra[row] not in order:
            order = np.append(order, extra[row])
        order = np.append(order, np.full(count + 1 - len(order), NOT_LISTED))
        tokens.append(order)
        log_probs.append(np.where(order == NOT_LISTED, -np.inf, log_probs_V[order]))
    listed = NextTokens(np.array(log_probs, dtype=np.float32), np.array(tokens))
    if extra is None:
        return listed  # the lowest one listed is the k-th
    return NextTokens(listed.log_probs_BC, listed.tokens_BC, np.array(rest, dtype=np.float32))


@settings(max_examples=300)
@given(averages(), st.integers(1, 12), st.booleans())
def test_the_average_lies_within_its_bounds(average: tuple[FloatArray, DoubleArray], count: int, more: bool) -> None:
    log_probs_KV, log_weights_K = average
    vocabulary = log_probs_KV.shape[1]
    extra = np.arange(len(log_probs_KV)) % vocabulary if more else None
    bounds = bounds_of(likeliest(log_probs_KV, min(count, vocabulary), extra), log_weights_K)
    exact_V = np.exp(mix(log_probs_KV, log_weights_K).astype(np.float64))
    lower_V, upper_V = np.zeros(vocabulary), np.full(vocabulary, np.exp(bounds.tail_bound))
    lower_V[bounds.tokens_Y], upper_V[bounds.tokens_Y] = np.exp(bounds.lower_Y), np.exp(bounds.upper_Y)
    assert (lower_V <= exact_V * (1 + 1e-6) + 1e-12).all()
    assert (exact_V <= upper_V * (1 + 1e-6) + 1e-12).all()
    if bounds.certified:
        assert exact_V[bounds.tokens_Y[bounds.best]] >= exact_V.max() * (1 - 1e-6)
    if count >= vocabulary:  # everything is listed: the bounds are the average itself
        np.testing.assert_allclose(lower_V, exact_V, rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(upper_V, exact_V, rtol=1e-5, atol=1e-12)
        assert bounds.exact
        assert bounds.certified or np.exp(bounds.tail_bound) > exact_V.max()


@settings(max_examples=200)
@given(averages(), st.integers(1, 5))
def test_a_model_that_tells_chosen_tokens_gives_the_greedy_token_exactly_once_it_is_certified(
    average: tuple[FloatArray, DoubleArray], count: int
) -> None:
    log_probs_KV, log_weights_K = average
    listed = likeliest(log_probs_KV, min(count, log_probs_KV.shape[1]))
    asked: list[IntArray] = []

    def chosen(wanted: IntArray) -> NextTokens:
        asked.append(wanted)
        return NextTokens(log_probs_KV[:, wanted], np.tile(wanted, (len(log_probs_KV), 1)))

    drawn = drawn_token(listed, log_weights_K, chosen)
    exact_V = mix(log_probs_KV, log_weights_K)
    assert drawn.log_prob == pytest.approx(exact_V[drawn.token], rel=1e-5, abs=1e-6)
    assert drawn.bound_width == 0
    assert drawn.posteriors_K.sum() == pytest.approx(1, abs=1e-5)
    if drawn.certified:
        assert exact_V[drawn.token] >= exact_V.max() - 1e-5
    bounds = bounds_of(listed, log_weights_K)
    if bounds.certified and bounds.exact:
        assert not asked


def test_a_token_that_one_document_does_not_list_is_certified_only_if_nothing_can_overtake_it() -> None:
    weights = np.log([0.5, 0.5])
    certain = NextTokens(np.log(np.array([[0.9], [0.6]], dtype=np.float32)), np.array([[4], [7]]))
    drawn = drawn_token(certain, weights)
    assert (drawn.token, drawn.certified) == (4, True)  # at least 0.45; token 7 has at most 0.3 + 0.05
    assert np.exp(drawn.log_prob + drawn.bound_width) == pytest.approx(0.45 + 0.2, rel=1e-4)
    listed = NextTokens(np.log(np.array([[0.5], [0.45]], dtype=np.float32)), np.array([[4], [7]]))
    assert not drawn_token(listed, weights).certified
    with pytest.raises(UsageError, match="lists only its 1 top next tokens.*over 2 passages"):
        drawn_token(listed, weights, temperature=1.0, top_k=1)
    with pytest.raises(UsageError, match="set `top_k` to 1 or less"):
        drawn_token(listed.of([0]), np.zeros(1), temperature=1.0)
    assert drawn_token(listed.of([1]), np.zeros(1), temperature=1.0, top_k=1).token == 7
