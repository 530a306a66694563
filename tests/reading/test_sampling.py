"""Drawing a token: by hand, and by the shares of many draws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.reading.sampling import Sampling, sample
from ralm.records import FloatArray


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


def test_a_seed_decides() -> None:
    log_probs_V = np.zeros(1000, dtype=np.float32)
    one, same, other = (
        drawn(log_probs_V, np.random.default_rng(seed), Sampling(temperature=1.0)) for seed in (1, 1, 2)
    )
    assert one == same != other
