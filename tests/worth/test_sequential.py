"""The sequential test: its bounds against published ones, its level by simulation, and its intervals."""

from collections.abc import Callable

import numpy as np
import pytest

from ralm.evaluation.intervals import LEVEL, Estimate, Units
from ralm.worth.sequential import looks, repeated_interval, spending_bounds, student_bound

Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def test_bounds_are_those_of_the_literature() -> None:
    # Lan and DeMets (1983), alpha(t) = alpha t, five equal looks
    published = [2.576, 2.492, 2.411, 2.339, 2.276]
    assert spending_bounds([1, 2, 3, 4, 5], 5, level=LEVEL) == pytest.approx(published, abs=1e-3)
    assert spending_bounds([40], 40, level=LEVEL) == pytest.approx([1.95996], abs=1e-4)


def test_a_last_look_spends_the_whole_level() -> None:
    early, last = spending_bounds([16, 40], 256, last=True)
    assert early == pytest.approx(spending_bounds([16], 256)[0])
    assert last < spending_bounds([16, 40], 256)[1]


def test_students_bound_is_that_of_tables() -> None:
    assert student_bound(1.959964, 10) == pytest.approx(2.2281, abs=1e-3)
    assert student_bound(1.959964, 1) == pytest.approx(12.706, abs=0.02)
    assert student_bound(2.955, 100_000) == pytest.approx(2.955, abs=1e-2)


def test_looks_double_up_to_the_last() -> None:
    assert looks(256) == [16, 32, 64, 128, 256]
    assert looks(100) == [16, 32, 64, 100]
    assert looks(10) == [10]


@pytest.mark.parametrize("name", ["normal", "laplace", "standard_t", "rare", "skewed", "skewed the other way"])
def test_a_mean_of_0_is_seldom_taken_for_another(name: str) -> None:
    """With four looks at most 5% of verdicts are wrong, half of them that a corpus helps, unless gains are skewed."""
    draws: dict[str, Draw] = {
        "normal": lambda random, shape: random.normal(size=shape),
        "laplace": lambda random, shape: random.laplace(size=shape),
        "standard_t": lambda random, shape: random.standard_t(3, size=shape),
        "rare": lambda random, shape: (random.random(shape) < 0.3) * random.normal(size=shape),
        "skewed": lambda random, shape: random.exponential(size=shape) - 1,
        "skewed the other way": lambda random, shape: 1 - random.exponential(size=shape),
    }
    runs, most = 4000, 128
    values_RU = draws[name](np.random.default_rng(0), (runs, most))
    helps_R, harms_R = np.zeros(runs, dtype=np.bool_), np.zeros(runs, dtype=np.bool_)
    for units, bound in zip(looks(most), spending_bounds(looks(most), most, level=LEVEL), strict=True):
        gains = [repeated_interval(Units.each(values_U), bound) for values_U in values_RU[:, :units]]
        helps_R |= np.array([gain.is_above for gain in gains])
        harms_R |= np.array([gain.is_below for gain in gains])
    error = 3 * np.sqrt(0.05 * 0.95 / runs)
    assert (helps_R | harms_R).mean() <= 0.05 + error
    assert helps_R.mean() <= 0.025 + error or name.startswith("skewed")
    if name == "normal":
        assert (helps_R | harms_R).mean() >= 0.05 - error  # nothing of the level is given away


def test_the_interval_of_units_of_one_size_is_that_of_students_t() -> None:
    gains_U, counts_U = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 4.0, 3.0, 2.0, 1.0]), np.full(10, 2.0)
    gain = repeated_interval(Units(gains_U, counts_U), 1.959964)
    width = 2.26216 * (gains_U / 2).std(ddof=1) / np.sqrt(10)
    assert (gain.value, gain.low, gain.high) == pytest.approx((1.5, 1.5 - width, 1.5 + width), abs=1e-3)


@pytest.mark.parametrize("gains_U", [np.arange(9.0), np.full(40, 0.1), np.zeros(16)])
def test_few_or_equal_units_have_no_interval(gains_U: np.ndarray) -> None:
    gain = repeated_interval(Units.each(gains_U), 2.0)
    assert gain == Estimate(value=gains_U.sum() / len(gains_U), units=len(gains_U))
