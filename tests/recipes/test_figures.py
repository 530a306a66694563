"""Figures of recipes at full size can be read: labels apart, a colour for each line, legends beside the data."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from matplotlib.figure import Figure as Drawn

from ralm.recipes.catalogue import recipes
from ralm.recipes.figures import draw
from ralm.recipes.folder import RecipeFolder
from ralm.recipes.recipe import FULL_SCALE, Recipe
from ralm.recipes.results import MeasuredCell, MeasuredOrder, Result

RECIPES = recipes(FULL_SCALE)
SHOWN = ("in-context-ralm/table-1", "in-context-ralm/figure-4", "replug/figure-6", "analysis/gain-by-token")


def result_of(recipe: Recipe) -> Result:
    """Made-up figures for every cell and order."""
    cells = [
        MeasuredCell(cell, 20 + place % 7, (19 + place % 7, 21 + place % 7)) if cell.measure else MeasuredCell(cell)
        for place, cell in enumerate(recipe.cells)
    ]
    orders = [MeasuredOrder(order, 1.0, 1.1, -0.1, (-0.2, 0.0)) for order in recipe.orders]
    folder = cast("RecipeFolder", SimpleNamespace(stand_in=False))
    return Result(recipe=recipe, folder=folder, cells=cells, orders=orders, changes=(), is_partial=False)


@pytest.mark.parametrize("name", SHOWN)
def test_a_figure_can_be_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(Drawn, "savefig", lambda figure, _: drawn.append(figure))
    result = result_of(RECIPES[name])
    draw(result, tmp_path / "figure.png")
    [figure] = drawn
    figure.draw_without_rendering()
    columns = dict.fromkeys(cell.column for cell in RECIPES[name].cells)
    assert len(figure.axes) == len(columns) + bool(result.orders)
    for axes in figure.axes:
        for one, other in neighbours([*axes.get_yticklabels()]):
            assert not one.overlaps(other), name
        for one, other in neighbours([label for label in axes.get_xticklabels() if label.get_text()]):
            assert not one.overlaps(other), name
        if legend := axes.get_legend():
            assert not legend.get_window_extent().overlaps(axes.get_window_extent()), name
            lines = [line.get_color() for line in axes.get_lines() if line.get_linestyle() == "-"]
            assert len({*map(tuple, lines)}) == len(lines), name


def neighbours(labels: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The boxes of labels that stand beside each other."""
    boxes = [label.get_window_extent() for label in labels]
    return pairwise(boxes)


def test_the_contamination_curve_has_a_logarithmic_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[str] = []
    monkeypatch.setattr(Drawn, "savefig", lambda figure, _: scales.extend(one.get_xscale() for one in figure.axes))
    draw(result_of(RECIPES["analysis/contamination"]), tmp_path / "figure.png")
    assert scales == ["symlog", "symlog", "linear"]
