"""The result of a recipe: each cell measured, and the orders that the paper reports."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ralm.evaluation.bootstrap import bootstrap_means, interval
from ralm.recipes.measures import Folders, Measure, Sample
from ralm.recipes.recipe import Cell, Order, Recipe

Verdict = Literal["seen", "not clear", "the other way", "not comparable"]
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A cell with our figure and its 95% interval; None where there is nothing to measure, or one unit."""

    cell: Cell
    value: float | None
    interval: Interval | None

    @property
    def difference(self) -> float | None:
        """Our figure minus the paper's."""
        if self.value is None or self.cell.published is None:
            return None
        return self.value - self.cell.published


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """An order, by how much the better figure is better, with its 95% interval from a paired bootstrap.

    `change` is a fraction of the worse figure where smaller is better, such as perplexity, otherwise a difference. An
    order is seen if the interval leaves out 0.
    """

    order: Order
    better: float
    worse: float
    change: float | None
    interval: Interval | None

    @property
    def is_relative(self) -> bool:
        """Whether the change is a fraction."""
        return self.order.better.smaller_is_better

    @property
    def verdict(self) -> Verdict:
        """Whether the order is seen."""
        if self.interval is None or self.change is None:
            return "not comparable"
        sign = -1 if self.order.better.smaller_is_better else 1
        low, high = sorted(sign * end for end in self.interval)
        return "seen" if low > 0 else "the other way" if high < 0 else "not clear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A recipe with everything measured. `changes`: how the run differs from the recipe; `is_partial`: whether it read
    a part of the text, so that its figures are not compared with the paper's."""

    recipe: Recipe
    cells: Sequence[Measured]
    orders: Sequence[Ordered]
    changes: Sequence[str] = ()
    is_partial: bool = False


def measure_recipe(
    recipe: Recipe, folders: Folders, changes: Sequence[str] = (), *, is_partial: bool = False
) -> Result:
    """Measure every cell and order from the folders of its steps; `Result` says what `changes` are.

    Raises DamagedFolderError if one cannot be read.
    """
    samples = {measure: measure.sample(folders) for measure in recipe.measures}
    return Result(
        recipe=recipe,
        cells=[_measured(cell, samples.get(cell.measure) if cell.measure else None) for cell in recipe.cells],
        orders=[_ordered(order, samples) for order in recipe.orders],
        changes=changes,
        is_partial=is_partial,
    )


def _measured(cell: Cell, sample: Sample | None) -> Measured:
    if sample is None or math.isnan(sample.value):
        return Measured(cell=cell, value=None, interval=None)
    return Measured(cell=cell, value=sample.value, interval=sample.interval)


def _ordered(order: Order, samples: dict[Measure, Sample]) -> Ordered:
    better, worse = samples[order.better], samples[order.worse]
    change = ends = None
    judged = better.counts_U.sum() > 0
    if judged and len(better.counts_U) > 1 and np.array_equal(better.counts_U, worse.counts_U):
        sums_UR = np.stack([better.sums_U, worse.sums_U], axis=1)
        drawn_DR = bootstrap_means(sums_UR, better.counts_U)
        drawn = better.figure(drawn_DR[:, 0]), worse.figure(drawn_DR[:, 1])
        if order.better.smaller_is_better:
            change, ends = better.value / worse.value - 1, interval(drawn[0] / drawn[1] - 1)
        else:
            change, ends = better.value - worse.value, interval(drawn[0] - drawn[1])
    return Ordered(order=order, better=better.value, worse=worse.value, change=change, interval=ends)
