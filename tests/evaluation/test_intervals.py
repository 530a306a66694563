"""Intervals against their definition and published figures, their level, and comparisons of the same units."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import t as student

from ralm.evaluation.intervals import STRETCH, Column, Comparison, Units, UnitTable, compare, estimate, holm, stretches


def plain_interval(values: list[float], counts: list[float]) -> tuple[float, float, float]:
    """The ratio of both sums, and the ends of Student's interval from the residuals of each unit."""
    units, total = len(values), sum(counts)
    ratio = sum(values) / total
    squares = 0.0
    for value, count in zip(values, counts, strict=True):
        squares += (value - ratio * count) ** 2
    error = math.sqrt(squares / (units - 1) * units) / total
    bound = float(student.ppf(0.975, units - 1))
    return ratio, ratio - bound * error, ratio + bound * error


tables = st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50), st.integers(1, 9)), min_size=10, max_size=40)


@given(tables)
def test_a_mean_has_the_interval_of_the_residuals_of_its_units(rows: list[tuple[float, float, int]]) -> None:
    values, _, counts = (list(map(float, column)) for column in zip(*rows, strict=True))
    figure = estimate(Units(np.array(values), np.array(counts)), "mean")
    expected = plain_interval(values, counts)
    assert figure.value == pytest.approx(expected[0])
    if figure.ends is not None:
        assert figure.ends == pytest.approx(expected[1:], rel=1e-6, abs=1e-9)
    else:
        assert expected[1] == pytest.approx(expected[2], abs=1e-6)


@given(tables)
def test_a_change_is_that_of_the_paired_units(rows: list[tuple[float, float, int]]) -> None:
    values, others, counts = (list(map(float, column)) for column in zip(*rows, strict=True))
    units, base = (Units(np.array(column), np.array(counts)) for column in (values, others))
    differences = [value - other for value, other in zip(values, others, strict=True)]
    mean, low, high = plain_interval(differences, counts)
    difference, relative = compare(units, base, "mean"), compare(units, base, "perplexity")
    assert difference.value == pytest.approx(mean, abs=1e-9)
    assert relative.value == pytest.approx(math.expm1(mean), rel=1e-6, abs=1e-9)
    if difference.ends is not None and relative.ends is not None:
        assert difference.ends == pytest.approx([low, high], rel=1e-6, abs=1e-9)
        assert relative.ends == pytest.approx([math.expm1(low), math.expm1(high)], rel=1e-6, abs=1e-9)


def test_a_relative_change_of_a_ratio_agrees_with_that_of_its_logarithm() -> None:
    random = np.random.default_rng(1)
    base = Units(random.uniform(90, 110, 400), np.ones(400))
    units = Units(base.sums_U * random.uniform(0.8, 1, 400), np.ones(400))
    change = compare(units, base, "ratio")
    assert change.value == pytest.approx(units.mean / base.mean - 1)
    logarithms = compare(Units.each(np.log(units.sums_U)), Units.each(np.log(base.sums_U)), "perplexity")
    assert change.ends == pytest.approx(logarithms.ends, abs=2e-3)


@pytest.mark.parametrize(
    ("right", "of", "low", "high"), [(0, 20, 0.0, 0.1611), (81, 263, 0.2553, 0.3662), (20, 20, 0.8389, 1.0)]
)
def test_a_share_has_wilsons_interval(right: int, of: int, low: float, high: float) -> None:
    """81 of 263 is the example of Newcombe, Statistics in Medicine 17 (1998), method 3."""
    share = estimate(Units.each(np.repeat([1.0, 0.0], [right, of - right])), "share")
    assert share.value == right / of
    assert share.ends == pytest.approx([low, high], abs=5e-5)


@pytest.mark.parametrize(("units", "normal", "exponential"), [(10, 0.06, 0.11), (20, 0.06, 0.09), (60, 0.06, 0.075)])
def test_intervals_keep_their_level(units: int, normal: float, exponential: float) -> None:
    random, trials = np.random.default_rng(units), 2_000
    for samples_NU, bound in (
        (random.normal(size=(trials, units)), normal),
        (random.exponential(size=(trials, units)) - 1, exponential),
    ):
        left_out = 0
        for sample_U in samples_NU:
            low, high = estimate(Units.each(sample_U), "mean").ends or (0.0, 0.0)
            left_out += not low < 0 < high
        assert 0.035 < left_out / trials < bound + 0.01


