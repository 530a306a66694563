"""The bootstrap against its plain definition, and against what is known of means."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.evaluation.bootstrap import bootstrap_means, interval


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**32))
def test_means_are_those_of_units_drawn_with_replacement(units: int, columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    counts_U = random.integers(1, 9, units)
    sums_UR = random.normal(size=(units, columns)) * counts_U[:, None]
    drawn = np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), size=20)
    plain = [
        [
            sum(times * sums_UR[unit, column] for unit, times in enumerate(row))
            / sum(times * int(counts_U[unit]) for unit, times in enumerate(row))
            for column in range(columns)
        ]
        for row in drawn.tolist()
    ]
    np.testing.assert_allclose(bootstrap_means(sums_UR, counts_U, draws=20, seed=seed), plain, rtol=1e-12)


def test_the_interval_of_a_mean_covers_the_truth_about_as_often_as_it_says() -> None:
    random, covered = np.random.default_rng(0), 0
    for trial in range(200):
        values = random.normal(loc=3, size=60)
        low, high = interval(bootstrap_means(values[:, None], np.ones(60, dtype=np.int64), draws=400, seed=trial)[:, 0])
        covered += low < 3 < high
    assert 0.88 < covered / 200 < 0.99


def test_columns_share_their_draws() -> None:
    values = np.random.default_rng(1).normal(size=(30, 1))
    both = bootstrap_means(np.hstack([values, values + 1]), np.ones(30, dtype=np.int64), draws=50)
    np.testing.assert_allclose(both[:, 1] - both[:, 0], 1)


def test_many_draws_in_groups_are_all_there() -> None:
    means = bootstrap_means(np.ones((4, 1)), np.ones(4, dtype=np.int64), draws=2_345)
    assert means.shape == (2_345, 1)
    assert means == pytest.approx(1)
