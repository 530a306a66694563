"""Comparisons: figures side by side are of the same units, and what is not shared is not compared."""

import numpy as np
import pytest

from ralm.evaluation.comparison import Column, Comparison, UnitTable
from ralm.evaluation.intervals import Units


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