@pytest.mark.parametrize(
    ("units", "base"),
    [
        (Units.each(np.array([2.0])), Units.each(np.array([1.0]))),
        (Units.each(np.arange(9.0)), Units.each(np.zeros(9))),
        (Units.each(np.full(40, 0.5)), Units.each(np.zeros(40))),
        (Units.each(np.arange(40.0)), Units.each(np.arange(40.0))),
        (Units.each(np.arange(40, dtype=np.float32) / 3 + 0.1), Units.each(np.arange(40) / 3)),
        (Units.each(np.linspace(3, 4, 40) + 2e-9 + np.linspace(0, 1e-10, 40)), Units.each(np.linspace(3, 4, 40))),
        (Units(np.zeros(40), np.zeros(40)), Units(np.zeros(40), np.zeros(40))),
        (Units.each(np.full(40, np.inf)), Units.each(np.zeros(40))),
    ],
    ids=[
        "one",
        "nine",
        "equal changes",
        "no change",
        "equal but for rounding",
        "rounded in one way",
        "nothing counted",
        "impossible",
    ],
)
def test_units_that_say_nothing_of_others_give_no_interval(units: Units, base: Units) -> None:
    for scale in ("mean", "share", "perplexity"):
        change = compare(units, base, scale)
        assert (change.ends, change.p_value, change.is_above, change.is_below) == (None, None, False, False)


@pytest.mark.parametrize("level", [0.0, math.inf])
def test_a_relative_change_from_nothing_or_an_impossible_text_is_unknown(level: float) -> None:
    change = compare(Units.each(np.linspace(1, 2, 20)), Units.each(np.full(20, level)), "ratio")
    assert (math.isfinite(change.value) and change.value != -1, change.ends) == (False, None)


def test_units_that_count_nothing_are_left_out() -> None:
    values, counts = np.array([1.0, 2.0, 4.0, 8.0] * 5), np.array([1, 0, 3, 2] * 5)
    there = counts > 0
    assert estimate(Units(values, counts), "mean") == estimate(Units(values[there], counts[there]), "mean")
    assert compare(Units(values, counts), Units(values, 1 - counts % 2), "mean").units == 5


def test_values_add_up_by_unit_and_stretches_are_of_512() -> None:
    unit_T = stretches(2 * STRETCH + 1)
    units = Units.of(np.ones(2 * STRETCH + 1, dtype=np.float32), unit_T)
    assert units.counts_U.tolist() == units.sums_U.tolist() == [512, 512, 1]
    assert units.counted_as(205.0).counts_U.sum() == pytest.approx(205)
    assert units.counted_as(205.0).mean == pytest.approx(5)


def test_a_figure_that_is_too_large_is_infinite() -> None:
    figure: Any = estimate(Units.each(np.linspace(800, 900, 20)), "perplexity")
    assert (figure.value, figure.high) == (math.inf, math.inf)


def test_holm_corrects_a_family() -> None:
    assert holm([0.01, 0.04, None, 0.03]) == [pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06)]
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def table(identity: str = "same", **measures: tuple[list[float], list[int]]) -> UnitTable:
    columns = {
        name: Column(Units(np.array(sums), np.array(counts)), "mean") for name, (sums, counts) in measures.items()
    }
    return UnitTable("questions", identity, columns)


def test_a_unit_that_does_not_count_in_one_run_counts_in_none() -> None:
    whole = table(score=([1.0, 2.0, 9.0], [1, 1, 1]))
    part = table(score=([3.0, 4.0, 0.0], [1, 1, 0]))
    compared = Comparison(["whole", "part"], [whole, part])
    assert [one.value for one in compared.figures["score"].values()] == [1.5, 3.5]
    assert compared.changes["score"][1].value == 2.0
    assert compared.units == 3


def test_a_measure_that_a_run_lacks_is_that_of_the_others() -> None:
    compared = Comparison(["one", "two"], [table(score=([1.0], [1])), table(score=([2.0], [1]), more=([5.0], [1]))])
    assert compared.estimates(0).keys() == {"score"}
    assert compared.estimates(1).keys() == {"score", "score_from_first", "more"}


def test_a_run_in_which_nothing_counts_takes_the_figures_of_no_other() -> None:
    compared = Comparison(["one", "two"], [table(score=([1.0], [1])), table(score=([0.0], [0]))])
    assert (compared.estimates(0)["score"].value, compared.estimates(1)) == (1.0, {})


def test_runs_over_other_targets_are_not_compared() -> None:
    compared = Comparison(["one", "two"], [table(score=([1.0], [1])), table("other", score=([2.0, 4.0], [1, 1]))])
    assert compared.estimates(1)["score"].value == 3.0
    assert "score_from_first" not in compared.estimates(1)


def test_a_change_is_a_figure_and_is_not_compared_again() -> None:
    values, base = (Units.each(np.arange(20.0) + shift) for shift in (1.0, 0.0))
    tables = [UnitTable("documents", "same", {"change": Column(values, "mean", base)})] * 2
    assert Comparison(["one", "two"], tables).estimates(1)["change"].value == pytest.approx(1.0)
    assert not Comparison(["one", "two"], tables).changes["change"]


def test_a_measure_that_counts_nothing_is_left_out() -> None:
    compared = Comparison(["one"], [table(score=([0.0], [0]))])
    assert compared.as_json() == {"questions": 1, "runs": [{"run": "one"}]}
