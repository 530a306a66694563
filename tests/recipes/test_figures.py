"""Figures of recipes at full size can be read: labels apart, a colour for each line, legends beside the data."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure as Drawn

from ralm.recipes.catalogue import recipe_named
from ralm.recipes.figures import draw
from ralm.recipes.results import Result

SHOWN = ("in-context-ralm/table-1", "in-context-ralm/figure-4", "replug/figure-6", "analysis/gain-by-token")


def result_of(name: str) -> Result:
    """Made-up figures for every cell."""
    recipe = recipe_named(name)
    cells = [
        {"value": 20 + place % 7, "low": 19 + place % 7, "high": 21 + place % 7} if cell.measure else {"value": None}
        for place, cell in enumerate(recipe.cells)
    ]
    return Result(recipe=recipe, cells=cells, orders=(), changes=(), commands=(), stand_in=False)


@pytest.mark.parametrize("name", SHOWN)
def test_a_figure_can_be_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(Drawn, "savefig", lambda figure, _: drawn.append(figure))
    draw(result_of(name), tmp_path / "figure.png")
    [figure] = drawn
    figure.draw_without_rendering()
    assert len(figure.axes) == len({cell.column for cell in recipe_named(name).cells})
    for axes in figure.axes:
        for label, following in neighbours([*axes.get_yticklabels()]):
            assert not label.overlaps(following), name
        for label, following in neighbours([label for label in axes.get_xticklabels() if label.get_text()]):
            assert not label.overlaps(following), name
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
    monkeypatch.setattr(Drawn, "savefig", lambda figure, _: scales.extend(axes.get_xscale() for axes in figure.axes))
    draw(result_of("analysis/contamination"), tmp_path / "figure.png")
    assert scales == ["symlog", "symlog"]
